"""What theory expects at every site of a network, from the operations that really run."""

from trimtab.prediction.predict import predict, predict_setup
from trimtab.prediction.registry import Call, Rule, Value, register_rule
from trimtab.prediction.state import NoRuleError, State

__all__ = ["Call", "NoRuleError", "Rule", "State", "Value", "predict", "predict_setup", "register_rule"]

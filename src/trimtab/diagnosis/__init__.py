"""From a record to a diagnosis: one rule a file, and one table of causes."""

from trimtab.diagnosis.check import check
from trimtab.diagnosis.compare import compare
from trimtab.diagnosis.diagnose import check_ignored, diagnose
from trimtab.diagnosis.playbook import playbook
from trimtab.diagnosis.rate_sensitivity import RateSensitivity, rate_sensitivity, sensitivity_figure
from trimtab.diagnosis.recipe import recipe

__all__ = [
    "RateSensitivity",
    "check",
    "check_ignored",
    "compare",
    "diagnose",
    "playbook",
    "rate_sensitivity",
    "recipe",
    "sensitivity_figure",
]

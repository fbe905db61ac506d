"""One rule a file: each looks at a view of the record and hands over what it finds."""

from collections.abc import Callable, Iterator

from trimtab.diagnosis.found import Found
from trimtab.diagnosis.rules import (
    clipping_dominates,
    dead_units,
    decayed_norm_parameters,
    double_softmax,
    excessive_weight_decay,
    exploding_gradient,
    frozen_parameters,
    learning_rate_too_high,
    learning_rate_too_low,
    missing_from_optimizer,
    missing_zero_grad,
    nonfinite_data,
    nonfinite_loss,
    saturated_units,
    signal_collapse,
    symmetric_init,
    unscaled_inputs,
    unscaled_targets,
    vanishing_gradient,
)
from trimtab.diagnosis.view import View

RULES: tuple[Callable[[View], Iterator[Found]], ...] = (
    nonfinite_data.find,
    missing_zero_grad.find,
    missing_from_optimizer.find,
    frozen_parameters.find,
    double_softmax.find,
    unscaled_inputs.find,
    unscaled_targets.find,
    symmetric_init.find,
    excessive_weight_decay.find,
    decayed_norm_parameters.find,
    signal_collapse.find,
    dead_units.find,
    saturated_units.find,
    exploding_gradient.find,
    vanishing_gradient.find,
    clipping_dominates.find,
    learning_rate_too_high.find,
    learning_rate_too_low.find,
    nonfinite_loss.find,
)

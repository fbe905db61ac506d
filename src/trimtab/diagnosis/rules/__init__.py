"""One rule a file: each looks at a view of the record and hands over what it finds."""

from collections.abc import Callable, Iterator

from trimtab.diagnosis.found import Found
from trimtab.diagnosis.rules import (
    clipping_dominates,
    dead_units,
    degenerate_normalization,
    double_softmax,
    exploding_gradient,
    frozen_parameters,
    learning_rate_too_high,
    learning_rate_too_low,
    missing_from_optimizer,
    missing_zero_grad,
    nonfinite_data,
    nonfinite_loss,
    norm_placement,
    norm_precision,
    residual_growth,
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
    degenerate_normalization.find,
    norm_precision.find,
    norm_placement.find,
    residual_growth.find,
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

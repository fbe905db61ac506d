"""What an initializer compares before and after: `trimtab.predict` on a copy of the net."""

from typing import Any

from torch import nn

from trimtab.errors import UsageError
from trimtab.norms._passes import own, told_what_was_given
from trimtab.prediction import predict
from trimtab.propagation._probe import copy_to_measure, measuring
from trimtab.report.prediction import Prediction


def predicted(model: nn.Module, batch: Any) -> tuple[Prediction | None, str]:
    """Predict and measure signal and gradient at every site.

    It is a copy without dropout that runs, so that hooks of the user's note nothing, and one that is frozen nowhere, so
    that the gradient is known everywhere.

    Args:
        model: The model, left alone.
        batch: As for the initializers.

    Returns:
        The prediction, and ""; or None, and why there is none (weights that are not finite, say).
    """
    copy = copy_to_measure(model)
    if any(parameter.is_complex() for parameter in copy.parameters()):
        return None, "weights are complex, for which there is no theory here"
    for parameter in copy.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    given = own(batch)
    try:
        with measuring(copy), told_what_was_given("batch", batch):
            # a pair's second part is the target; to predict, a tuple holds all positional arguments
            return predict(copy, (given[0],) if isinstance(given, (tuple, list)) else given), ""
    except UsageError as error:
        return None, str(error)

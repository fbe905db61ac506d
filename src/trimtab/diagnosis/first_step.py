"""What the first update of a weight would be, told from gradient, rate and optimizer before any step is taken."""

import math
from typing import Any

from trimtab.diagnosis.layers import Layer
from trimtab.diagnosis.view import ADAPTIVE, View

PLANNED = 1000
"""Steps of a short training, for which a weight's path is foretold."""


def foretold_update(view: View, layer: Layer) -> float:
    """Relative size of the update that the optimizer would make of a layer's weight.

    Plain descent moves by the rate times the gradient, momentum in the end by 1/(1 - momentum) of that. Adam and its kin move each
    element by about the rate (Kingma & Ba 2015, arXiv:1412.6980, section 2.1), less where the gradient is below their eps.

    Args:
        view: The record, of a look before training.
        layer: One of its layers.

    Returns:
        Norm of the update over the norm of the weight; NaN where gradient, weight or rate was not seen.
    """
    gradient = view.series(layer.model, layer.weight, "raw-gradient")
    optimizer, settings = _group(view, layer)
    rate = settings.get("lr")
    if gradient is None or not len(layer.values) or not isinstance(rate, (int, float)) or layer.values.norm[0] == 0:
        return math.nan
    if ADAPTIVE & set(optimizer.get("bases", ())):
        rms, eps = float(gradient.rms[0]), float(settings.get("eps") or 0.0)
        size = rate * math.sqrt(float(gradient.count[0])) * (rms / (rms + eps) if rms else 0.0)
    else:
        size = rate * float(gradient.norm[0]) / (1 - float(settings.get("momentum") or 0.0))
    return size / float(layer.values.norm[0])


def _group(view: View, layer: Layer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The optimizer and the settings of the parameter group that holds a layer's weight."""
    names = {layer.weight, view.name(layer.model, layer.weight)}
    for optimizer in view.record.optimizers:
        for group in optimizer.get("groups", []):
            if names & set(group["parameters"]):
                return optimizer, group["settings"]
    return {}, {}

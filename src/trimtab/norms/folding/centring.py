"""LayerNorm to RMSNorm by centring the linear layer before it.

LayerNorm(y) is RMSNorm(y - mean(y)), and y - mean(y) = (C W) x + C b with C = I - 1 1'/d: where the rows of a linear
layer's weight have mean zero over the outputs, LayerNorm subtracts nothing (Ashkboos et al. 2024, arXiv:2401.15024,
sec. 3.2). The mean square of centred values is their variance, so that eps stays what it is.
"""

import copy

from torch import nn

from trimtab.norms.folding._plan import Plan, Refused, float64, wire_of, with_parameters
from trimtab.norms.folding._wiring import Wiring


def plan_centring(model: nn.Module, wiring: Wiring, name: str) -> Plan:
    """Turn a LayerNorm into an RMSNorm.

    Exact in both modes.

    Args:
        model: The model.
        wiring: Its wiring.
        name: The LayerNorm.

    Returns:
        The fold: the linear layer, centred, and the RMSNorm.

    Raises:
        Refused: If its input is not the output of one linear layer that nobody else uses, or a bias would be lost.
    """
    norm = model.get_submodule(name)
    assert isinstance(norm, nn.LayerNorm)
    wire = wire_of(model, wiring, name)
    source = wire.source
    layer = None if source is None else model.get_submodule(source)
    if source is None or not isinstance(layer, nn.Linear):
        raise Refused(f"the input of {name} is not the output of one linear layer")
    if (users := wire_of(model, wiring, source).users) != (name,):
        raise Refused(f"the output of {source} is used {len(users)} times, not by {name} alone")
    if tuple(norm.normalized_shape) != (layer.out_features,):
        raise Refused(f"{name} normalizes {tuple(norm.normalized_shape)}, {source} gives {layer.out_features} features")
    if norm.bias is not None and bool((norm.bias != 0).any()):
        raise Refused(f"{name} has a bias, which an RMSNorm has not and nothing after it can take")
    weight = float64(layer.weight, layer.weight, 0.0)
    bias = None if layer.bias is None else float64(layer.bias, layer.bias, 0.0)
    centred = copy.deepcopy(layer)
    with_parameters(centred, weight - weight.mean(0), None if bias is None else bias - bias.mean())
    rms = nn.RMSNorm(list(norm.normalized_shape), eps=norm.eps, elementwise_affine=norm.weight is not None)
    if norm.weight is not None:
        rms.weight = nn.Parameter(norm.weight.detach().clone(), requires_grad=norm.weight.requires_grad)
    return Plan("centring", (source, name), {source: centred, name: rms.train(norm.training)}, ((source, name),))

"""The affine part of LayerNorm and RMSNorm into the linear layers after it: W (g z + b) + c = (W g) z + (W b + c)."""

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from trimtab.norms._kinds import why_changed
from trimtab.norms.folding._plan import Plan, Refused, float64, wire_of, with_parameters
from trimtab.norms.folding._wiring import Wiring
from trimtab.norms.layers.rms import RMSNorm


def plan_affine(model: nn.Module, wiring: Wiring, name: str) -> Plan:
    """Fold weight and bias of a LayerNorm or RMSNorm into every layer that takes its output.

    Exact in both modes: the statistics are those of each row, and stay. A class of somebody else's, such as LlamaRMSNorm,
    is kept; whether its weight is what it is taken for shows when the fold is verified.

    Args:
        model: The model.
        wiring: Its wiring.
        name: The normalization.

    Returns:
        The fold: the layer without affine part, and the linear layers.

    Raises:
        Refused: If anything but linear layers over the normalized axis takes the output.
    """
    norm = model.get_submodule(name)
    if norm.weight is None:
        raise Refused(f"{name} has no weight and bias to fold")
    wire = wire_of(model, wiring, name, own_class=True)
    gain, offset = norm.weight, getattr(norm, "bias", None)
    assert isinstance(gain, Tensor)
    if gain.dim() != 1:
        raise Refused(f"{name} normalizes {gain.dim()} axes; a linear layer takes one")
    if not wire.users:
        raise Refused(f"nothing was seen to use the output of {name}")
    scale = float64(gain, gain, 1.0)
    shift = float64(offset, gain, 0.0)
    new: dict[str, nn.Module] = {name: without_affine(norm)}
    for user in wire.users:
        if user is None:
            raise Refused(f"the output of {name} is used by more than modules that take it alone")
        layer = model.get_submodule(user)
        if not isinstance(layer, nn.Linear):
            raise Refused(f"{user}, a {type(layer).__name__}, uses the output of {name}, and is no linear layer")
        wire_of(model, wiring, user)
        if layer.in_features != len(scale):
            raise Refused(f"{name} normalizes {len(scale)} features, {user} takes {layer.in_features}")
        weight = float64(layer.weight, layer.weight, 0.0)
        moved = weight @ shift
        bias = float64(layer.bias, moved, 0.0) + moved if bool((shift != 0).any()) else None
        changed = copy.deepcopy(layer)
        with_parameters(changed, weight * scale, bias)
        new[user] = changed
    users = tuple(user for user in wire.users if user is not None)
    return Plan("affine", (name, *users), new, tuple((name, user) for user in users))


def without_affine(norm: nn.Module) -> nn.Module:
    """The same normalization without weight and bias.

    Args:
        norm: A LayerNorm or RMSNorm.

    Returns:
        A new layer in the same mode; one of another class is copied, with a weight of ones and a bias of zeros.
    """
    new: nn.Module
    if isinstance(norm, (nn.LayerNorm, nn.RMSNorm)) and why_changed(norm) is None:
        kind = next(known for known in (RMSNorm, nn.RMSNorm, nn.LayerNorm) if isinstance(norm, known))
        new = kind(list(norm.normalized_shape), eps=cast(Any, norm.eps), elementwise_affine=False)
    else:
        new = copy.deepcopy(norm)
        with torch.no_grad():
            for name, parameter in new.named_parameters(recurse=False):
                parameter.fill_(1.0 if name == "weight" else 0.0)
    return new.train(norm.training)

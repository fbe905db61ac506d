"""Batch normalization with fixed statistics into the linear map before or after it.

In evaluation mode the layer is y = s x + t per channel with s = weight / sqrt(running_var + eps) and
t = bias - s running_mean (Ioffe & Szegedy 2015, arXiv:1502.03167, algorithm 2, line 11).
"""

import copy
import math

import torch
from torch import Tensor, nn

from trimtab.norms._kinds import CONVOLUTIONS, LINEAR_MAPS, TRANSPOSED
from trimtab.norms.folding._plan import Plan, Refused, float64, stand_in, wire_of, with_parameters
from trimtab.norms.folding._wiring import Wiring


def plan_batch_norm(model: nn.Module, wiring: Wiring, name: str) -> Plan:
    """Fold a BatchNorm into the map before it, or else into those after it.

    Args:
        model: The model.
        wiring: Its wiring.
        name: The normalization.

    Returns:
        The fold.

    Raises:
        Refused: If neither is exact.
    """
    norm = model.get_submodule(name)
    scale, shift = scale_and_shift(norm, name)
    wire = wire_of(model, wiring, name)
    if not wire.alone:
        raise Refused(
            f"{name} is called with a keyword or more than one argument: what would stand in its place has no use for a mask"
        )
    try:
        return _into_previous(model, wiring, name, wire.source, scale, shift)
    except Refused as reason:
        before = str(reason)
    try:
        return _into_next(model, wiring, name, wire.users, scale, shift)
    except Refused as reason:
        raise Refused(f"not into what is before it: {before}; not into what is after it: {reason}") from None


def scale_and_shift(norm: nn.Module, name: str = "the layer") -> tuple[Tensor, Tensor]:
    """The affine map of each channel that fixed statistics make of a normalization.

    Args:
        norm: A BatchNorm, SyncBatchNorm, InstanceNorm or frozen batch norm.
        name: Its name, for the message.

    Returns:
        Scale and shift, float64 on the CPU, of shape (C,).

    Raises:
        Refused: If it has no statistics, or would normalize by those of the batch.
    """
    mean, var = norm.running_mean, norm.running_var
    if not isinstance(mean, Tensor) or not isinstance(var, Tensor):
        raise Refused(
            f"{name} has no running statistics (track_running_stats=False): it normalizes by those of its input"
        )
    if norm.training and hasattr(norm, "momentum"):
        raise Refused(
            f"{name} is in training mode and normalizes by the statistics of the batch; call model.eval() first"
        )
    eps = norm.eps
    assert isinstance(eps, float)
    weight = norm.weight if isinstance(norm.weight, Tensor) else None
    bias = norm.bias if isinstance(norm.bias, Tensor) else None
    scale = float64(weight, mean, 1.0) / torch.sqrt(float64(var, var, 1.0) + eps)
    shift = float64(bias, mean, 0.0) - scale * float64(mean, mean, 0.0)
    if not bool(torch.isfinite(scale).all() and torch.isfinite(shift).all()):
        raise Refused(f"{name} has running statistics or parameters that are not finite; recalibrate it first")
    return scale, shift


def _into_previous(
    model: nn.Module, wiring: Wiring, name: str, source: str | None, scale: Tensor, shift: Tensor
) -> Plan:
    layer, wire = _linear_map(model, wiring, source)
    assert source is not None
    if wire != (name,):
        raise Refused(f"the output of {source} is used {len(wire)} times, not by {name} alone")
    weight = float64(layer.weight, layer.weight, 0.0)
    groups = getattr(layer, "groups", 1)
    channels = weight.shape[1] * groups if isinstance(layer, TRANSPOSED) else weight.shape[0]
    _require_channels(name, scale, source, channels)
    norm = model.get_submodule(name)
    identity = stand_in(norm, name, _rank(layer), wiring)
    if isinstance(layer, TRANSPOSED):  # (C_in, C_out / G, ...): the outputs of group g stand in rows g C_in / G and on
        rows = weight.view(groups, -1, *weight.shape[1:])
        weight = (rows * scale.view(groups, 1, -1, *_ones(weight))).view(weight.shape)
    else:
        weight = weight * scale.view(-1, 1, *_ones(weight))
    new = copy.deepcopy(layer)
    with_parameters(new, weight, float64(layer.bias, scale, 0.0) * scale + shift)
    return Plan("batch_norm", (source, name), {source: new, name: identity}, ((source, name),))


def _into_next(
    model: nn.Module, wiring: Wiring, name: str, users: tuple[str | None, ...], scale: Tensor, shift: Tensor
) -> Plan:
    if not users:
        raise Refused(f"nothing was seen to use the output of {name}")
    new: dict[str, nn.Module] = {}
    ranks = set()
    for user in users:
        layer, _ = _linear_map(model, wiring, user)
        assert user is not None
        ranks.add(_rank(layer))
        new[user] = _after(layer, user, name, scale, shift)
    if len(ranks) > 1:
        raise Refused(f"what follows {name} takes inputs of different ranks")
    new[name] = stand_in(model.get_submodule(name), name, ranks.pop(), wiring)
    named = tuple(user for user in users if user is not None)
    return Plan("batch_norm", (name, *named), new, tuple((name, user) for user in named))


def _after(layer: nn.Module, name: str, norm: str, scale: Tensor, shift: Tensor) -> nn.Module:
    """Returns the map with s and t of the normalization before it."""
    assert isinstance(layer, LINEAR_MAPS)
    weight = float64(layer.weight, layer.weight, 0.0)
    groups = getattr(layer, "groups", 1)
    transposed = isinstance(layer, TRANSPOSED)
    _require_channels(norm, scale, name, weight.shape[0] if transposed else weight.shape[1] * groups)
    moved = bool((shift != 0).any())
    if moved and (reason := _why_shift_stays(layer)):
        raise Refused(f"{name}: {reason}")
    if transposed:  # (C_in, C_out / G, ...)
        per_input = weight.view(groups, -1, *weight.shape[1:])
        new_weight = (per_input * scale.view(groups, -1, 1, *_ones(weight))).view(weight.shape)
        taps = torch.einsum(
            "gio,gi->go", per_input.flatten(3).sum(-1) if weight.dim() > 2 else per_input, _by(shift, groups)
        )
    else:  # (C_out, C_in / G, ...)
        per_output = weight.view(groups, -1, *weight.shape[1:])
        new_weight = (per_output * scale.view(groups, 1, -1, *_ones(weight))).view(weight.shape)
        taps = torch.einsum(
            "goi,gi->go", per_output.flatten(3).sum(-1) if weight.dim() > 2 else per_output, _by(shift, groups)
        )
    new = copy.deepcopy(layer)
    bias = float64(layer.bias, taps.flatten(), 0.0) + taps.flatten() if moved else None
    with_parameters(new, new_weight, bias)
    return new


def _why_shift_stays(layer: nn.Module) -> str | None:
    """Returns why a constant added to the input is no constant of the output."""
    if isinstance(layer, TRANSPOSED):
        single = all(k == 1 for k in layer.kernel_size) and all(s == 1 for s in layer.stride)
        padded = any(p != 0 for p in (*layer.padding, *layer.output_padding))
        return None if single and not padded else "a transposed convolution spreads a shift unevenly at the borders"
    if isinstance(layer, CONVOLUTIONS) and layer.padding_mode == "zeros" and _pads(layer):
        return (
            "zero padding: beyond the border the shift of the normalization is missing, so the fold is not exact there"
        )
    return None


def _pads(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> bool:
    """Whether a convolution pads its input; "same" with a kernel of one does not."""
    padding = layer.padding
    if isinstance(padding, str):
        return padding == "same" and any(k > 1 for k in layer.kernel_size)
    return any(p != 0 for p in padding)


def _linear_map(
    model: nn.Module, wiring: Wiring, name: str | None
) -> tuple[nn.Linear | nn.Conv2d | nn.ConvTranspose2d, tuple[str | None, ...]]:
    if name is None:
        raise Refused("there stands no module with one input, one output and nothing between")
    layer = model.get_submodule(name)
    if not isinstance(layer, LINEAR_MAPS):
        raise Refused(f"there stands {name}, a {type(layer).__name__}, which is no linear layer or convolution")
    wire = wire_of(model, wiring, name)
    if layer.weight.dtype.is_complex:
        raise Refused(f"{name} has complex weights")
    return layer, wire.users  # type: ignore[return-value]


def _require_channels(norm: str, scale: Tensor, name: str, channels: int) -> None:
    if len(scale) != channels:
        raise Refused(f"{norm} has {len(scale)} channels and {name} {channels}: another axis is normalized")


def _rank(layer: nn.Module) -> int:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.dim()  # (out, in, *kernel) for an input (N, in, *space)


def _ones(weight: Tensor) -> tuple[int, ...]:
    return (1,) * (weight.dim() - 2)


def _by(values: Tensor, groups: int) -> Tensor:
    return values.view(groups, math.ceil(len(values) / groups))

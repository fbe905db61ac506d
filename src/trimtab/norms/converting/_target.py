"""The new layer: of another kind, with all that the old one held and the new one has a place for."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trimtab.norms._groups import group_count
from trimtab.norms.channel_layers import ChannelAffine, ChannelLayerNorm, ChannelRMSNorm, ChannelsLast
from trimtab.norms.converting._source import Skipped, Source
from trimtab.norms.frozen_batch_norm import FrozenBatchNorm

_BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_INSTANCE_NORMS = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
_UNKNOWN_RANK = "the number of axes of its input is not known; give batches"


@dataclass(frozen=True, slots=True)
class Target:
    """A new layer.

    Attributes:
        module: What stands in the old one's place.
        norm: The layer inside it that holds the parameters; `module` itself mostly.
        exact: Whether it computes the same function, in the mode it is in.
        note: What was taken over, and what the difference is.
        elements: Values per statistic, None without statistics of the input.
        open_statistics: Whether it needs running statistics that nobody has yet.
    """

    module: nn.Module
    norm: nn.Module
    exact: bool
    note: str
    elements: int | None
    open_statistics: bool = False


def build(source: Source, to: str, groups: int | None) -> Target:
    """Make the layer of another kind.

    Args:
        source: The old layer.
        to: The new kind.
        groups: Number of groups of a GroupNorm; None to choose.

    Returns:
        The new layer with weight, bias, eps and statistics of the old one, on its device, in its dtype and mode.

    Raises:
        Skipped: If that kind has no meaning here.
    """
    target = _BUILDERS[to](source, groups)
    _take_over(source, target.norm)
    target.module.train(source.module.training)
    return target


def _to_batch(source: Source, groups: int | None, sync: bool = False) -> Target:
    bias = source.bias is not None or source.kind == "rms_norm"
    momentum = getattr(source.module, "momentum", 0.1)
    tracked = source.mean is not None or source.kind not in ("batch_norm", "sync_batch_norm")
    rank = 3 if source.rows else source.rank
    if sync:
        norm: nn.Module = nn.SyncBatchNorm(source.channels, source.eps, momentum, source.affine, tracked, bias=bias)
    elif isinstance(source.module, nn.BatchNorm1d):  # trimtab's, of either rank
        norm = nn.BatchNorm1d(source.channels, source.eps, momentum, source.affine, tracked, bias=bias)
    elif rank is None or rank not in _BATCH_NORMS:
        raise Skipped(_UNKNOWN_RANK if rank is None else f"there is no BatchNorm for inputs of {rank} axes")
    else:
        norm = _BATCH_NORMS[rank](source.channels, source.eps, momentum, source.affine, tracked, bias=bias)
    elements = None if source.samples is None or source.positions is None else source.samples * source.positions
    if source.mean is None:
        note = "running statistics from the batches" if tracked else "statistics of the batch in both modes, as before"
        return Target(_wrap(source, norm), norm, False, note, elements, open_statistics=tracked)
    if source.fixed and not source.module.training:
        return Target(norm, norm, True, "the same scale and shift in evaluation mode", elements)
    why = "in training mode the statistics are those of the batch" + (", over all ranks" if sync else "")
    return Target(norm, norm, False, why, elements)


def _to_sync(source: Source, groups: int | None) -> Target:
    return _to_batch(source, groups, sync=True)


def _to_frozen(source: Source, groups: int | None) -> Target:
    norm = FrozenBatchNorm(source.channels, source.eps)
    if source.mean is None:
        note = "statistics from the batches, then fixed; nothing of it trains"
        return Target(_wrap(source, norm), norm, False, note, None, open_statistics=True)
    note = "nothing of it trains" if source.fixed else "nothing of it trains; it no longer normalizes by the batch"
    return Target(norm, norm, source.fixed, note, None)


def _to_group(source: Source, groups: int | None) -> Target:
    number = groups or group_count(source.channels, source.positions or 1)
    bias = source.bias is not None or source.kind == "rms_norm"
    norm = nn.GroupNorm(number, source.channels, source.eps, source.affine, bias=bias)
    own = _own_statistics(source)
    same = own and (
        (source.kind == "instance_norm" and number == source.channels)
        or (source.kind == "layer_norm" and number == 1 and source.rank == 2)
    )
    size = source.channels // number
    elements = None if source.positions is None else size * source.positions
    note = f"{number} groups of {size} channels" + (f", {elements} values each" if elements else "")
    return Target(_wrap(source, norm), norm, same, note, elements)


def _to_instance(source: Source, groups: int | None) -> Target:
    rank = 3 if source.rows and source.rank != 2 else source.rank
    if rank == 2 or (rank is not None and rank not in _INSTANCE_NORMS):
        raise Skipped(f"an InstanceNorm needs several positions per channel; the input has {rank} axes")
    if rank is None:
        raise Skipped(_UNKNOWN_RANK)
    bias = source.bias is not None or source.kind == "rms_norm"
    norm = _INSTANCE_NORMS[rank](source.channels, source.eps, affine=source.affine, bias=bias)
    same = _groups_of(source) == source.channels
    note = "statistics of each channel of each sample"
    return Target(_wrap(source, norm), norm, same, note, source.positions)


def _to_layer(source: Source, groups: int | None) -> Target:
    kind = nn.LayerNorm if source.rows or source.rank == 2 else ChannelLayerNorm
    bias = source.bias is not None or source.kind == "rms_norm"
    norm = kind(source.channels, source.eps, source.affine, bias=bias)
    same = _groups_of(source) == 1 and source.rank == 2
    return Target(norm, norm, same, "statistics over the channels at each position", source.channels)


def _to_rms(source: Source, groups: int | None) -> Target:
    kind = nn.RMSNorm if source.rows or source.rank == 2 else ChannelRMSNorm
    norm = kind(source.channels, source.eps, source.affine)
    note = "mean square over the channels at each position"
    if source.bias is not None and bool((source.bias != 0).any()):
        note += "; the bias is dropped, an RMSNorm has none"
    return Target(norm, norm, False, note, source.channels)


def _to_none(source: Source, groups: int | None) -> Target:
    bias = source.bias is not None or source.mean is not None or source.kind == "rms_norm"
    norm = ChannelAffine(source.channels, -1 if source.rows else 1, bias)
    note = "a scale and a shift per channel; nothing is normalized"
    return Target(norm, norm, source.fixed, note, None)


_BUILDERS: dict[str, Callable[[Source, int | None], Target]] = {
    "batch_norm": _to_batch,
    "group_norm": _to_group,
    "layer_norm": _to_layer,
    "instance_norm": _to_instance,
    "rms_norm": _to_rms,
    "frozen_batch_norm": _to_frozen,
    "sync_batch_norm": _to_sync,
    "none": _to_none,
}
TARGETS = tuple(_BUILDERS)


def _groups_of(source: Source) -> int | None:
    return source.module.num_groups if isinstance(source.module, nn.GroupNorm) else None


def _own_statistics(source: Source) -> bool:
    """Whether it normalizes by the statistics of its input in the mode it is in."""
    return source.mean is None or source.module.training


def _wrap(source: Source, norm: nn.Module) -> nn.Module:
    """Returns the layer itself where its channels are where the old one's are."""
    return ChannelsLast(norm) if source.rows and source.rank != 2 else norm


@torch.no_grad()
def _take_over(source: Source, norm: nn.Module) -> None:
    """Give the new layer device, dtype, statistics, weight and bias of the old one."""
    if source.like is not None:
        norm.to(device=source.like.device, dtype=source.like.dtype)
    statistics = (("running_mean", source.mean), ("running_var", source.var))
    for name, value in statistics:
        held = getattr(norm, name, None)
        if value is not None and isinstance(held, Tensor):
            setattr(norm, name, value.detach().clone())
    seen = getattr(source.module, "num_batches_tracked", None)
    if isinstance(seen, Tensor) and isinstance(getattr(norm, "num_batches_tracked", None), Tensor):
        norm.num_batches_tracked = seen.detach().clone()
    scale, shift = source.weight, source.bias
    if isinstance(norm, ChannelAffine) and source.mean is not None and source.var is not None:
        wide = torch.ones_like(source.mean) if scale is None else scale
        slope = wide.double() / torch.sqrt(source.var.double() + source.eps)
        moved = (0.0 if shift is None else shift.double()) - slope * source.mean.double()
        scale, shift = slope.to(wide.dtype), moved.to(wide.dtype)
    set_affine(norm, scale, shift)
    for name, old in (("weight", source.weight), ("bias", source.bias)):
        new = getattr(norm, name, None)
        if isinstance(new, nn.Parameter):
            like_weight = source.weight if old is None else old
            new.requires_grad = not isinstance(like_weight, nn.Parameter) or like_weight.requires_grad


@torch.no_grad()
def set_affine(norm: nn.Module, weight: Tensor | None, bias: Tensor | None) -> None:
    """Write scale and shift where the layer has a place for them.

    Args:
        norm: A layer with `weight` and `bias`, each a parameter, a buffer or None.
        weight: The scale, None to leave it.
        bias: The shift, None to leave it.
    """
    for name, value in (("weight", weight), ("bias", bias)):
        held = getattr(norm, name, None)
        if isinstance(held, Tensor) and value is not None:
            held.copy_(value)

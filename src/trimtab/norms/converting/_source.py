"""What a normalization holds that another kind could take over."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from trimtab.norms._kinds import ROW_KINDS, kind_of, rank_of, why_changed


class Skipped(Exception):  # noqa: N818 -- a reason that is carried to the result, no error of the caller's
    """A layer is left as it is."""


@dataclass(frozen=True, slots=True)
class Source:
    """A normalization, described without its class.

    Attributes:
        module: The layer.
        kind: As `kind_of` calls it.
        channels: Number of channels.
        eps: As a number, also where the layer says None.
        weight: Scale per channel, None without one.
        bias: Shift per channel, None without one.
        mean: Running mean, None without statistics.
        var: Running variance.
        rank: Number of axes of its inputs, None if neither its class nor a batch tells.
        positions: Positions per channel and sample, None if not known.
        samples: Samples in a batch, None if not known.
        like: A tensor on the device and of the dtype of the layer, or of the model if it holds none.
    """

    module: nn.Module
    kind: str
    channels: int
    eps: float
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor | None
    var: Tensor | None
    rank: int | None
    positions: int | None
    samples: int | None
    like: Tensor | None

    @property
    def rows(self) -> bool:
        """Whether the channels are the last axis."""
        return self.kind in ROW_KINDS

    @property
    def fixed(self) -> bool:
        """Whether it is an affine map per channel: running statistics in evaluation mode, or frozen ones."""
        if self.mean is None:
            return False
        return self.kind == "frozen_batch_norm" or not self.module.training

    @property
    def affine(self) -> bool:
        """Whether it has a scale."""
        return self.weight is not None


def describe(module: nn.Module, shape: tuple[int, ...] | None, like: Tensor | None) -> Source:
    """Describe a normalization.

    Args:
        module: A normalization.
        shape: Shape of an input, if one was seen.
        like: A tensor of the model, for layers that hold none.

    Returns:
        The description.

    Raises:
        Skipped: If it is not what its class is known for, or normalizes several axes.
    """
    if reason := why_changed(module):
        raise Skipped(reason)
    kind = kind_of(module)
    assert kind is not None
    mean, var = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    channels = _channels(module, kind)
    rank = len(shape) if shape is not None else rank_of(module)
    positions = 1 if rank == 2 else None
    if shape is not None:
        values = int(torch.Size(shape).numel())
        positions = max(values // max(shape[0] * channels, 1), 1)
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    return Source(
        module,
        kind,
        channels,
        _eps(module, weight),
        weight,
        bias,
        mean,
        var,
        rank,
        positions,
        None if shape is None else shape[0],
        next((t for t in (weight, mean) if isinstance(t, Tensor)), like),
    )


def _channels(module: nn.Module, kind: str) -> int:
    if kind in ROW_KINDS:
        shape: Any = module.normalized_shape
        if len(shape) != 1:
            raise Skipped(f"it normalizes {len(shape)} axes together, with an affine part for each position")
        return int(shape[0])
    if kind == "group_norm":
        return int(cast(int, module.num_channels))
    mean = getattr(module, "running_mean", None)
    return len(mean) if isinstance(mean, Tensor) else int(cast(int, module.num_features))


def _eps(module: nn.Module, weight: Tensor | None) -> float:
    eps = cast(Any, module.eps)
    if eps is None:  # RMSNorm: eps of the type it computes in
        wide = weight is not None and weight.dtype == torch.float64
        return torch.finfo(torch.float64 if wide else torch.float32).eps
    return float(eps)

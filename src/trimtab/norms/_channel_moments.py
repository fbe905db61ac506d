"""Moments of each channel over a stream of tensors, merged by Chan, Golub and LeVeque (1979) in float64 on the device."""

from dataclasses import dataclass

import torch
from torch import Tensor

_PART = 1 << 20  # elements widened to float64 at a time: a temporary that stays in the cache


@dataclass(frozen=True, slots=True)
class ChannelMoments:
    """Count, mean and sum of squared deviations of each channel.

    Attributes:
        count: Values per channel; known from shapes, so that nothing waits for the device.
        mean: Float64 of shape (C,).
        m2: Float64 of shape (C,).
    """

    count: int
    mean: Tensor
    m2: Tensor

    @property
    def variance(self) -> Tensor:
        """Unbiased variance, m2 / (count - 1); nan for one value."""
        return self.m2 / (self.count - 1) if self.count > 1 else torch.full_like(self.m2, torch.nan)

    @property
    def biased_variance(self) -> Tensor:
        """Variance of the values themselves, m2 / count."""
        return self.m2 / self.count


def channel_moments(x: Tensor, axis: int = 1) -> ChannelMoments:
    """Two passes over one tensor, in float64.

    Args:
        x: Floating, of two axes or more: (N, C, ...) for axis 1.
        axis: The channel axis.

    Returns:
        Its moments; nan and infinite where a value is.
    """
    rows = x.detach().movedim(axis, 1)
    per_row = max(rows[0].numel(), 1) if len(rows) else 1
    total: ChannelMoments | None = None
    for part in torch.split(rows, max(1, _PART // per_row)):
        values = part.double()
        axes = [i for i in range(values.dim()) if i != 1]
        mean = values.mean(axes, keepdim=True)
        values = values - mean if values.dtype == x.dtype else values.sub_(mean)  # never in the caller's own memory
        found = ChannelMoments(values.numel() // max(values.shape[1], 1), mean.flatten(), values.square_().sum(axes))
        total = found if total is None else merge(total, found)
    assert total is not None
    return total


def merge(a: ChannelMoments, b: ChannelMoments) -> ChannelMoments:
    """The moments of two disjoint sets of values together.

    Args:
        a: One set.
        b: The other.

    Returns:
        Both.
    """
    if not b.count:
        return a
    if not a.count:
        return b
    count = a.count + b.count
    delta = b.mean - a.mean
    return ChannelMoments(
        count, a.mean + delta * (b.count / count), a.m2 + b.m2 + delta.square() * (a.count * b.count / count)
    )

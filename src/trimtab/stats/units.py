"""Statistics per channel: dead, constant and saturated units, and how much of each depends on the sample."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from trimtab.stats._backend import compiled_kernel
from trimtab.stats._chan import FIELDS
from trimtab.stats._layout import BLOCK
from trimtab.stats._torch_kernel import HUGE, TINY

UNIT_FIELDS = ("units", "silent", "constant", "signal", "edge", "stuck")

_MARGIN = 0.0125  # share of the output range that counts as its edge
_STUCK = 0.95  # share of a unit's elements at the edge that makes it stuck


def channel_rows(tensor: Tensor, axis: int) -> Tensor:
    """Moment rows of each channel, on the tensor's device.

    Args:
        tensor: Real or complex (its modulus), strided.
        axis: The channel axis; all other axes are samples.

    Returns:
        Float64 of shape (channels, 7) in the order of `FIELDS`.
    """
    return _quick_rows(_by_channel(tensor, axis))


def unit_summary(tensor: Tensor, axis: int, low: float | None = None, high: float | None = None) -> Tensor:
    """How many units are dead or saturated, and what share of their output depends on the sample.

    Args:
        tensor: Output of an activation.
        axis: The channel axis; all other axes are samples.
        low: Lower end of the activation's range, such as -1 of tanh.
        high: Upper end of the range.

    Returns:
        Six float64 on the tensor's device, in the order of `UNIT_FIELDS`: units; those exactly 0 for every sample;
        those without variance beyond rounding; variance across samples over second moment, summed over units; share
        of elements within 1.25 % of the range from either end; units of which at least 95 % of elements lie there.
        `signal` is nan when every unit is silent, `edge` and `stuck` are 0 without a range.
    """
    x = _by_channel(tensor, axis)
    units = x.shape[0]
    count, mean, m2, _, top, _, nonfinite = _quick_rows(x).unbind(1)
    variance = m2 / count.clamp(min=1)
    bound = _rounding_variance(count, mean, variance, _real_dtype(tensor))
    whole = (nonfinite == 0) & (count > 0)
    silent = whole & (top == 0)
    constant = whole & (variance <= bound)
    power = (mean.square() + variance).sum()
    edge = stuck = torch.zeros((), dtype=torch.float64, device=x.device)
    if low is not None and high is not None and x.numel():
        margin = _MARGIN * (high - low)
        at_edge = ((x <= low + margin) | (x >= high - margin)).double().mean(1)
        edge, stuck = at_edge.mean(), (at_edge >= _STUCK).sum()
    total = torch.full((), float(units), dtype=torch.float64, device=x.device)
    return torch.stack((total, silent.sum(), constant.sum(), variance.sum() / power, edge, stuck)).double()


def _by_channel(tensor: Tensor, axis: int) -> Tensor:
    """Returns the tensor with channels first, samples flat, real."""
    x = tensor.detach()
    if x.is_complex():
        x = x.abs()
    x = x.movedim(axis, 0)
    return x.reshape(x.shape[0], -1 if x.numel() else 0)


def _rounding_variance(count: Tensor, mean: Tensor, variance: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the variance that rounding alone can give to a constant.

    The first two terms are scikit-learn's bound for the float64 passes (_is_constant_feature). With the tensor's own
    eps they would call everything constant, as n eps passes 1 at 128 bfloat16 samples; its values were rounded when
    they were stored, once each: 16-bit ones from a wider accumulator, the others after a few steps in their own type.
    """
    eps, stored = torch.finfo(torch.float64).eps, torch.finfo(dtype).eps
    ulps = 1 if dtype.itemsize <= 2 else 8
    return count * eps * variance + (count * mean * eps).square() + (ulps * stored * mean).square()


def _real_dtype(tensor: Tensor) -> torch.dtype:
    return tensor.abs().dtype if tensor.is_complex() else tensor.dtype


def _quick_rows(x: Tensor) -> Tensor:
    """Returns the moment rows of channels: the fast ways where they are right, two passes in float64 elsewhere."""
    if type(x) is Tensor and x.is_cpu and x.numel() and not x.is_neg():
        kernel = compiled_kernel()
        measure = None if kernel is None else getattr(kernel, str(x.dtype).removeprefix("torch."), None)
        if measure is not None:
            return _compiled_rows(measure, x.contiguous())
        if x.dtype == torch.float32 and _moderate(x):
            return _float32_rows(x)
    return _float64_rows(x)


def _compiled_rows(measure: Callable[[int, int, int, int], None], x: Tensor) -> Tensor:
    units, n = x.shape
    rows = np.empty((units, len(FIELDS)))
    address, out = x.data_ptr(), rows.ctypes.data
    for unit in range(units):
        measure(address + unit * n * x.itemsize, n, BLOCK, out + unit * rows.strides[0])
    return torch.from_numpy(rows)


def _moderate(x: Tensor) -> bool:
    """Whether all values are finite, and their squares and residuals stay in float32's normal range."""
    low, high = (bound.item() for bound in torch.aminmax(x))
    top = max(-low, high)
    return math.isfinite(low + high) and (top == 0 or TINY <= top <= HUGE)


def _float32_rows(x: Tensor) -> Tensor:
    n = x.shape[1]
    centre = x.sum(1) / n
    delta = x - centre[:, None]
    rest = delta.sum(1).double()  # corrects both moments for the rounding of the centre
    m2 = (torch.linalg.vector_norm(delta, dim=1).double().square() - rest.square() / n).clamp(min=0)
    magnitude = torch.abs(x, out=delta)
    zeros = torch.from_numpy(n - np.count_nonzero(x.numpy(), axis=1))
    rows = (centre.double() + rest / n, m2, magnitude.sum(1) / n, magnitude.amax(1), zeros)
    count = torch.full_like(m2, n)
    return torch.stack([count, *(row.double() for row in rows), torch.zeros_like(m2)], dim=1)


def _float64_rows(x: Tensor) -> Tensor:
    values = x.double()
    finite = values.isfinite()
    values = torch.where(finite, values, 0.0)
    count = finite.sum(1, dtype=torch.float64)
    share = count.clamp(min=1)
    mean = values.sum(1) / share
    delta = torch.where(finite, values - mean[:, None], 0.0)
    m2 = (delta.square().sum(1) - delta.sum(1).square() / share).clamp(min=0)
    magnitude = values.abs()
    top = magnitude.amax(1) if x.shape[1] else torch.zeros_like(count)
    zeros = ((values == 0) & finite).sum(1)
    rows = (count, mean, m2, magnitude.sum(1) / share, top, zeros, x.shape[1] - count)
    assert len(rows) == len(FIELDS)
    return torch.stack([row.double() for row in rows], dim=1)

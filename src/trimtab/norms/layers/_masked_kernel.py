"""Batch normalization over the positions that a mask keeps, three ways.

Compiled for float32 on the CPU where numba is there; otherwise on the CPU the kept positions are packed together, given
to PyTorch's kernel, and put back; everywhere else, and under a compiler, a dozen operations of static shape, which need no
look at the mask's values.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.norms.layers._kernels import compiled_kernel
from trimtab.norms.layers._paths import eager_on_cpu

# Below so many values packing costs less than a function of our own.
_LEAST_COMPILED = 1 << 16
# Squares may be taken about a centre up to so many variances (squared distance) from the mean.
_FAR = 4.0


@dataclass(frozen=True)
class MaskedStatistics:
    """Statistics of one batch over the positions that count.

    Attributes:
        mean: Shape (C,), in the type that was computed in.
        variance: Shape (C,), biased.
        count: Positions that count, a number of the same type.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor


def masked_batch_norm(
    x: Tensor, mask: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, MaskedStatistics]:
    """Normalize each channel by its mean and biased variance over the positions that count.

    y = weight (x - mean) / sqrt(var + eps) + bias where the mask is true, and 0 elsewhere.

    Args:
        x: Shape (N, C, *).
        mask: Shape (N, *), boolean.
        weight: Shape (C,), or None.
        bias: Shape (C,), or None.
        eps: Added to the variance.

    Returns:
        y, and the statistics; without any position that counts they are 0.
    """
    if eager_on_cpu(x, mask, weight, bias):
        if all(t.dtype == torch.float32 for t in (x, weight, bias) if t is not None) and x.numel() >= _LEAST_COMPILED:
            kernel = compiled_kernel("_numba_masked", x)
            if kernel is not None:
                return _compiled(kernel, x, mask, weight, bias, eps)
        if int(mask.sum()) > 1:  # PyTorch's kernel refuses fewer
            return _packed(x, mask, weight, bias, eps)
    return _plain(x, mask, weight, bias, eps)


def _packed(
    x: Tensor, mask: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, MaskedStatistics]:
    last = x.movedim(1, -1)
    values = last[mask]
    count, channels = values.shape
    work = torch.promote_types(x.dtype, torch.float32) if weight is None else weight.dtype
    mean, variance = values.new_zeros(channels, dtype=work), values.new_zeros(channels, dtype=work)
    normalized = functional.batch_norm(values, mean, variance, weight, bias, True, 1.0, eps)
    y = normalized.new_zeros(last.shape).index_put((mask,), normalized)
    unbiased = (count - 1) / count
    return y.movedim(-1, 1), MaskedStatistics(mean, variance * unbiased, torch.tensor(float(count), dtype=work))


def _plain(
    x: Tensor, mask: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, MaskedStatistics]:
    work = torch.promote_types(x.dtype, torch.float32)
    kept, axes = mask.unsqueeze(1), [0, *range(2, x.dim())]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    count = mask.sum().to(work)
    shares = count.clamp(min=1.0)
    mean = torch.where(kept, x.to(work), 0.0).sum(axes) / shares
    centred = torch.where(kept, x.to(work) - mean.view(shape), 0.0)
    variance = centred.square().sum(axes) / shares
    y = centred * torch.rsqrt(variance + eps).view(shape)
    if weight is not None:
        y = y * weight.to(work).view(shape)
    if bias is not None:
        y = torch.where(kept, y + bias.to(work).view(shape), 0.0)
    return y.to(x.dtype), MaskedStatistics(mean.detach(), variance.detach(), count)


def _compiled(
    kernel: ModuleType, x: Tensor, mask: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, MaskedStatistics]:
    last = x.movedim(1, -1)
    channels_last = last.is_contiguous()
    values = last.reshape(-1, x.shape[1]) if channels_last else x.contiguous().view(*x.shape[:2], -1)
    kept = mask.contiguous().to(torch.int32)
    with torch.no_grad():
        statistics = _statistics(kernel, values, kept)
    y: Tensor = _MaskedBatchNorm.apply(  # type: ignore[no-untyped-call]
        values, kept, weight, bias, statistics, kernel, eps
    )
    return y.view(last.shape).movedim(-1, 1) if channels_last else y.view(x.shape), statistics


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """Returns rows, channels and length, which is 0 for channels last."""
    return x.shape[0], x.shape[1], x.shape[2] if x.dim() == 3 else 0


def _statistics(kernel: ModuleType, x: Tensor, kept: Tensor) -> MaskedStatistics:
    count = kept.sum()
    shares = float(count.clamp(min=1))
    best = int(kept.view(len(x), -1).sum(1).argmax())  # a row with something in it, if there is one
    channels = x.shape[1]
    row = torch.where(kept.view(len(x), -1)[best].bool(), x[best].view(channels, -1), 0.0)
    mean = row.sum(1) / kept.view(len(x), -1)[best].sum().clamp(min=1)
    for _ in range(2):
        centre = mean
        sums = x.new_zeros((2, channels), dtype=torch.float64)
        places = (t.data_ptr() for t in (kept, centre, sums[0], sums[1]))
        kernel.products(x.data_ptr(), 0, *places, *_sizes(x))
        rest, squares = sums / shares
        mean, variance = (centre + rest).to(x.dtype), (squares - rest.square()).clamp_(min=0.0)
        if not bool((rest.square() > _FAR * variance).any()):
            break  # otherwise the centre was so far off that it cost digits
    return MaskedStatistics(mean, variance.to(x.dtype), count.to(x.dtype))


class _MaskedBatchNorm(torch.autograd.Function):
    """Channels in front, (N, C, L), or last, (M, C), with the statistics already taken."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        kept: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: MaskedStatistics,
        kernel: ModuleType,
        eps: float,
    ) -> Tensor:
        inverse = torch.rsqrt(statistics.variance + eps)
        scale = inverse if weight is None else inverse * weight
        offset = torch.zeros_like(inverse) if bias is None else bias.contiguous()
        y = torch.empty_like(x)
        places = (t.data_ptr() for t in (kept, statistics.mean, scale, scale, offset, y))
        kernel.combine(x.data_ptr(), 0, *places, *_sizes(x))
        ctx.save_for_backward(x, kept, weight, statistics.mean, inverse, statistics.count)
        ctx.kernel, ctx.eps = kernel, eps
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, kept, weight, mean, inverse, count = ctx.saved_tensors
        if torch.is_grad_enabled() or not eager_on_cpu(dy):  # create_graph=True, or a batch of gradients by vmap
            dx, along, total = _differentiable(dy, x, kept, weight, ctx.eps)
        else:
            dx, along, total = _gradients(ctx.kernel, dy.contiguous(), x, kept, weight, mean, inverse, count)
        wanted = ctx.needs_input_grad
        return dx, None, along if wanted[2] else None, total if wanted[3] else None, None, None, None


def _gradients(
    kernel: ModuleType,
    dy: Tensor,
    x: Tensor,
    kept: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    inverse: Tensor,
    count: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns dx = weight r (dy - mean(dy) - x̂ mean(dy x̂)), sum(dy x̂) and sum(dy), over the kept positions."""
    sums = x.new_zeros((2, x.shape[1]), dtype=torch.float64)
    places = (t.data_ptr() for t in (x, dy, kept, mean, sums[0], sums[1]))
    kernel.products(*places, *_sizes(x))
    total, along = sums[0].to(x.dtype), (sums[1] * inverse).to(x.dtype)
    scale = inverse if weight is None else inverse * weight
    shares = count.clamp(min=1.0)
    slope, offset = -scale * inverse * along / shares, -scale * total / shares
    dx = torch.empty_like(x)
    places = (t.data_ptr() for t in (x, dy, kept, mean, slope, scale, offset, dx))
    kernel.combine(*places, *_sizes(x))
    return dx, along, total


def _differentiable(
    dy: Tensor, x: Tensor, kept: Tensor, weight: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what `_gradients` does, in operations that can be differentiated again."""
    axes = [0] if x.dim() == 2 else [0, 2]
    shape = [1, -1, *[1] * (x.dim() - 2)]
    mask = kept.view(-1, 1).bool() if x.dim() == 2 else kept.view(len(x), 1, -1).bool()
    shares = kept.sum().clamp(min=1)
    mean = torch.where(mask, x, 0.0).sum(axes, keepdim=True) / shares
    centred = torch.where(mask, x - mean, 0.0)
    inverse = torch.rsqrt(centred.square().sum(axes, keepdim=True) / shares + eps)
    normalized, above = centred * inverse, torch.where(mask, dy, 0.0)
    total, along = above.sum(axes, keepdim=True), (above * normalized).sum(axes, keepdim=True)
    scale = inverse if weight is None else inverse * weight.view(shape)
    dx = torch.where(mask, scale * (above - total / shares - normalized * along / shares), 0.0)
    return dx, along.flatten(), total.flatten()

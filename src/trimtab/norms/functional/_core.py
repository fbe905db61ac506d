"""Standardize over some axes, then scale and shift: the one computation behind all of these normalizations.

With n values x that share a statistic, x̂ = (x - μ)/sqrt(σ² + eps) and g = dy γ (Ioffe & Szegedy 2015,
arXiv:1502.03167, section 3, here in its three paths):

    dx = g/sqrt(σ² + eps)  -  mean(g)/sqrt(σ² + eps)  -  x̂ mean(g x̂)/sqrt(σ² + eps)
         through x̂            through μ                  through σ²

The path from μ through σ² is exactly zero. Without centring (RMS) μ = 0 and its path goes.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.norms._arguments import require_tensor
from trimtab.norms.functional._checks import require_parts, require_shape
from trimtab.norms.functional._layout import Layout
from trimtab.norms.functional._parts import Gradients, Normalized

Axes = tuple[int, ...]
Count = int | Tensor


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, else the dtype itself."""
    return torch.float32 if dtype in {torch.float16, torch.bfloat16} else dtype


def _keep(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else torch.where(mask, x, 0.0)  # not a product: padding may hold nan


def count_of(shape: Sequence[int], mask: Tensor | None, axes: Axes) -> Count:
    """How many values share a statistic, of a mask the True ones."""
    count = math.prod([shape[axis] for axis in axes if mask is None or mask.shape[axis] == 1])
    return count if mask is None else mask.sum(axes, keepdim=True) * count


def _divisor(count: Count) -> Count:
    return count if isinstance(count, int) else count.clamp(min=1)  # where nothing counts, sums are zero already


def deviations(x: Tensor, mean: Tensor, mask: Tensor | None, centred: bool) -> Tensor:
    """What is normalized, zero where the mask is False: x - mean, or without centring x."""
    return _keep(x - mean if centred else x, mask)


def statistics(x: Tensor, mask: Tensor | None, axes: Axes, centred: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, biased variance and the deviations, in two passes; without centring zero, the mean square and x."""
    n = _divisor(count_of(x.shape, mask, axes))
    if centred:
        mean = _keep(x, mask).sum(axes, keepdim=True) / n
    else:
        mean = x.new_zeros([1 if axis in axes else size for axis, size in enumerate(x.shape)])
    deviation = deviations(x, mean, mask, centred)
    return mean, deviation.square().sum(axes, keepdim=True) / n, deviation


def affine(x_hat: Tensor, gamma: Tensor | None, beta: Tensor | None, mask: Tensor | None) -> Tensor:
    """Scale and shift: gamma * x_hat + beta, zero where the mask is False."""
    y = x_hat if gamma is None else x_hat * gamma
    return y if beta is None else _keep(y + beta, mask)


def _slopes(
    g: Tensor, x_hat: Tensor, inverse_std: Tensor, n: Count, axes: Axes, centred: bool
) -> tuple[Tensor, Tensor]:
    """What one value of g·x̂'s group gets through the mean, and per unit of x̂ through the variance."""
    through_mean = -g.sum(axes, keepdim=True) / n * inverse_std
    through_variance = -(g * x_hat).sum(axes, keepdim=True) / n * inverse_std
    return (through_mean if centred else torch.zeros_like(through_mean)), through_variance


class Normalize(torch.autograd.Function):
    """y, mean and variance of a view of the input, all three differentiable, any number of times.

    Mean and variance are outputs so that the backward pass, which uses them, is itself a function of the input.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        mask: Tensor | None,
        axes: Axes,
        eps: float,
        centred: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Normalize x over `axes`; gamma, beta and mask broadcast against it."""
        dtype = computing_dtype(x.dtype)
        wide = x.to(dtype)
        mean, variance, deviation = statistics(wide, mask, axes, centred)
        x_hat = deviation * (variance + eps).rsqrt()
        gamma, beta = (None if p is None else p.to(dtype) for p in (gamma, beta))
        return affine(x_hat, gamma, beta, mask).to(x.dtype), mean, variance

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        """Keep what the native kernels keep: the input and two numbers a statistic."""
        x, gamma, beta, mask, ctx.axes, ctx.eps, ctx.centred = inputs
        _, mean, variance = output
        ctx.beta_dtype = None if beta is None else beta.dtype
        ctx.beta_shape = None if beta is None else beta.shape
        ctx.save_for_backward(x, gamma, mask, mean, variance)
        ctx.save_for_forward(x, gamma, mask, mean, variance)

    @staticmethod
    def _saved(ctx: Any) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Count]:
        x, gamma, mask, mean, variance = ctx.saved_tensors
        inverse_std = (variance + ctx.eps).rsqrt()
        x = x.to(variance.dtype)
        x_hat = deviations(x, mean, mask, ctx.centred) * inverse_std
        gamma = None if gamma is None else gamma.to(variance.dtype)
        return x_hat, inverse_std, gamma, mask, _divisor(count_of(x.shape, mask, ctx.axes))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The explicit backward pass, of differentiable operations."""
        dy, dmean, dvariance = gradients
        x_hat, inverse_std, gamma, mask, n = Normalize._saved(ctx)
        narrow, dy = dy.dtype, _keep(dy.to(x_hat.dtype), mask)
        dx = dgamma = dbeta = None
        if ctx.needs_input_grad[0]:
            g = dy if gamma is None else dy * gamma
            shift, slope = _slopes(g, x_hat, inverse_std, n, ctx.axes, ctx.centred)
            if ctx.centred:
                shift = shift + dmean / n
            slope = slope + 2.0 * dvariance / (n * inverse_std)  # x - mean is x_hat / inverse_std
            dx = _keep(torch.addcmul(g * inverse_std + shift, x_hat, slope), mask).to(narrow)
        if gamma is not None and ctx.needs_input_grad[1]:
            dgamma = (dy * x_hat).sum_to_size(gamma.shape).to(ctx.saved_tensors[1].dtype)
        if ctx.beta_shape is not None and ctx.needs_input_grad[2]:
            dbeta = dy.sum_to_size(ctx.beta_shape).to(ctx.beta_dtype)
        return dx, dgamma, dbeta, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The derivative in one direction, for forward-mode differentiation."""
        tx, tgamma, tbeta = tangents[:3]
        x_hat, inverse_std, gamma, mask, n = Normalize._saved(ctx)
        narrow = ctx.saved_tensors[0].dtype
        tx = torch.zeros_like(x_hat) if tx is None else _keep(tx.to(x_hat.dtype), mask)
        shift, slope = _slopes(tx, x_hat, inverse_std, n, ctx.axes, ctx.centred)
        ty = tx * inverse_std + shift + x_hat * slope  # the Jacobian of x_hat is symmetric
        ty = ty if gamma is None else ty * gamma
        ty = ty if tgamma is None else ty + x_hat * tgamma.to(ty.dtype)
        ty = ty if tbeta is None else ty + tbeta.to(ty.dtype)
        return _keep(ty, mask).to(narrow), -shift / inverse_std, -2.0 * slope / inverse_std.square()


def normalize(
    x: Tensor, gamma: Tensor | None, beta: Tensor | None, mask: Tensor | None, axes: Axes, eps: float, centred: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`Normalize`, but a compiler is shown its plain operations: it differentiates and fuses them itself."""
    run = Normalize.forward if torch.compiler.is_compiling() else Normalize.apply
    outputs: tuple[Tensor, Tensor, Tensor] = run(x, gamma, beta, mask, axes, eps, centred)
    return outputs


def apply(
    x: Tensor,
    layout: Layout,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    eps: float,
    centred: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize the input as the layout says; mean and variance come packed."""
    gamma, beta = (None if p is None else layout.spread(p) for p in (weight, bias))
    y, mean, variance = normalize(layout.view(x), gamma, beta, mask, layout.axes, eps, centred)
    return layout.join(y), layout.pack(mean), layout.pack(variance)


def explain(
    x: Tensor,
    layout: Layout,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Tensor | None,
    eps: float,
    centred: bool = True,
    given: tuple[Tensor, Tensor] | None = None,
) -> Normalized:
    """The forward pass with all its parts, made of differentiable operations; `given` are packed statistics."""
    dtype = computing_dtype(x.dtype)
    wide = layout.view(x.to(dtype))
    gamma, beta = (None if p is None else layout.spread(p.to(dtype)) for p in (weight, bias))
    if given is None:
        mean, variance, deviation = statistics(wide, mask, layout.axes, centred)
    else:
        mean, variance = (layout.unpack(statistic.detach().to(dtype)) for statistic in given)
        deviation = deviations(wide, mean, mask, centred)
    inverse_std = (variance + eps).rsqrt()
    x_hat = deviation * inverse_std
    count = count_of(layout.shape, mask, layout.axes)
    return Normalized(
        output=layout.join(affine(x_hat, gamma, beta, mask)).to(x.dtype),
        normalized=layout.join(x_hat),
        mean=layout.pack(mean),
        variance=layout.pack(variance),
        inverse_std=layout.pack(inverse_std),
        count=count if isinstance(count, int) else layout.pack(count.expand_as(mean)),
        weight=weight,
        bias=bias,
        fixed=given is not None,
        centred=centred,
        layout=layout,
        mask=mask,
    )


def _projected(g: Tensor, x_hat: Tensor, n: Count, axes: Axes, centred: bool) -> Tensor:
    """The energy of g that is not in dx / inverse_std, as a share of it."""
    # 1 - sum dx² / (inverse_std² sum g²) cancels. With m = mean(g), s = mean(g x̂) and r = mean(x̂²) = σ²/(σ² + eps) it
    # is (m² + s² (2 - r)) / mean(g²). In float64, since squares of small gradients underflow.
    g, x_hat = g.double(), x_hat.double()
    along_x = (g * x_hat).sum(axes, keepdim=True) / n
    taken = along_x.square() * (2.0 - x_hat.square().sum(axes, keepdim=True) / n)
    if centred:
        taken = taken + (g.sum(axes, keepdim=True) / n).square()
    energy = g.square().sum(axes, keepdim=True) / n
    return torch.where(energy > 0.0, taken / energy, 0.0).clamp(max=1.0)


def normalization_backward(dy: Tensor, normalized: Normalized) -> Gradients:
    """The explicit backward pass: dx in its three paths, dgamma, dbeta and the share that is projected out.

    One function serves batch, layer, group, instance and RMS normalization: what differs is in `normalized`. It is
    made of differentiable operations. What a mask leaves out gets a gradient of zero.

    Args:
        dy: Gradient at the output, shape of the input.
        normalized: What the forward pass returned.

    Returns:
        The parts; the three paths add up to dx.

    Raises:
        NormalizationError: If dy has another shape, or `normalized` is something else.
    """
    require_parts(normalized, Normalized)
    require_tensor("dy", dy)
    require_shape("dy", dy, normalized.normalized.shape, "the shape of the output")
    layout, mask, axes = normalized.layout, normalized.mask, normalized.layout.axes
    x_hat, inverse_std = layout.view(normalized.normalized), layout.unpack(normalized.inverse_std)
    dy = _keep(layout.view(dy.to(x_hat.dtype)), mask)
    weight = normalized.weight
    g = dy if weight is None else dy * layout.spread(weight.to(dy.dtype))
    n = _divisor(count_of(x_hat.shape, mask, axes))
    if normalized.fixed:
        shift = slope = torch.zeros_like(inverse_std)
        share = torch.zeros_like(inverse_std)
    else:
        shift, slope = _slopes(g, x_hat, inverse_std, n, axes, normalized.centred)
        share = _projected(g, x_hat, n, axes, normalized.centred).to(g.dtype)
    paths = (g * inverse_std, _keep(shift.expand_as(g), mask), x_hat * slope)
    through_normalized, through_mean, through_variance = (layout.join(path) for path in paths)
    return Gradients(
        dx=through_normalized + through_mean + through_variance,
        through_normalized=through_normalized,
        through_mean=through_mean,
        through_variance=through_variance,
        dgamma=layout.gather(dy * x_hat),
        dbeta=layout.gather(dy),
        projected=layout.pack(share),
    )

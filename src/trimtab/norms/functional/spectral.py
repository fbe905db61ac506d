"""Spectral normalization of a matrix (Miyato et al. 2018, arXiv:1802.05957): a weight over its largest singular value.

Of a convolution's kernel this takes the reshaped matrix, as PyTorch does, which does not bound the operator norm of the
convolution.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import is_whole, refuse, require_eps, require_tensor, shown
from trimtab.norms.functional._checks import require_floating, require_parts, require_shape
from trimtab.norms.functional._core import computing_dtype
from trimtab.norms.functional._parts import SpectralGradients, SpectralNormalized


def _matrix(weight: Tensor, dim: int) -> Tensor:
    rows = weight.movedim(dim, 0)
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


def _outer(u: Tensor, v: Tensor, weight: Tensor, dim: int) -> Tensor:
    """The product u v^T in the shape of the weight."""
    rest = [n for axis, n in enumerate(weight.shape) if axis != dim % weight.dim()]
    return (u.unsqueeze(1) * v).reshape(len(u), *rest).movedim(0, dim)


def _bilinear(u: Tensor, matrix: Tensor, v: Tensor) -> Tensor:
    """u^T W v, by products and sums, which autocast leaves in their precision."""
    return (u * (matrix * v).sum(1)).sum()


class _Divide(torch.autograd.Function):
    """W / (u^T W v) and u^T W v, both differentiable in W any number of times; u and v are constants."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, u: Tensor, v: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        wide = weight.to(computing_dtype(weight.dtype))
        sigma = _bilinear(u, _matrix(wide, dim), v)
        return (wide / sigma).to(weight.dtype), sigma

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        weight, u, v, ctx.dim = inputs
        ctx.save_for_backward(weight, u, v, output[1])
        ctx.save_for_forward(weight, u, v, output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dy, dsigma = gradients
        weight, u, v, sigma = ctx.saved_tensors
        through_weight, back = _slopes(dy, weight, sigma)
        through_sigma = (back + dsigma) * _outer(u, v, weight, ctx.dim)
        return (through_weight + through_sigma).to(weight.dtype), None, None, None

    @staticmethod
    def jvp(ctx: Any, tweight: Tensor, *_: Tensor | None) -> tuple[Tensor, Tensor]:
        weight, u, v, sigma = ctx.saved_tensors
        wide, tangent = weight.to(sigma.dtype), tweight.to(sigma.dtype)
        tsigma = _bilinear(u, _matrix(tangent, ctx.dim), v)
        return ((tangent - wide / sigma * tsigma) / sigma).to(weight.dtype), tsigma


def _slopes(dy: Tensor, weight: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """The path that holds sigma still, dy / sigma, and the gradient at sigma."""
    through_weight = dy.to(sigma.dtype) / sigma
    return through_weight, -(through_weight * weight.to(sigma.dtype)).sum() / sigma


def _divide(weight: Tensor, u: Tensor, v: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    run = _Divide.forward if torch.compiler.is_compiling() else _Divide.apply  # see _core.normalize
    outputs: tuple[Tensor, Tensor] = run(weight, u, v, dim)
    return outputs


def spectral_state(
    weight: Tensor,
    dim: int = 0,
    n_power_iterations: int = 15,
    eps: float = 1e-12,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Random unit vectors u and v, brought towards the first singular vectors: the state to begin with.

    Args:
        weight: Two axes or more.
        dim: The axis whose entries are the rows of the matrix.
        n_power_iterations: How many power iterations to do; PyTorch does 15.
        eps: Least norm that is divided by.
        generator: Where the numbers come from, or None for torch's own.

    Returns:
        u of shape (rows,) and v of shape (columns,), of norm 1, in float32 or the weight's float64.

    Raises:
        NormalizationError: If the weight, `dim`, `n_power_iterations` or eps cannot be used.
    """
    _check(weight, dim, n_power_iterations, eps)
    if generator is not None and not isinstance(generator, torch.Generator):
        refuse("generator", generator, "a torch.Generator is needed, or None for torch's own")
    rows, columns = _matrix(weight, dim).shape
    dtype = computing_dtype(weight.dtype)
    u, v = (
        normalize(torch.randn(n, generator=generator, dtype=dtype, device=weight.device), dim=0, eps=eps)
        for n in (rows, columns)
    )
    return _iterate(weight, u, v, n_power_iterations, eps, dim)


def _check(weight: Tensor, dim: int, n_power_iterations: int, eps: float) -> None:
    require_floating("weight", weight)
    require_eps(eps)
    if weight.dim() < 2:
        raise NormalizationError(
            f"weight has shape {tuple(weight.shape)}; a matrix is needed, two axes or more (a vector's spectral norm is "
            "its length: divide by it, or use weight_norm)"
        )
    if not is_whole(dim) or not -weight.dim() <= dim < weight.dim():
        raise NormalizationError(
            f"dim is {shown(dim)} for a weight of shape {tuple(weight.shape)}; one of its axes is needed"
        )
    if not is_whole(n_power_iterations) or n_power_iterations < 0:
        refuse("n_power_iterations", n_power_iterations, "0 or more are needed (0 takes u and v as they point)")


@torch.no_grad()
def _iterate(weight: Tensor, u: Tensor, v: Tensor, steps: int, eps: float, dim: int) -> tuple[Tensor, Tensor]:
    dtype = computing_dtype(weight.dtype)
    matrix = _matrix(weight.detach().to(dtype), dim)
    # An average over steps, or a bad checkpoint, has vectors that are too short: sigma would be too small with them.
    u, v = (normalize(given.detach().to(dtype), dim=0, eps=eps) for given in (u, v))
    for _ in range(steps):
        u = normalize((matrix * v).sum(1), dim=0, eps=eps)
        v = normalize((matrix * u.unsqueeze(1)).sum(0), dim=0, eps=eps)
    return u, v


def _prepare(
    weight: Tensor, u: Tensor, v: Tensor, n_power_iterations: int, eps: float, dim: int
) -> tuple[Tensor, Tensor]:
    _check(weight, dim, n_power_iterations, eps)
    rows, columns = _matrix(weight, dim).shape
    require_floating("u", u)
    require_floating("v", v)
    require_shape("u", u, (rows,), f"one value a row of the weight's matrix, {rows} x {columns} (see spectral_state)")
    require_shape("v", v, (columns,), f"one value a column of the weight's matrix, {rows} x {columns}")
    return _iterate(weight, u, v, n_power_iterations, eps, dim)


def spectral_norm(
    weight: Tensor, u: Tensor, v: Tensor, n_power_iterations: int = 1, eps: float = 1e-12, dim: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Spectral normalization: W / sigma with sigma = u^T W v, after power iterations on u and v.

    Equal to what `torch.nn.utils.parametrizations.spectral_norm` computes, but that in evaluation mode takes u and v of any
    length as they are: halves of them make its weight four times as large. u and v are held constant in the backward
    pass: no gradient goes through the iteration, none to u and v. At the singular vectors that is exact, since the
    derivative of sigma is u v^T there. Nothing changes in place: the state comes in and goes out. A weight of zeros
    gives nan, as in PyTorch.

    Args:
        weight: Two axes or more; its other axes are flattened. Half precision is computed in float32.
        u: Left vector, shape (rows,); `spectral_state` makes the first. Only its direction counts, its length is made 1.
        v: Right vector, shape (columns,), of which the same is true.
        n_power_iterations: How many power iterations to do first; 0 takes the directions as they are, as in evaluation.
        eps: Least norm that is divided by in the iteration.
        dim: The axis whose entries are the rows of the matrix.

    Returns:
        The normalized weight, with its shape and dtype, and u and v for the next call.

    Raises:
        NormalizationError: If the weight, `dim`, `n_power_iterations`, eps or the shapes of u and v cannot be used.
    """
    u, v = _prepare(weight, u, v, n_power_iterations, eps, dim)
    return _divide(weight, u, v, dim)[0], u, v


def spectral_norm_forward(
    weight: Tensor, u: Tensor, v: Tensor, n_power_iterations: int = 1, eps: float = 1e-12, dim: int = 0
) -> SpectralNormalized:
    """The forward pass of `spectral_norm` with all its parts, for `spectral_norm_backward`.

    Args:
        weight: As in `spectral_norm`.
        u: As in `spectral_norm`.
        v: As in `spectral_norm`.
        n_power_iterations: As in `spectral_norm`.
        eps: As in `spectral_norm`.
        dim: As in `spectral_norm`.

    Returns:
        The parts.

    Raises:
        NormalizationError: As in `spectral_norm`.
    """
    u, v = _prepare(weight, u, v, n_power_iterations, eps, dim)
    normalized, sigma = _divide(weight, u, v, dim)
    return SpectralNormalized(weight=normalized, sigma=sigma, u=u, v=v, original=weight, dim=dim)


def spectral_norm_backward(dy: Tensor, normalized: SpectralNormalized) -> SpectralGradients:
    """The explicit backward pass: through the weight, and through sigma with u and v held constant.

    Args:
        dy: Gradient at the normalized weight, of its shape.
        normalized: What `spectral_norm_forward` returned.

    Returns:
        The parts, made of differentiable operations; the two paths add up to `dweight`.

    Raises:
        NormalizationError: If dy has another shape, or `normalized` is something else.
    """
    require_parts(normalized, SpectralNormalized)
    require_tensor("dy", dy)
    weight = normalized.original
    require_shape("dy", dy, weight.shape, "the shape of the weight")
    through_weight, dsigma = _slopes(dy, weight, normalized.sigma)
    through_sigma = dsigma * _outer(normalized.u, normalized.v, weight, normalized.dim)
    return SpectralGradients(
        dweight=through_weight + through_sigma,
        through_weight=through_weight,
        through_sigma=through_sigma,
        dsigma=dsigma,
    )

"""Weight normalization (Salimans & Kingma 2016, arXiv:1602.07868): length and direction of a weight apart."""

import math

import torch
from torch import Tensor

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import is_whole, refuse, require_tensor
from trimtab.norms.functional._checks import require_floating, require_parts, require_shape
from trimtab.norms.functional._core import computing_dtype, normalize
from trimtab.norms.functional._parts import WeightGradients, WeightNormalized


def _axes(v: Tensor, g: Tensor, dim: int | None) -> tuple[int, ...]:
    """The axes of v that share a length, and a last one of size 1, so that there always is one to sum over."""
    require_floating("v", v)
    require_floating("g", g)
    if dim is not None and not is_whole(dim):
        refuse("dim", dim, "the number of an axis is needed, or None for one length over the whole weight")
    if dim is None or dim == -1:
        dim, shape, meaning = None, g.shape if g.numel() == 1 else (), "one length for the whole weight"
    elif 0 <= dim < v.dim():
        shape = torch.Size(n if axis == dim else 1 for axis, n in enumerate(v.shape))
        meaning = f"one length for each index of axis {dim} of v, whose shape is {tuple(v.shape)}"
    else:
        raise NormalizationError(
            f"dim is {dim} for v of shape {tuple(v.shape)}; an axis counted from the front is needed, "
            "or None (PyTorch's code for it is -1) for one length over the whole weight"
        )
    require_shape("g", g, shape, meaning)
    return tuple(axis for axis in range(v.dim() + 1) if axis != dim)


def _spread(g: Tensor, v: Tensor) -> Tensor:
    return (g if g.dim() == v.dim() else g.reshape([1] * v.dim())).unsqueeze(-1)


def weight_norm(v: Tensor, g: Tensor, dim: int | None = 0) -> Tensor:
    """Weight normalization: w = g v / |v|, the norm taken over all axes but `dim`.

    Equal to what `torch.nn.utils.parametrizations.weight_norm` computes. It is RMS normalization of v without eps, with
    g / sqrt(n) for a weight, and has its explicit backward pass. A v of zeros has no direction: nan, as in PyTorch.

    Args:
        v: The direction, of any length; half precision is computed in float32.
        g: The length, shaped like v with 1 in place of the axes that are summed (of one element where `dim` is None).
        dim: The axis that keeps a length for each index, counted from the front; None (PyTorch's code for it is -1) for
            one length over the whole weight.

    Returns:
        The weight, with shape and dtype of v.

    Raises:
        NormalizationError: If v or g is not floating, there is no such axis, or g has another shape.
    """
    axes = _axes(v, g, dim)
    x = v.unsqueeze(-1)
    gamma = _spread(g, v).to(computing_dtype(v.dtype)) / math.sqrt(math.prod([x.shape[axis] for axis in axes]))
    return normalize(x, gamma, None, None, axes, 0.0, False)[0].squeeze(-1)


def weight_norm_forward(v: Tensor, g: Tensor, dim: int | None = 0) -> WeightNormalized:
    """The forward pass of `weight_norm` with all its parts, for `weight_norm_backward`.

    Args:
        v: As in `weight_norm`.
        g: As in `weight_norm`.
        dim: As in `weight_norm`.

    Returns:
        The parts.

    Raises:
        NormalizationError: As in `weight_norm`.
    """
    axes = _axes(v, g, dim)
    x = v.to(computing_dtype(v.dtype)).unsqueeze(-1)
    norm = x.square().sum(axes, keepdim=True).sqrt()
    direction = x / norm
    return WeightNormalized(
        weight=(_spread(g, v).to(x.dtype) * direction).squeeze(-1).to(v.dtype),
        direction=direction.squeeze(-1),
        norm=norm.reshape(g.shape),
        g=g,
        axes=axes,
    )


def weight_norm_backward(dw: Tensor, normalized: WeightNormalized) -> WeightGradients:
    """The explicit backward pass: what goes along v to g, and what goes across v to v.

    Args:
        dw: Gradient at the weight, of its shape.
        normalized: What `weight_norm_forward` returned.

    Returns:
        The parts, made of differentiable operations; dv = gain * tangential, radial + tangential = dw.

    Raises:
        NormalizationError: If dw has another shape, or `normalized` is something else.
    """
    require_parts(normalized, WeightNormalized)
    require_tensor("dw", dw)
    direction, axes = normalized.direction.unsqueeze(-1), normalized.axes
    require_shape("dw", dw, normalized.direction.shape, "the shape of the weight")
    dw = dw.to(direction.dtype).unsqueeze(-1)
    along = (dw * direction).sum(axes, keepdim=True)
    radial = along * direction
    tangential = dw - radial
    energy = dw.double().square().sum(axes, keepdim=True)
    share = torch.where(energy > 0.0, along.double().square() / energy, 0.0).clamp(max=1.0).to(dw.dtype)
    g = normalized.g
    return WeightGradients(
        dv=(_spread(normalized.gain, normalized.direction) * tangential).squeeze(-1),
        dg=along.reshape(g.shape),
        radial=radial.squeeze(-1),
        tangential=tangential.squeeze(-1),
        projected=share.reshape(g.shape),
    )

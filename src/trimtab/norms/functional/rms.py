"""RMS normalization (Zhang & Sennrich 2019, arXiv:1910.07467): layer normalization without centring."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.norms._arguments import require_eps
from trimtab.norms.functional._checks import require_floating
from trimtab.norms.functional._core import apply, computing_dtype, explain
from trimtab.norms.functional._core import normalization_backward as rms_norm_backward
from trimtab.norms.functional._layout import Layout, check_parameters, mask_of_leading, over_trailing
from trimtab.norms.functional._parts import Normalized

__all__ = ["rms_norm", "rms_norm_backward", "rms_norm_forward"]


def _prepare(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    mask: Tensor | None,
) -> tuple[Layout, Tensor | None, float]:
    require_floating("input", input)
    eps = torch.finfo(computing_dtype(input.dtype)).eps if eps is None else eps
    require_eps(eps)
    layout, trailing = over_trailing(input.shape, normalized_shape)
    check_parameters(trailing, "normalized_shape", weight=weight)
    return layout, mask_of_leading(mask, input.shape), eps


def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """RMS normalization: y = x / sqrt(mean(x²) + eps) * weight, the mean taken over the trailing axes.

    Equal to `torch.nn.functional.rms_norm` where both are defined; its backward pass is the explicit one. There is no
    path through a mean.

    Args:
        input: Shape (..., *normalized_shape). Half precision is computed in float32.
        normalized_shape: The trailing sizes that are normalized together; one number stands for the last axis.
        weight: gamma, shape `normalized_shape`, or None for ones.
        eps: Added to the mean square, > 0; None is the machine epsilon of the computation, as in PyTorch: 1.19e-7,
            also for half precision, or 2.2e-16 in float64.
        mask: As in `layer_norm`.

    Returns:
        The normalized input, of its shape and dtype.

    Raises:
        NormalizationError: If dtype, shape, mask or eps cannot be used.
    """
    layout, mask, eps = _prepare(input, normalized_shape, weight, eps, mask)
    return apply(input, layout, weight, None, mask, eps, centred=False)[0]


def rms_norm_forward(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    mask: Tensor | None = None,
) -> Normalized:
    """The forward pass of `rms_norm` with all its parts, for `rms_norm_backward`.

    Args:
        input: As in `rms_norm`.
        normalized_shape: As in `rms_norm`.
        weight: As in `rms_norm`.
        eps: As in `rms_norm`.
        mask: As in `rms_norm`.

    Returns:
        The parts; statistics have the shape of the axes that are not normalized, `mean` is zero and `variance` the
        mean square.

    Raises:
        NormalizationError: As in `rms_norm`.
    """
    layout, mask, eps = _prepare(input, normalized_shape, weight, eps, mask)
    return explain(input, layout, weight, None, mask, eps, centred=False)

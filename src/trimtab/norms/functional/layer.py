"""Layer normalization (Ba, Kiros & Hinton 2016, arXiv:1607.06450): one statistic a token."""

from collections.abc import Sequence

from torch import Tensor

from trimtab.norms._arguments import require_eps
from trimtab.norms.functional._checks import require_floating
from trimtab.norms.functional._core import apply, explain
from trimtab.norms.functional._core import normalization_backward as layer_norm_backward
from trimtab.norms.functional._layout import Layout, check_parameters, mask_of_leading, over_trailing
from trimtab.norms.functional._parts import Normalized

__all__ = ["layer_norm", "layer_norm_backward", "layer_norm_forward"]


def _prepare(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    mask: Tensor | None,
) -> tuple[Layout, Tensor | None]:
    require_floating("input", input)
    require_eps(eps)
    layout, trailing = over_trailing(input.shape, normalized_shape)
    check_parameters(trailing, "normalized_shape", weight=weight, bias=bias)
    return layout, mask_of_leading(mask, input.shape)


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
) -> Tensor:
    """Layer normalization: y = (x - mean) / sqrt(variance + eps) * weight + bias over the trailing axes.

    Equal to `torch.nn.functional.layer_norm` where both are defined; its backward pass is the explicit one.

    Args:
        input: Shape (..., *normalized_shape). Half precision is computed in float32.
        normalized_shape: The trailing sizes that are normalized together; one number stands for the last axis.
        weight: gamma, shape `normalized_shape`, or None for ones.
        bias: beta, shape `normalized_shape`, or None for zeros.
        eps: Added to the variance, > 0.
        mask: Boolean, the shape of one or more leading axes of the input ((N, L) for (N, L, C)), True where a value
            counts. Where the statistics are taken over a padded axis, they are those of the other values alone; what
            is left out comes out as zero and gets a gradient of zero.

    Returns:
        The normalized input, of its shape and dtype.

    Raises:
        NormalizationError: If dtype, shape, mask or eps cannot be used.
    """
    layout, mask = _prepare(input, normalized_shape, weight, bias, eps, mask)
    return apply(input, layout, weight, bias, mask, eps)[0]


def layer_norm_forward(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
) -> Normalized:
    """The forward pass of `layer_norm` with all its parts, for `layer_norm_backward`.

    Args:
        input: As in `layer_norm`.
        normalized_shape: As in `layer_norm`.
        weight: As in `layer_norm`.
        bias: As in `layer_norm`.
        eps: As in `layer_norm`.
        mask: As in `layer_norm`.

    Returns:
        The parts; statistics have the shape of the axes that are not normalized.

    Raises:
        NormalizationError: As in `layer_norm`.
    """
    layout, mask = _prepare(input, normalized_shape, weight, bias, eps, mask)
    return explain(input, layout, weight, bias, mask, eps)

"""Batch normalization (Ioffe & Szegedy 2015, arXiv:1502.03167): one statistic a channel."""

from torch import Tensor

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import require_eps, require_flag
from trimtab.norms.functional._checks import require_floating
from trimtab.norms.functional._core import apply, count_of, explain
from trimtab.norms.functional._core import normalization_backward as batch_norm_backward
from trimtab.norms.functional._layout import Layout, check_parameters, mask_of_positions, over_batch
from trimtab.norms.functional._parts import Normalized
from trimtab.norms.functional._running import Buffers, check_buffers, check_update, move, needed

__all__ = ["batch_norm", "batch_norm_backward", "batch_norm_forward"]


def _prepare(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    eps: float,
    mask: Tensor | None,
    channel_axis: int,
) -> tuple[Layout, Buffers, Tensor | None]:
    require_floating("input", input)
    require_eps(eps)
    require_flag(training=training)
    layout = over_batch(input.shape, channel_axis)
    channels = input.shape[channel_axis]
    check_parameters((channels,), "one value a channel", weight=weight, bias=bias)
    if training and mask is None and layout.count == 1:
        raise NormalizationError(
            f"input has shape {tuple(input.shape)}: one value a channel, which batch statistics turn into the bias; "
            "two or more are needed in training (drop the last batch, or use running statistics)"
        )
    buffers = check_buffers(running_mean, running_var, channels)
    return layout, buffers, mask_of_positions(mask, layout, input.shape, channel_axis)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
    channel_axis: int = 1,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:
    """Batch normalization: y = (x - mean) / sqrt(variance + eps) * weight + bias, one mean and variance a channel.

    Equal to `torch.nn.functional.batch_norm` where both are defined; its backward pass is the explicit one.

    Args:
        input: Shape (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W), or with the channels elsewhere; any memory
            format. Half precision is computed in float32.
        running_mean: Shape (C,), or None for none; moved in place in training.
        running_var: Shape (C,), or None for none; moved in place in training, by the unbiased variance.
        weight: gamma, shape (C,), or None for ones.
        bias: beta, shape (C,), or None for zeros.
        training: Whether to normalize with the statistics of the input rather than the running ones.
        momentum: Weight of the new statistic in the running ones; None takes the plain average over all batches.
        eps: Added to the variance, > 0.
        mask: Boolean, the shape of the input without channels ((N, L) for (N, C, L)), True where a value counts. The
            result is as if the other values did not exist; they come out as zero and get a gradient of zero. A batch
            with fewer than two values moves no running statistics.
        channel_axis: The axis of the channels; -1 for channels last.
        num_batches_tracked: Scalar integer tensor, counted up in training; needed if momentum is None.

    Returns:
        The normalized input, of its shape and dtype.

    Raises:
        NormalizationError: If dtype, shape, mask or eps cannot be used, one value a channel is all there is in
            training, or running statistics are missing without training.
    """
    require_floating("input", input)
    if input.numel() == 0 and input.dim() == 1:
        return input.clone()  # PyTorch passes an empty vector, though it has no channels
    check_update(momentum, num_batches_tracked)
    layout, buffers, mask = _prepare(input, running_mean, running_var, weight, bias, training, eps, mask, channel_axis)
    if not training:
        given = needed(buffers, "training=False")
        return explain(input, layout, weight, bias, mask, eps, given=given).output
    y, mean, variance = apply(input, layout, weight, bias, mask, eps)
    if buffers is not None:
        count = count_of(layout.shape, mask, layout.axes)
        move(buffers, mean, variance, count, momentum, num_batches_tracked)
    return y


def batch_norm_forward(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
    channel_axis: int = 1,
) -> Normalized:
    """The forward pass of `batch_norm` with all its parts, for `batch_norm_backward`; it moves no buffer.

    Args:
        input: As in `batch_norm`.
        running_mean: As in `batch_norm`, only read.
        running_var: As in `batch_norm`, only read.
        weight: As in `batch_norm`.
        bias: As in `batch_norm`.
        training: As in `batch_norm`; if false, no gradient goes through mean and variance.
        eps: As in `batch_norm`.
        mask: As in `batch_norm`.
        channel_axis: As in `batch_norm`.

    Returns:
        The parts; statistics have shape (C,).

    Raises:
        NormalizationError: As in `batch_norm`.
    """
    layout, buffers, mask = _prepare(input, running_mean, running_var, weight, bias, training, eps, mask, channel_axis)
    given = None if training else needed(buffers, "training=False")
    return explain(input, layout, weight, bias, mask, eps, given=given)

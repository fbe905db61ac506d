"""Group normalization (Wu & He 2018, arXiv:1803.08494) and instance normalization (Ulyanov et al., arXiv:1607.08022).

One statistic a sample and group of channels; with one channel in each group that is instance normalization.
"""

from torch import Tensor

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import require_eps, require_flag, require_number
from trimtab.norms.functional._checks import require_floating
from trimtab.norms.functional._core import apply, count_of, explain
from trimtab.norms.functional._core import normalization_backward as group_norm_backward
from trimtab.norms.functional._core import normalization_backward as instance_norm_backward
from trimtab.norms.functional._layout import Layout, check_parameters, mask_of_positions, over_batch, over_groups
from trimtab.norms.functional._parts import Normalized
from trimtab.norms.functional._running import Buffers, check_buffers, move, needed

__all__ = [
    "group_norm",
    "group_norm_backward",
    "group_norm_forward",
    "instance_norm",
    "instance_norm_backward",
    "instance_norm_forward",
]


def _prepare_group(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    mask: Tensor | None,
    channel_axis: int,
) -> tuple[Layout, Tensor | None]:
    require_floating("input", input)
    require_eps(eps)
    layout = over_groups(input.shape, num_groups, channel_axis)
    check_parameters((input.shape[channel_axis],), "one value a channel", weight=weight, bias=bias)
    if layout.count * input.shape[0] == 1:
        raise NormalizationError(
            f"input has shape {tuple(input.shape)} and num_groups is {num_groups}: a group is one value, which turns "
            "into the bias; more channels in a group, or more positions, are needed"
        )
    return layout, mask_of_positions(mask, layout, input.shape, channel_axis)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
    channel_axis: int = 1,
) -> Tensor:
    """Group normalization: y = (x - mean) / sqrt(variance + eps) * weight + bias over groups of channels.

    Equal to `torch.nn.functional.group_norm` where both are defined; its backward pass is the explicit one.

    Args:
        input: Shape (N, C, *), or with the channels elsewhere; any memory format. Half precision is computed in float32.
        num_groups: How many groups the channels form; must divide C.
        weight: gamma, shape (C,), or None for ones.
        bias: beta, shape (C,), or None for zeros.
        eps: Added to the variance, > 0.
        mask: Boolean, the shape of the input without channels ((N, L) for (N, C, L)), True where a value counts. The
            result is as if the other values did not exist; they come out as zero and get a gradient of zero.
        channel_axis: The axis of the channels; -1 for channels last.

    Returns:
        The normalized input, of its shape and dtype.

    Raises:
        NormalizationError: If dtype, shape, mask or eps cannot be used, the groups do not divide the channels, or a
            lone sample's groups are of one value (PyTorch's own rule; with more samples a group of one value passes
            and comes out as the bias).
    """
    layout, mask = _prepare_group(input, num_groups, weight, bias, eps, mask, channel_axis)
    return apply(input, layout, weight, bias, mask, eps)[0]


def group_norm_forward(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
    channel_axis: int = 1,
) -> Normalized:
    """The forward pass of `group_norm` with all its parts, for `group_norm_backward`.

    Args:
        input: As in `group_norm`.
        num_groups: As in `group_norm`.
        weight: As in `group_norm`.
        bias: As in `group_norm`.
        eps: As in `group_norm`.
        mask: As in `group_norm`.
        channel_axis: As in `group_norm`.

    Returns:
        The parts; statistics have shape (N, num_groups).

    Raises:
        NormalizationError: As in `group_norm`.
    """
    layout, mask = _prepare_group(input, num_groups, weight, bias, eps, mask, channel_axis)
    return explain(input, layout, weight, bias, mask, eps)


def _prepare_instance(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    use_input_stats: bool,
    eps: float,
    mask: Tensor | None,
    channel_axis: int,
) -> tuple[Layout, Buffers, Tensor | None]:
    require_floating("input", input)
    require_eps(eps)
    require_flag(use_input_stats=use_input_stats)
    layout = over_batch(input.shape, channel_axis)
    channels = input.shape[channel_axis]
    if use_input_stats:
        layout = over_groups(input.shape, max(channels, 1), channel_axis)
        if layout.count == 1:
            raise NormalizationError(
                f"input has shape {tuple(input.shape)}: one value a sample and channel, which its own statistics turn "
                "into the bias; two or more positions are needed (or use_input_stats=False with running statistics)"
            )
    check_parameters((channels,), "one value a channel", weight=weight, bias=bias)
    buffers = check_buffers(running_mean, running_var, channels)
    return layout, buffers, mask_of_positions(mask, layout, input.shape, channel_axis)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
    channel_axis: int = 1,
) -> Tensor:
    """Instance normalization: y = (x - mean) / sqrt(variance + eps) * weight + bias in each sample and channel.

    Equal to `torch.nn.functional.instance_norm` where both are defined; its backward pass is the explicit one. An
    empty batch leaves running statistics alone, where PyTorch 2.13 fills them with nan.

    Args:
        input: Shape (N, C, L), (N, C, H, W) or (N, C, D, H, W), or with the channels elsewhere; any memory format.
            Half precision is computed in float32.
        running_mean: Shape (C,), or None for none; moved in place, by the average over samples.
        running_var: Shape (C,), or None for none; moved in place, by the average over samples of unbiased variances.
        weight: gamma, shape (C,), or None for ones.
        bias: beta, shape (C,), or None for zeros.
        use_input_stats: Whether to normalize with the statistics of the input rather than the running ones.
        momentum: Weight of the new statistic in the running ones.
        eps: Added to the variance, > 0.
        mask: As in `group_norm`. Samples with fewer than two values move no running statistics.
        channel_axis: The axis of the channels; -1 for channels last.

    Returns:
        The normalized input, of its shape and dtype.

    Raises:
        NormalizationError: If dtype, shape, mask or eps cannot be used, one value a sample and channel is all there
            is, or running statistics are missing without those of the input.
    """
    require_number(momentum=momentum)
    layout, buffers, mask = _prepare_instance(
        input, running_mean, running_var, weight, bias, use_input_stats, eps, mask, channel_axis
    )
    if not use_input_stats:
        given = needed(buffers, "use_input_stats=False")
        return explain(input, layout, weight, bias, mask, eps, given=given).output
    y, mean, variance = apply(input, layout, weight, bias, mask, eps)
    if buffers is not None:
        count = count_of(layout.shape, mask, layout.axes)
        move(buffers, mean, variance, count, momentum, None)
    return y


def instance_norm_forward(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    eps: float = 1e-5,
    *,
    mask: Tensor | None = None,
    channel_axis: int = 1,
) -> Normalized:
    """The forward pass of `instance_norm` with all its parts, for `instance_norm_backward`; it moves no buffer.

    Args:
        input: As in `instance_norm`.
        running_mean: As in `instance_norm`, only read.
        running_var: As in `instance_norm`, only read.
        weight: As in `instance_norm`.
        bias: As in `instance_norm`.
        use_input_stats: As in `instance_norm`; if false, no gradient goes through mean and variance.
        eps: As in `instance_norm`.
        mask: As in `instance_norm`.
        channel_axis: As in `instance_norm`.

    Returns:
        The parts; statistics have shape (N, C), running ones (C,).

    Raises:
        NormalizationError: As in `instance_norm`.
    """
    layout, buffers, mask = _prepare_instance(
        input, running_mean, running_var, weight, bias, use_input_stats, eps, mask, channel_axis
    )
    given = None if use_input_stats else needed(buffers, "use_input_stats=False")
    return explain(input, layout, weight, bias, mask, eps, given=given)

"""Which values share a statistic and which share a parameter, in whatever order the axes lie."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import is_whole, require_tensor, shown, sizes_of
from trimtab.norms.functional._checks import require_mask, require_shape


@dataclass(frozen=True)
class Layout:
    """One view of the input in which a normalization is 'standardize over these axes'.

    Attributes:
        shape: Of the view: that of the input, where channels form groups with the channel axis split in two.
        axes: Those over which a statistic is taken.
        parameter_axes: Those along which weight and bias vary.
        split: The axis of the groups, where the channels are split.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    parameter_axes: tuple[int, ...]
    split: int | None = None

    @property
    def count(self) -> int:
        """How many values share one statistic."""
        return math.prod([self.shape[axis] for axis in self.axes])

    def view(self, x: Tensor) -> Tensor:
        """The input, or something of its shape, as it is normalized; shares its memory in any memory format."""
        return x if self.split is None else torch.unflatten(x, self.split, self.shape[self.split : self.split + 2])

    def view_mask(self, mask: Tensor) -> Tensor:
        """A mask with as many axes as the input, 1 along the channels where they are split."""
        return mask if self.split is None else mask.unsqueeze(self.split)

    def join(self, x: Tensor) -> Tensor:
        """The view back in the shape of the input."""
        return x if self.split is None else x.flatten(self.split, self.split + 1)

    @property
    def _spread(self) -> list[int]:
        return [n if axis in self.parameter_axes else 1 for axis, n in enumerate(self.shape)]

    def spread(self, parameter: Tensor) -> Tensor:
        """A parameter so shaped that it broadcasts against the view."""
        return parameter.reshape(self._spread)

    def gather(self, x: Tensor) -> Tensor:
        """Sums over all that shares a parameter, in the shape of the parameter: the adjoint of `spread`."""
        shape = [self.shape[axis] for axis in self.parameter_axes]
        return x.sum_to_size(self._spread).reshape(shape if self.split is None else [math.prod(shape)])

    def pack(self, statistic: Tensor) -> Tensor:
        """A statistic that broadcasts against the view, without the axes it was taken over."""
        return statistic.squeeze(self.axes)

    def unpack(self, statistic: Tensor) -> Tensor:
        """The inverse of `pack`."""
        return statistic.reshape([1 if axis in self.axes else n for axis, n in enumerate(self.shape)])

    def pack_product(self, product: Tensor) -> Tensor:
        """A parameter times a statistic, without the axes along which neither varies."""
        alike = tuple(axis for axis in self.axes if axis not in self.parameter_axes)
        full = product.expand([1 if axis in alike else n for axis, n in enumerate(self.shape)])
        return self.join(full).squeeze(tuple(self._joined(axis) for axis in alike))

    def _joined(self, axis: int) -> int:
        return axis if self.split is None or axis <= self.split else axis - 1


def _channel(shape: Sequence[int], channel_axis: int) -> int:
    if len(shape) < 2:
        raise NormalizationError(
            f"input has shape {tuple(shape)}; at least two axes are needed, samples and channels (unsqueeze a lone sample)"
        )
    if not is_whole(channel_axis) or not -len(shape) <= channel_axis < len(shape) or channel_axis % len(shape) == 0:
        raise NormalizationError(
            f"channel_axis is {shown(channel_axis)} for an input of shape {tuple(shape)}; "
            f"one of 1 to {len(shape) - 1} is needed, or -1 for channels last (axis 0 holds the samples)"
        )
    return channel_axis % len(shape)


def over_batch(shape: Sequence[int], channel_axis: int) -> Layout:
    """One statistic a channel, over samples and positions: batch normalization.

    Args:
        shape: Of the input, at least two axes, samples first.
        channel_axis: The axis of the channels.

    Returns:
        The layout; statistics pack to (C,).

    Raises:
        NormalizationError: If there is no such axis.
    """
    channel = _channel(shape, channel_axis)
    axes = tuple(axis for axis in range(len(shape)) if axis != channel)
    return Layout(tuple(shape), axes, (channel,))


def over_groups(shape: Sequence[int], groups: int, channel_axis: int) -> Layout:
    """One statistic a sample and group of channels: group normalization, and with one channel a group, instance.

    Args:
        shape: Of the input, at least two axes, samples first.
        groups: How many groups the channels form.
        channel_axis: The axis of the channels.

    Returns:
        The layout; statistics pack to (N, groups).

    Raises:
        NormalizationError: If there is no such axis, or the groups do not divide the channels.
    """
    channel = _channel(shape, channel_axis)
    channels = shape[channel]
    if not is_whole(groups) or groups < 1 or channels % groups:
        divisors = [n for n in range(1, channels + 1) if channels % n == 0]
        raise NormalizationError(
            f"num_groups is {shown(groups)} for {channels} channels (input of shape {tuple(shape)}); "
            f"a divisor of the channels is needed: one of {divisors}"
        )
    split = (*shape[:channel], groups, channels // groups, *shape[channel + 1 :])
    axes = tuple(axis for axis in range(1, len(split)) if axis != channel)
    return Layout(split, axes, (channel, channel + 1), channel)


def over_trailing(shape: Sequence[int], normalized_shape: int | Sequence[int]) -> tuple[Layout, tuple[int, ...]]:
    """One statistic for each index of the leading axes: layer and RMS normalization.

    Args:
        shape: Of the input.
        normalized_shape: The trailing sizes that are normalized together; one number stands for the last axis.

    Returns:
        The layout, whose statistics pack to the leading axes, and `normalized_shape` as a tuple.

    Raises:
        NormalizationError: If the input does not end in these sizes.
    """
    trailing = sizes_of(normalized_shape)
    if not trailing:
        raise NormalizationError("normalized_shape is empty; the sizes of one or more trailing axes are needed")
    if tuple(shape[-len(trailing) :]) != trailing:
        raise NormalizationError(
            f"input has shape {tuple(shape)}; it must end in normalized_shape, which is {trailing} "
            "(move the axes that are to be normalized together to the end)"
        )
    axes = tuple(range(len(shape) - len(trailing), len(shape)))
    return Layout(tuple(shape), axes, axes), trailing


def mask_of_positions(mask: Tensor | None, layout: Layout, shape: Sequence[int], channel_axis: int) -> Tensor | None:
    """A mask over samples and positions, alike for all channels, so shaped that it broadcasts against the view.

    Args:
        mask: Boolean, the shape of the input without the channel axis, or None.
        layout: What the mask is for.
        shape: Of the input.
        channel_axis: The axis of the channels.

    Returns:
        The mask, or None.

    Raises:
        NormalizationError: If it is not boolean or of another shape.
    """
    if mask is None:
        return None
    channel = channel_axis % len(shape)
    positions = (*shape[:channel], *shape[channel + 1 :])
    require_mask(mask, positions, f"the input's {tuple(shape)} without the channels, True where a value counts")
    return layout.view_mask(mask.unsqueeze(channel))


def mask_of_leading(mask: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """A mask over leading axes, so shaped that it broadcasts against the input.

    Args:
        mask: Boolean, its shape that of one or more leading axes of the input, or None.
        shape: Of the input.

    Returns:
        The mask, or None.

    Raises:
        NormalizationError: If it is not boolean or of another shape.
    """
    if mask is None:
        return None
    require_tensor("mask", mask)
    leading = tuple(shape[: max(mask.dim(), 1)])
    require_mask(mask, leading, f"leading axes of the input's {tuple(shape)}, True where a value counts")
    return mask.reshape([*leading, *[1] * (len(shape) - len(leading))])


def check_parameters(shape: Sequence[int], meaning: str, **parameters: Tensor | None) -> None:
    """Let only parameters and buffers of one shape pass; None stands for one that is left out.

    Args:
        shape: The shape they must have.
        meaning: What it stands for, for the message.
        parameters: The tensors by name.
    """
    for name, tensor in parameters.items():
        require_shape(name, tensor, shape, meaning)

"""Convolutions whose zero padding means another number: what a standardization folded into a zero-padded convolution leaves.

A zero that pads a standardized image stands for the mean, not for a raw zero. Two ways to say so, equal up to rounding:

* "map": convolve the raw image padded with zeros, and add at each place what the missing taps would have contributed. That map is a
  convolution of an image of ones with one input channel, made anew each time, so that it follows the weights in training and the size
  of the image: 1 / (batch * channels) of the cost of the layer.
* "mean": pad the raw image with the mean, and convolve without padding; the padded image is written once.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
ConvTranspose = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d

_CONVOLVE: tuple[Callable[..., Tensor], ...] = (functional.conv1d, functional.conv2d, functional.conv3d)
_TRANSPOSE: tuple[Callable[..., Tensor], ...] = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)


def padding_of(conv: Conv) -> list[tuple[int, int]]:
    """Places added before and after each spatial axis.

    Args:
        conv: A convolution.

    Returns:
        One pair an axis. "same" puts the odd one behind, as torch does.
    """
    if conv.padding == "valid":
        return [(0, 0)] * len(conv.kernel_size)
    if conv.padding == "same":
        total = [apart * (width - 1) for apart, width in zip(conv.dilation, conv.kernel_size, strict=True)]
        return [(both // 2, both - both // 2) for both in total]
    return [(int(one), int(one)) for one in conv.padding]


class ValuePaddedConv(nn.Module):
    """A zero-padded convolution computed as if each channel were padded with a number of its own.

    Args:
        conv: The convolution, padded with zeros.
        value: One number a channel, shape (C_in,).
        method: "map" or "mean", as the module says.

    Shape:
        As `conv`: (N, C_in, *space) or (C_in, *space).
    """

    value: Tensor

    def __init__(self, conv: Conv, value: Tensor, method: str = "map") -> None:
        super().__init__()
        self.conv = conv
        self.method = method
        self.register_buffer("value", value)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve.

        Args:
            x: Input.

        Returns:
            Output of the size that `conv` gives.
        """
        conv, axes = self.conv, len(self.conv.kernel_size)
        convolve = _CONVOLVE[axes - 1]
        ones = x.new_ones((1, *x.shape[-axes:]))
        if self.method == "mean":
            pads = [place for pair in reversed(padding_of(conv)) for place in pair]
            border = 1.0 - functional.pad(ones, pads)
            x = functional.pad(x, pads) + self.value.view(-1, *[1] * axes) * border
            return convolve(x, conv.weight, conv.bias, conv.stride, 0, conv.dilation, conv.groups)
        taps = (conv.weight * per_input(self.value, conv)).sum(1, keepdim=True)
        inside = convolve(ones, taps, None, conv.stride, conv.padding, conv.dilation)
        return conv(x) + (taps.flatten(1).sum(1).view(-1, *[1] * axes) - inside)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """What stands in the printed model.

        Returns:
            The method.
        """
        return f"method={self.method!r}"


class ShiftedConvTranspose(nn.Module):
    """A transposed convolution of x + shift, with the shift as a map that is added to the output.

    How many taps meet at a place of the output differs with the stride and at the border, so that no bias can hold the shift.

    Args:
        conv: The transposed convolution.
        shift: One number a channel, shape (C_in,).

    Shape:
        As `conv`: (N, C_in, *space) or (C_in, *space).
    """

    shift: Tensor

    def __init__(self, conv: ConvTranspose, shift: Tensor) -> None:
        super().__init__()
        self.conv = conv
        self.register_buffer("shift", shift)

    def forward(self, x: Tensor, *output_size: Any) -> Tensor:
        """Convolve.

        Args:
            x: Input.
            *output_size: Refused: the map would have to follow it.

        Returns:
            Output of the size that `conv` gives.

        Raises:
            NotImplementedError: If an output size is given.
        """
        if output_size:
            raise NotImplementedError("output_size cannot be chosen for a folded transposed convolution")
        conv, axes = self.conv, len(self.conv.kernel_size)
        weighted = conv.weight * self.shift.view(-1, 1, *[1] * axes)
        taps = weighted.view(conv.groups, -1, *weighted.shape[1:]).sum(1).flatten(0, 1)[None]  # (1, C_out, *kernel)
        ones = x.new_ones((1, *x.shape[-axes:]))
        options = (conv.stride, conv.padding, conv.output_padding, 1, conv.dilation)
        return conv(x) + _TRANSPOSE[axes - 1](ones, taps, None, *options)  # type: ignore[no-any-return]


def per_input(value: Tensor, conv: Conv) -> Tensor:
    """Numbers per input channel, laid out as the weight (C_out, C_in / groups, *kernel) wants them.

    Args:
        value: Shape (C_in,).
        conv: The convolution.

    Returns:
        Shape (C_out, C_in / groups, 1, ...).
    """
    grouped = value.view(conv.groups, 1, -1).expand(-1, conv.out_channels // conv.groups, -1).flatten(0, 1)
    return grouped.reshape(*grouped.shape, *[1] * len(conv.kernel_size))


def not_padded(conv: Conv) -> bool:
    """Whether no zero is added to what the convolution reads.

    Args:
        conv: A convolution.

    Returns:
        True without padding, and for padding that repeats the image's own values.
    """
    return conv.padding_mode != "zeros" or all(pair == (0, 0) for pair in padding_of(conv))

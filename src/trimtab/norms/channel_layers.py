"""Normalizations along the channel axis, where `convert` needs what PyTorch has for the last axis only, and back."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.norms._arguments import is_whole, refuse, require_flag, require_tensor, require_whole


def require_channels(x: Tensor) -> None:
    """Let only tensors with samples and channels pass.

    Args:
        x: The input of a layer.

    Raises:
        NormalizationError: If it is something else.
    """
    if not isinstance(x, Tensor) or x.dim() < 2:
        refuse("x", x, "a tensor of shape (samples, channels, ...) is needed")


class ChannelLayerNorm(nn.LayerNorm):
    """LayerNorm over the channels of (N, C, ...), at each position by itself.

    Args and state dict are those of `nn.LayerNorm` with `normalized_shape=C`.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize.

        Args:
            x: Shape (N, C, ...).

        Returns:
            The same shape.
        """
        require_channels(x)
        last = functional.layer_norm(x.movedim(1, -1), self.normalized_shape, self.weight, self.bias, self.eps)
        return last.movedim(-1, 1)


class ChannelRMSNorm(nn.RMSNorm):
    """RMSNorm over the channels of (N, C, ...), at each position by itself.

    Args and state dict are those of `nn.RMSNorm` with `normalized_shape=C`.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize.

        Args:
            x: Shape (N, C, ...).

        Returns:
            The same shape.
        """
        require_channels(x)
        return functional.rms_norm(x.movedim(1, -1), self.normalized_shape, self.weight, self.eps).movedim(-1, 1)


class ChannelAffine(nn.Module):
    """y = weight x + bias per channel: what is left of a normalization without its statistics.

    Args:
        channels: Number of channels, C.
        axis: The channel axis: 1 for (N, C, ...), -1 for (..., C).
        bias: Whether there is a bias.

    Raises:
        NormalizationError: If an argument is of another kind.
    """

    def __init__(self, channels: int, axis: int = 1, bias: bool = True) -> None:
        super().__init__()
        require_whole(channels=channels)
        require_flag(bias=bias)
        if not is_whole(axis):
            refuse("axis", axis, "the number of an axis is needed: 1 for (N, C, ...), -1 for (..., C)")
        self.axis = axis
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift.

        Args:
            x: Shape (N, C, ...), or (..., C) for axis -1.

        Returns:
            The same shape.
        """
        require_tensor("x", x)
        shape = [1] * x.dim()
        shape[self.axis] = -1
        y = x * self.weight.view(shape)
        return y if self.bias is None else y + self.bias.view(shape)

    def extra_repr(self) -> str:
        """Returns channels and axis, for `print`."""
        return f"{len(self.weight)}, axis={self.axis}, bias={self.bias is not None}"


class ChannelsLast(nn.Module):
    """A normalization of (N, C, L) applied to (N, ..., C).

    Args:
        norm: BatchNorm1d, GroupNorm, InstanceNorm1d or another layer with its channels on axis 1.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """Normalize.

        Args:
            x: Shape (N, ..., C).

        Returns:
            The same shape.
        """
        rows = x.reshape(x.shape[0], -1, x.shape[-1])
        y: Tensor = self.norm(rows.transpose(1, 2)).transpose(1, 2)
        return y.reshape(x.shape)

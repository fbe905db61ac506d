"""Layers whose weights are standardized: training without normalizing activations.

Weight standardization: Qiao et al. 2019, arXiv:1903.10520. Scaled weight standardization (normalizer-free nets): Brock, De
and Smith 2021, arXiv:2101.08692.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import (
    is_whole,
    refuse,
    require_device_and_dtype,
    require_eps,
    require_flag,
    require_positive,
    require_tensor,
    require_whole,
    require_word,
)
from trimtab.norms.functional._checks import require_shape


def standardized_weight(
    weight: Tensor, eps: float = 1e-6, *, scaled: bool = False, gamma: float = 1.0, gain: Tensor | None = None
) -> Tensor:
    """Standardize the weights of each unit.

    w = (W - mean) / sqrt(var + eps), over all weights of an output unit; scaled: times gamma gain / sqrt(fan_in), so that
    inputs of unit second moment give outputs of variance (gamma gain)².

    Args:
        weight: Shape (out, ...): a unit is an index of the first axis. float16 and bfloat16 are computed in float32.
        eps: Added to the variance.
        scaled: Whether to divide by sqrt(fan_in).
        gamma: Constant of the activation before the layer, sqrt(1 / Var phi(z)) for normal z: 1.7129 for ReLU.
        gain: One number a unit, shape (out,), or None; for the scaled form.

    Returns:
        The shape and type of `weight`.

    Raises:
        NormalizationError: If a unit has fewer than two weights, which have no variance, or an argument is of another kind.
    """
    _check_weight(weight)
    require_eps(eps)
    require_positive(gamma=gamma)
    require_flag(scaled=scaled)
    if gain is not None:
        require_shape("gain", gain, weight.shape[:1], "one number for each unit of the weight")
    return _standardize(weight, eps, scaled, gamma, gain)


def _check_weight(weight: Tensor) -> None:
    require_tensor("weight", weight)
    if weight.dim() < 2 or not weight.is_floating_point():
        raise NormalizationError(
            f"weight has shape {tuple(weight.shape)} and dtype {weight.dtype}; floating numbers of two axes or more are "
            "needed, a unit being an index of the first"
        )
    fan_in = math.prod(weight.shape[1:])
    if fan_in < 2:
        raise NormalizationError(
            f"the weight has shape {tuple(weight.shape)}, that is {fan_in} weight a unit; two or more are needed to standardize"
        )


def _standardize(weight: Tensor, eps: float, scaled: bool, gamma: float, gain: Tensor | None) -> Tensor:
    """Returns what `standardized_weight` does, of what has been checked: layers come here at every call."""
    fan_in = math.prod(weight.shape[1:])
    flat = functional.layer_norm(weight.flatten(1), (fan_in,), None, None, eps)
    if scaled:
        scale = gamma / math.sqrt(fan_in)
        flat = flat * scale if gain is None else flat * (gain * scale).unsqueeze(1)
    return flat.view_as(weight)


class _Standardized(nn.Module):
    """Mixed into a convolution or linear layer, which comes after it in the order of bases."""

    weight: Any  # parameters; PyTorch annotates them in each layer by itself
    bias: Any
    gain: nn.Parameter | None
    eps: float
    scaled: bool
    gamma: float

    def _set_up(self, eps: float, scaled: bool, gain: bool, gamma: float) -> None:
        require_eps(eps)
        require_positive(gamma=gamma)
        require_flag(scaled=scaled, gain=gain)
        if not scaled and (gain or gamma != 1.0):
            raise NormalizationError("gain and gamma belong to the scaled form: give scaled=True as well")
        self.eps, self.scaled, self.gamma = eps, scaled, gamma
        self.gain = nn.Parameter(self.weight.new_ones(self.weight.shape[0])) if gain else None
        _check_weight(self.weight)

    def standardized(self) -> Tensor:
        """The weight that the layer computes with.

        Returns:
            The shape of `weight`.
        """
        return _standardize(self.weight, self.eps, self.scaled, self.gamma, self.gain)

    def extra_repr(self) -> str:
        own = f"eps={self.eps}" + (f", scaled=True, gamma={self.gamma:.6g}" if self.scaled else "")
        return f"{super().extra_repr()}, {own}{', gain=True' if self.gain is not None else ''}"

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, local_metadata: Mapping[str, Any], *rest: Any
    ) -> None:
        # A plain layer has no gain: 1 is what it computes with.
        if self.gain is not None and prefix + "weight" in state_dict:
            state_dict = {prefix + "gain": torch.ones_like(self.gain), **state_dict}
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


def _require_sizes(least: int, **sizes: object) -> None:
    """Let only whole numbers, one or one for each axis, pass."""
    for name, value in sizes.items():
        several = value if isinstance(value, (tuple, list)) else (value,)
        if not several or not all(is_whole(one) and one >= least for one in several):
            refuse(name, value, f"a whole number of at least {least} is needed, or one for each axis")


class _Convolution(_Standardized):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: str | int | tuple[int, ...] = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        eps: float = 1e-6,
        scaled: bool = False,
        gain: bool = False,
        gamma: float = 1.0,
    ) -> None:
        require_whole(in_channels=in_channels, out_channels=out_channels, groups=groups)
        _require_sizes(1, kernel_size=kernel_size, stride=stride, dilation=dilation)
        if not isinstance(padding, str):
            _require_sizes(0, padding=padding)
        require_word("padding_mode", padding_mode, ("zeros", "reflect", "replicate", "circular"))
        require_flag(bias=bias)
        require_device_and_dtype(device, dtype)
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self._set_up(eps, scaled, gain, gamma)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve with the standardized weight.

        Args:
            input: Shape (N, in_channels, *), or without N.

        Returns:
            What the convolution it stands for gives, with the other weight.
        """
        return self._conv_forward(input, self.standardized(), self.bias)  # type: ignore[no-any-return, operator]


class WSConv2d(_Convolution, nn.Conv2d):
    """Convolution with standardized weights (Qiao et al. 2019), or scaled ones (Brock et al. 2021).

    w = (W - mean) / sqrt(var + eps) over the fan_in weights of each output channel; with scaled=True
    w = gamma gain (W - mean) / (sqrt(var + eps) sqrt(fan_in)). The output does not depend on the scale of W, nor on the
    mean of the input in a receptive field. The plain form raises the signal by sqrt(fan_in) and wants a normalization
    behind it, GroupNorm in the paper; the scaled form keeps its variance, with gamma for the activation before it, and
    wants none.

    The repair for `small-batch-batchnorm` where batches cannot grow: plain, with GroupNorm behind it, or scaled, with adaptive
    gradient clipping (`adaptive_clip_grad_`) and without any normalization.

    Constructor and state_dict are those of `torch.nn.Conv2d`, and both load from one another; gain=True adds a parameter
    `gain`, which is 1 where a plain layer's state_dict has none.

    Cost: one more pass over the weights in each direction, the time of a layer_norm of their size.

    Shapes: those of `torch.nn.Conv2d`.

    Args:
        in_channels: As in PyTorch, like the next eight.
        out_channels: .
        kernel_size: .
        stride: .
        padding: .
        dilation: .
        groups: .
        bias: .
        padding_mode: .
        device: Where the parameters are made.
        dtype: Their type.
        eps: Added to the variance of the weights.
        scaled: Whether to divide by sqrt(fan_in).
        gain: Whether there is a learnable factor for each output channel; for the scaled form.
        gamma: Constant of the activation before the layer, sqrt(1 / Var phi(z)) for normal z: 1.7129 for ReLU, 1.7009 for
            GELU, 1.7872 for SiLU; for the scaled form.

    Raises:
        NormalizationError: If eps or gamma is not above zero, an output channel has one weight, or gain or gamma is given without
            scaled.
    """


class WSConv1d(_Convolution, nn.Conv1d):
    """`WSConv2d` in one dimension; stands for `torch.nn.Conv1d`."""


class WSConv3d(_Convolution, nn.Conv3d):
    """`WSConv2d` in three dimensions; stands for `torch.nn.Conv3d`."""


class WSLinear(_Standardized, nn.Linear):
    """Linear layer with standardized weights; see `WSConv2d`, whose formulas hold with the in_features of a unit as fan_in.

    Constructor and state_dict are those of `torch.nn.Linear`.

    Cost: one more pass over the weights in each direction: nothing to speak of for 16,384 rows and 768 features, 1.5 to
    2 times the time of `torch.nn.Linear` for 64 rows.

    Args:
        in_features: Size of the last axis of the input, two or more.
        out_features: Size of the last axis of the output.
        bias: Whether there is a bias.
        device: Where the parameters are made.
        dtype: Their type.
        eps: Added to the variance of the weights.
        scaled: Whether to divide by sqrt(in_features).
        gain: Whether there is a learnable factor for each output; for the scaled form.
        gamma: Constant of the activation before the layer; for the scaled form.

    Raises:
        NormalizationError: If eps or gamma is not above zero, in_features below two, or gain or gamma is given without scaled.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        eps: float = 1e-6,
        scaled: bool = False,
        gain: bool = False,
        gamma: float = 1.0,
    ) -> None:
        require_whole(in_features=in_features, out_features=out_features)
        require_flag(bias=bias)
        require_device_and_dtype(device, dtype)
        super().__init__(in_features, out_features, bias, device, dtype)
        self._set_up(eps, scaled, gain, gamma)

    def forward(self, input: Tensor) -> Tensor:
        """Multiply with the standardized weight.

        Args:
            input: Shape (*, in_features).

        Returns:
            Shape (*, out_features).
        """
        return functional.linear(input, self.standardized(), self.bias)

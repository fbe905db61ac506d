"""How one layer takes an affine change of its input, u_old = u_new * gain + shift: new parameters, computed in float64.

With W for the old weight: W_new = W gain, b_new = b + W shift. Of a standardization, gain = 1 / s and shift = -mean / s give the first
note's w = w' / s and b = b' - w' mean / s.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from trimtab.norms.standardizer.errors import FoldError
from trimtab.norms.standardizer.padded import (
    Conv,
    ConvTranspose,
    ShiftedConvTranspose,
    ValuePaddedConv,
    not_padded,
    per_input,
)

FOLDABLE = (nn.Linear, Conv, ConvTranspose, nn.RNNBase, ValuePaddedConv, ShiftedConvTranspose)
NAMES = "Linear, Conv1d-3d, ConvTranspose1d-3d, RNN, GRU and LSTM"


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """u_old = u_new * gain + shift, per feature, float64 of shape (d,)."""

    gain: Tensor
    shift: Tensor

    def new_value(self, old: Tensor) -> Tensor:
        """What number of the new input an old one is.

        Args:
            old: Shape (d,), in the dtype of the layer.

        Returns:
            (old - shift) / gain, and 0 where that is rounding only.
        """
        wide = old.double()
        difference = wide - self.shift
        noise = 4 * torch.finfo(old.dtype).eps * torch.maximum(wide.abs(), self.shift.abs())
        return torch.where(difference.abs() <= noise, 0.0, difference / self.gain)

    def widened(self, width: int, tiled: bool, name: str) -> "Change":
        """The change of a flattened input.

        Args:
            width: Number of features the layer reads.
            tiled: Whether features vary fastest in it, as after flattening (T, d), and not slowest, as after (d, H, W).
            name: Of the layer, for the message.

        Returns:
            A change of that many features.

        Raises:
            FoldError: If the number is no multiple of d.
        """
        repeats, rest = divmod(width, len(self.gain))
        if rest or not repeats:
            raise FoldError(f"{name} reads {width} features, the standardizer was fitted on {len(self.gain)}")
        if repeats == 1:
            return self
        spread = Tensor.repeat if tiled else Tensor.repeat_interleave
        return Change(spread(self.gain, repeats), spread(self.shift, repeats))


def foldable(module: nn.Module) -> bool:
    """Whether a module is of a kind that can take the change.

    Args:
        module: Any module.

    Returns:
        True for the kinds in `NAMES`.
    """
    return isinstance(module, FOLDABLE)


def refuse_unready(layer: nn.Module, name: str) -> None:
    """Refuse a layer whose weights are not plain parameters.

    Args:
        layer: The layer.
        name: Its name, for the message.

    Raises:
        FoldError: With the reason.
    """
    if isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params():
        raise FoldError(f"{name} is lazy and has no weights yet; run the model once before folding")
    for module in layer.modules():
        if is_parametrized(module) or {"weight_g", "weight_orig"} & dict(module.named_parameters(recurse=False)).keys():
            raise FoldError(
                f"the weight of {name} is computed (weight norm, spectral norm or another parametrization), and folding would "
                "change the result of that; remove it first (torch.nn.utils.parametrize.remove_parametrizations)"
            )
    if not all(parameter.is_floating_point() for parameter in layer.parameters()):
        raise FoldError(f"the weights of {name} are not floating-point numbers; fold before quantizing")


def convolution_of(layer: nn.Module) -> Conv | ConvTranspose | None:
    """The convolution in a layer.

    Args:
        layer: Of a foldable kind.

    Returns:
        Itself or what it wraps; None for other layers.
    """
    inner = layer.conv if isinstance(layer, ValuePaddedConv | ShiftedConvTranspose) else layer
    return inner if isinstance(inner, Conv | ConvTranspose) else None


def input_width(layer: nn.Module) -> int:
    """Number of features or channels a layer reads.

    Args:
        layer: Of a foldable kind.

    Returns:
        That number.
    """
    conv = convolution_of(layer)
    if conv is not None:
        return conv.in_channels
    assert isinstance(layer, nn.Linear | nn.RNNBase)
    return layer.in_features if isinstance(layer, nn.Linear) else layer.input_size


def changed(layer: nn.Module, change: Change, padding: str, name: str) -> nn.Module:
    """A layer that takes the new input, made of this one, which is used up.

    Args:
        layer: Of a foldable kind; its parameters are written to.
        change: Of as many features as it reads.
        padding: "map" or "mean", for zero padding.
        name: Its name, for messages.

    Returns:
        The layer, or a module around it where its padding must change.

    Raises:
        FoldError: If the layer cannot hold the change.
    """
    if isinstance(layer, ValuePaddedConv):
        return _convolution(layer.conv, change, padding, layer.value)
    if isinstance(layer, ShiftedConvTranspose):
        return _transposed(layer.conv, change, layer.shift)
    if isinstance(layer, nn.RNNBase):
        return _recurrent(layer, change, name)
    if isinstance(layer, nn.Linear):
        weight = layer.weight.detach().double()
        _write(layer, weight * change.gain, weight @ change.shift)
        return layer
    if isinstance(layer, Conv):
        return _convolution(layer, change, padding, layer.weight.new_zeros(layer.in_channels))
    assert isinstance(layer, ConvTranspose)
    return _transposed(layer, change, layer.weight.new_zeros(layer.in_channels))


def _convolution(conv: Conv, change: Change, padding: str, old: Tensor) -> nn.Module:
    """A convolution whose padding stands for `old`, 0 in a plain one.

    Returns:
        A plain convolution where the new padding is zero again or there is none.
    """
    weight = conv.weight.detach().double()
    _write(conv, weight * per_input(change.gain, conv), (weight * per_input(change.shift, conv)).flatten(1).sum(1))
    value = change.new_value(old.detach())
    if not_padded(conv) or not value.any():
        return conv
    return ValuePaddedConv(conv, value.to(conv.weight), padding).train(conv.training)


def _transposed(conv: ConvTranspose, change: Change, old: Tensor) -> nn.Module:
    """A transposed convolution of u_old + old, 0 in a plain one.

    Returns:
        A plain one where nothing is left to add.
    """
    axes = len(conv.kernel_size)
    weight = conv.weight.detach().double()
    _write(conv, weight * change.gain.view(-1, 1, *[1] * axes), None)
    shift = -change.new_value(-old.detach())  # u_old + old = gain (u_new + (shift + old) / gain)
    return ShiftedConvTranspose(conv, shift.to(conv.weight)).train(conv.training) if shift.any() else conv


def _recurrent(layer: nn.RNNBase, change: Change, name: str) -> nn.Module:
    """The gates of the first layer, in both directions.

    Returns:
        The layer.

    Raises:
        FoldError: If it has no biases.
    """
    if not layer.bias and change.shift.any():
        raise FoldError(f"{name} has bias=False and nothing that could hold the mean; build it with bias=True")
    for end in ("", "_reverse") if layer.bidirectional else ("",):
        weight = getattr(layer, f"weight_ih_l0{end}")
        old = weight.detach().double()  # the weight itself where it is float64: read before it is written
        with torch.no_grad():
            if layer.bias:
                bias = getattr(layer, f"bias_ih_l0{end}")
                bias.copy_(bias.double() + old @ change.shift)
            weight.copy_(old * change.gain)
    return layer


def _write(layer: nn.Linear | Conv | ConvTranspose, weight: Tensor, more: Tensor | None) -> None:
    """Put a new weight, and more of a bias, into a layer; a bias is made where there was none."""
    with torch.no_grad():
        layer.weight.copy_(weight)
        if more is None:
            return
        if layer.bias is not None:
            layer.bias.copy_(layer.bias.double() + more)
        elif more.any():
            layer.bias = nn.Parameter(more.to(layer.weight), requires_grad=layer.weight.requires_grad)

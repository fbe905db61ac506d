"""Two models run side by side: how far apart are f(standardized) and g(raw)?"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trimtab.norms._passes import outcome, tensors
from trimtab.norms.standardizer._layers import convolution_of, input_width
from trimtab.norms.standardizer.errors import FoldError
from trimtab.norms.standardizer.padded import ConvTranspose

# Rounding that the two models may differ by, in units of eps * (1 + max |mean| / scale) * max |f|. What is wrong differs by the outputs
# themselves: some 1e16 such units in float64, 1e7 in float32.
_ROUNDINGS = 1e6
_ROUNDINGS_NARROW = 1e4


@dataclass(frozen=True, slots=True)
class Measured:
    """The largest difference found, in the model's dtype and in float64 (nan where it does not run in that), and max |f|."""

    difference: float
    exact: float
    size: float

    def worse(self, other: "Measured") -> "Measured":
        """Both at once.

        Args:
            other: Of another layer.

        Returns:
            The larger of each number.
        """
        return Measured(
            *(
                max(a, b)
                for a, b in ((self.difference, other.difference), (self.exact, other.exact), (self.size, other.size))
            )
        )


def measure(
    old: nn.Module, new: nn.Module, fold: Callable[[nn.Module], nn.Module], old_input: Tensor, new_input: Tensor
) -> Measured:
    """Run a model before and after, in its own dtype and folded anew in float64.

    Args:
        old: The model before. Copies are run, in the mode the model is in, so that no buffer moves.
        new: The model after.
        fold: What was done to a copy of the model.
        old_input: Float64, what `old` takes.
        new_input: Float64, the same data as `new` takes it.

    Returns:
        The differences.
    """
    dtype = dtype_of(old)
    difference, size = _apart(copy.deepcopy(old), copy.deepcopy(new), old_input.to(dtype), new_input.to(dtype))
    if dtype == torch.float64:
        return Measured(difference, difference, size)
    try:
        wide = copy.deepcopy(old).double()
        exact, _ = _apart(copy.deepcopy(wide), fold(wide), old_input, new_input)
    except (RuntimeError, TypeError):  # a model that makes float32 tensors of its own
        exact = math.nan
    return Measured(difference, exact, size)


def refuse_if_wrong(measured: Measured, names: list[str], ratio: float, dtype: torch.dtype) -> None:
    """Tell rounding from a mistake.

    Args:
        measured: The differences.
        names: The folded layers, for the message.
        ratio: max |mean| / scale.
        dtype: The model's dtype.

    Raises:
        FoldError: If they differ by more than rounding.
    """
    blind = math.isnan(measured.exact)
    found = measured.difference if blind else measured.exact
    unit = torch.finfo(dtype if blind else torch.float64).eps
    allowed = (_ROUNDINGS_NARROW if blind else _ROUNDINGS) * unit * (1.0 + ratio) * measured.size
    if not found <= allowed:
        raise FoldError(
            f"after folding into {[name or 'the model' for name in names]} the model differs by {found:.3g} of {measured.size:.3g}, "
            f"where rounding explains {allowed:.1g}: something else reads the input too, or a folded layer is called on other data"
        )


def dtype_of(model: nn.Module) -> torch.dtype:
    """Dtype of a model.

    Args:
        model: The model.

    Returns:
        That of its first floating parameter; torch's default without any.
    """
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype())


def device_of(model: nn.Module) -> torch.device:
    """Device of a model.

    Args:
        model: The model.

    Returns:
        That of its first parameter; the CPU without any.
    """
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def example_shape(layer: nn.Module) -> tuple[tuple[int, ...], int]:
    """An input that reaches every border of a layer.

    Args:
        layer: Of a foldable kind.

    Returns:
        A shape, and the axis of the features in it.
    """
    width, conv = input_width(layer), convolution_of(layer)
    if conv is None:
        return ((5, 7, width), 2) if isinstance(layer, nn.RNNBase) else ((16, width), 1)
    if isinstance(conv, ConvTranspose):
        return (2, width, *[4] * len(conv.kernel_size)), 1
    reach = [apart * (wide - 1) + 1 for apart, wide in zip(conv.dilation, conv.kernel_size, strict=True)]
    pads = [0 if isinstance(pad, str) else int(pad) for pad in conv.padding]
    return (2, width, *(max(2 * one, 2 * pad) + 3 for one, pad in zip(reach, pads or reach, strict=False))), 1


def _apart(old: nn.Module, new: nn.Module, old_input: Tensor, new_input: Tensor) -> tuple[float, float]:
    """Returns max |f - g| and max |f| over all tensors of the output."""
    outputs = []
    for model, x in ((old, old_input), (new, new_input)):
        outputs.append([one for one in tensors(outcome(model, x)) if one.numel()])
    before, after = outputs
    if not before or len(before) != len(after):
        raise FoldError(
            "the model gives no tensor to compare; it must return tensors, or tuples, lists or dictionaries of them"
        )
    # A nan stays a nan, and is refused.
    difference = torch.stack([(a.double() - b.double()).abs().max() for a, b in zip(before, after, strict=True)]).max()
    return float(difference), float(torch.stack([one.double().abs().max() for one in before]).max())

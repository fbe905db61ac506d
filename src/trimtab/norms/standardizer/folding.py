"""A standardization folded into a model, so that the model takes raw inputs; and back.

Linear layers: w = w' / s, b = b' - w' mean / s (the first note). Convolutions: the same per channel, any stride, dilation and groups;
exact for no padding and for padding that repeats the image (reflect, replicate, circular). A zero of zero padding stands for the mean
after folding: see `padded`. Transposed convolutions hold the mean in a map, recurrent layers in the biases of their gates.
"""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from trimtab._messages import say
from trimtab.errors import NormalizationError
from trimtab.norms._arguments import require_module, require_names, require_values, require_word
from trimtab.norms._passes import copy_of
from trimtab.norms.standardizer._first import by_running, by_structure, refuse_shared
from trimtab.norms.standardizer._inputs import example_of
from trimtab.norms.standardizer._layers import NAMES, Change, changed, foldable, input_width, refuse_unready
from trimtab.norms.standardizer._scaling import feature_axis
from trimtab.norms.standardizer._verify import Measured, device_of, dtype_of, example_shape, measure, refuse_if_wrong
from trimtab.norms.standardizer.columns import Floats
from trimtab.norms.standardizer.errors import CancellationWarning, FoldError

_WORTH_A_WARNING = 0.01  # a hundredth of the largest output is more than a network's own rounding


@dataclass(frozen=True, slots=True)
class FoldReport:
    """What was folded, and how far the two models were found apart.

    Attributes:
        layers: Names of the layers that took the standardization; "" is the model itself.
        difference: max |f(x) - g(x)| in the model's own dtype.
        exact: The same in float64, which tells rounding from a mistake; nan where the model does not run in float64.
        size: max |f(x)|, to compare with.
        checked: What was run: the whole "model" on the example, or the "layer" alone.
    """

    layers: tuple[str, ...]
    difference: float
    exact: float
    size: float
    checked: Literal["model", "layer"]

    def __str__(self) -> str:
        """One line.

        Returns:
            The layers and the differences.
        """
        where = ", ".join(name or "the model" for name in self.layers)
        return (
            f"folded into {where}: max |f - g| = {self.difference:.2e} ({self.exact:.1e} in float64) of {self.size:.3g}"
        )


def fold_affine(
    model: nn.Module,
    mean: Floats,
    scale: Floats,
    example: Any = None,
    *,
    layers: Iterable[str] | None = None,
    padding: str = "map",
    feature_dim: int = 1,
    inverse: bool = False,
) -> nn.Module:
    """Fold z = (x - mean) / scale into the layers that read a model's input, or take it out again.

    Args:
        model: Takes z, or with `inverse` x. It is not changed; train and eval mode, device and dtype are kept.
        mean: Shape (d,).
        scale: Shape (d,), not zero.
        example: A batch of raw inputs. With it the whole model is run before and after, and layers are found by what they are handed;
            without it only a model that is a layer, or an `nn.Sequential` beginning with one, can be folded, and the layer is run.
        layers: Names of the layers that read the input, instead of finding them.
        padding: For zero padding: "map" adds a bias map to the output, "mean" pads the raw image with the mean. Both are exact.
        feature_dim: Axis of the features in an example of more than two axes.
        inverse: Take the standardization out: w' = w s, b' = b + w mean.

    Returns:
        A changed copy, with the `FoldReport` as its attribute `fold_report`.

    Raises:
        FoldError: If no layer can take it, a layer or its weights are used elsewhere too, or the two models differ by more than
            rounding when run.
        NormalizationError: If `padding` is unknown, a statistic or the example is not finite, or an argument is of another kind.
    """
    require_module("model", model)
    require_values(model)
    require_word("padding", padding, ("map", "mean"))
    middle, spread = torch.tensor(mean, dtype=torch.float64), torch.tensor(scale, dtype=torch.float64)
    if not (middle.isfinite().all() and spread.isfinite().all() and spread.all()):
        raise NormalizationError(
            "a feature without any value has no mean and scale to fold; drop it, or fit on more data"
        )
    device = device_of(model)
    statistics = Statistics(middle.to(device), spread.to(device), feature_dim)
    raw = None if example is None else example_of(example).to(device)
    names = _readers(model, raw, statistics, inverse) if layers is None else _named(model, raw, layers)
    for name in names:
        _refuse_unknown(model, name)
        refuse_unready(model.get_submodule(name), name or "the model")
        refuse_shared(model, name)
    fold = partial(_folded, model=model, raw=raw, statistics=statistics, padding=padding, inverse=inverse)
    folded = fold(copy_of(model), names)
    if raw is None:
        measured = _layers_apart(model, folded, names, fold, statistics, inverse)
    else:
        standard = statistics.standardize(raw, feature_axis(raw, feature_dim, len(middle), "example"))
        old, new = (raw, standard) if inverse else (standard, raw)
        measured = measure(model, folded, lambda part: fold(part, names), old, new)
    ratio = float((statistics.mean / statistics.scale).abs().max())
    refuse_if_wrong(measured, names, ratio, dtype_of(model))
    if measured.difference > _WORTH_A_WARNING * measured.size:
        message = _cancellation(measured, ratio, dtype_of(model))
        warnings.warn(message, CancellationWarning, stacklevel=3)
    report = FoldReport(
        tuple(names), measured.difference, measured.exact, measured.size, "layer" if raw is None else "model"
    )
    folded.fold_report = report  # type: ignore[assignment]
    return folded


@dataclass(frozen=True, slots=True, eq=False)
class Statistics:
    """Mean and scale on the model's device, and the axis of the features in inputs of more than two axes."""

    mean: Tensor
    scale: Tensor
    feature_dim: int

    def change(self, inverse: bool) -> Change:
        """Returns what happens to the input of the first layer."""
        return Change(self.scale, self.mean) if inverse else Change(1.0 / self.scale, -self.mean / self.scale)

    def standardize(self, x: Tensor, axis: int) -> Tensor:
        """Returns z."""
        shape = [-1 if place == axis else 1 for place in range(x.dim())]
        return (x - self.mean.view(shape)) / self.scale.view(shape)

    def tiled(self, raw: Tensor | None) -> bool:
        """Returns whether features vary fastest in a flattened input."""
        return self.feature_dim == -1 or (raw is not None and raw.dim() > 2 and self.feature_dim == raw.dim() - 1)


def _folded(
    part: nn.Module,
    places: list[str],
    *,
    model: nn.Module,
    raw: Tensor | None,
    statistics: Statistics,
    padding: str,
    inverse: bool,
) -> nn.Module:
    """Returns a model, or a layer of it by the name "", whose layers at `places` have taken the change; it is used up."""
    for place in places:
        layer, name = part.get_submodule(place), place or "the model"
        width = input_width(layer)
        _refuse_unseen_flattening(model, raw, width, len(statistics.mean), name)
        change = statistics.change(inverse).widened(width, statistics.tiled(raw), name)
        taken = changed(layer, change, padding, name)
        if not place:
            return taken
        part.set_submodule(place, taken)
    return part


def _layers_apart(
    model: nn.Module,
    folded: nn.Module,
    names: list[str],
    fold: Callable[[nn.Module, list[str]], nn.Module],
    statistics: Statistics,
    inverse: bool,
) -> Measured:
    """Returns how far each layer by itself was found from the one it has become."""
    measured = Measured(0.0, 0.0, 0.0)
    for name in names:
        layer = model.get_submodule(name)
        old, new = _inputs(layer, statistics, inverse)
        measured = measured.worse(measure(layer, folded.get_submodule(name), lambda part: fold(part, [""]), old, new))
    return measured


def _cancellation(measured: Measured, ratio: float, dtype: torch.dtype) -> str:
    return say(
        "in {dtype} the folded model differs by {difference:.2g} of {size:.2g}: the raw inputs lie {ratio:.2g} standard "
        "deviations from zero, and W x and the new bias cancel. Keep the standardization outside, or use float64.",
        dtype=str(dtype),
        difference=measured.difference,
        size=measured.size,
        ratio=ratio,
    )


def _readers(model: nn.Module, raw: Tensor | None, statistics: Statistics, inverse: bool) -> list[str]:
    """Returns the names of the layers that read the input."""
    first = by_structure(model)
    if first is not None:
        return [first]
    if raw is None:
        raise FoldError(
            f"the first layer of a {type(model).__name__} cannot be told from its structure; "
            "give a batch of raw inputs (example=...) to find it by a run"
        )
    standard = statistics.standardize(raw, feature_axis(raw, statistics.feature_dim, len(statistics.mean), "example"))
    names = by_running(copy_of(model), (raw if inverse else standard).to(dtype_of(model)))
    if not names:
        raise FoldError(
            f"no layer that can take the standardization reads the input itself; {NAMES} can. "
            "Fold into the part of the model that begins with one"
        )
    return names


def _named(model: nn.Module, raw: Tensor | None, layers: Iterable[str]) -> list[str]:
    """Returns the names that were given, if they can be checked."""
    names = list(require_names("layers", layers, "modules"))
    if not names:
        raise NormalizationError("layers names no layer; leave it out to have the layers found")
    for name in names:
        _refuse_unknown(model, name)
    if raw is None and names != [by_structure(model)]:
        raise FoldError(
            f"whether {', '.join(names)} alone read the input shows only when the model runs: give an example"
        )
    return names


def _refuse_unseen_flattening(model: nn.Module, raw: Tensor | None, width: int, fitted: int, name: str) -> None:
    """Refuses a layer of another width where nothing says that its input is flattened."""
    if raw is None and width != fitted and not any(isinstance(module, nn.Flatten) for module in model.modules()):
        raise FoldError(
            f"{name} reads {width} features, the standardizer was fitted on {fitted}; if the input is flattened before, "
            "give an example"
        )


def _refuse_unknown(model: nn.Module, name: str) -> None:
    """Refuses a name that is no module, or a module that cannot take the change."""
    try:
        layer = model.get_submodule(name)
    except AttributeError as error:
        raise FoldError(f"layers names {name!r}, which is no module of the model; see named_modules()") from error
    if not foldable(layer):
        raise FoldError(
            f"{name or 'the model'} is a {type(layer).__name__}, which cannot take the standardization; {NAMES} can"
        )


def _inputs(layer: nn.Module, statistics: Statistics, inverse: bool) -> tuple[Tensor, Tensor]:
    """Returns what a layer takes before and after, drawn around the mean."""
    shape, axis = example_shape(layer)
    change = statistics.change(inverse=True).widened(shape[axis], statistics.tiled(None), "the layer")
    wide = Statistics(change.shift, change.gain, 1)
    draw = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(
        statistics.mean.device
    )
    view = [-1 if place == axis else 1 for place in range(len(shape))]
    raw = wide.mean.view(view) + wide.scale.view(view) * draw
    standard = wide.standardize(raw, axis)
    return (raw, standard) if inverse else (standard, raw)

"""What a conversion learns from batches: shapes, fitted scales and shifts, statistics, and how much the function changed."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import NormalizationError
from trimtab.norms._channel_moments import ChannelMoments, channel_moments, merge
from trimtab.norms._fit import ChannelFit
from trimtab.norms._passes import Forward, own, run, tensors, undisturbed
from trimtab.norms.channel_layers import ChannelAffine
from trimtab.norms.converting._source import Source
from trimtab.norms.converting._target import Target, set_affine

Pass = Callable[[], Iterable[Any]]
_Heard = Callable[[str, Tensor, Tensor], None]


@dataclass(slots=True)
class Change:
    """The difference of two functions over a stream of outputs; None as long as nothing was compared.

    Attributes:
        largest: Largest absolute difference.
        count: Values compared.
        square: Sum of squared differences.
        square_output: Sum of the old outputs' squares.
    """

    largest: float | None = None
    count: int = 0
    square: float = 0.0
    square_output: float = 0.0

    @property
    def rms(self) -> float | None:
        """Root of the mean squared difference."""
        return (self.square / self.count) ** 0.5 if self.count else None

    @property
    def rms_output(self) -> float | None:
        """Root of the mean square of the old outputs."""
        return (self.square_output / self.count) ** 0.5 if self.count else None

    def add(self, old: Tensor, new: Tensor) -> None:
        """Take in one pair of outputs of the same shape.

        Args:
            old: What the old function gave.
            new: What the new one gives.
        """
        a, b = old.detach().double(), new.detach().double()
        if not a.numel():
            return
        delta = b - a
        largest = float(delta.abs().max())
        self.largest = largest if self.largest is None or not largest <= self.largest else self.largest
        self.count += a.numel()
        self.square += float(delta.square().sum())
        self.square_output += float(a.square().sum())


def input_shapes(
    model: nn.Module, names: Iterable[str], one_pass: Pass, forward: Forward
) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """The shapes of the inputs of layers on the first batch.

    Args:
        model: The model.
        names: The layers.
        one_pass: The batches.
        forward: How the model is called.

    Returns:
        By name, for the layers that were called; and the names of those that were called with more than one argument.

    Raises:
        NormalizationError: If there is no batch.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    more: set[str] = set()

    def before(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            if len(args) + len(keywords) > 1:
                more.add(name)
            if args and isinstance(args[0], Tensor):
                shapes.setdefault(name, tuple(args[0].shape))

        return hook

    layers = [(name, model.get_submodule(name)) for name in names]
    handles = [layer.register_forward_pre_hook(before(name), with_kwargs=True) for name, layer in layers]
    try:
        with undisturbed(model):
            for batch in one_pass():
                run(forward, model, batch)
                return shapes, more
    finally:
        for handle in handles:
            handle.remove()
    raise NormalizationError("batches gave no batch; at least one is needed")


def fit(
    model: nn.Module, sources: Mapping[str, Source], targets: Mapping[str, Target], one_pass: Pass, forward: Forward
) -> set[str]:
    """Fit scales and shifts of the new layers to the outputs of the old ones, and pool the statistics that are new.

    Args:
        model: The old model.
        sources: Its layers.
        targets: The new layers, changed in place where they are not exact.
        one_pass: The batches.
        forward: How the model is called.

    Returns:
        The names of the layers that were fitted.

    Raises:
        NormalizationError: If the batches hold no sample.
    """
    inexact = {name: target for name, target in targets.items() if not target.exact}
    fits = {name: ChannelFit() for name in inexact}
    pooled: dict[str, ChannelMoments] = {}
    heard: set[str] = set()
    batches = 0
    for target in inexact.values():
        _reset(target.norm)

    def hear(name: str, x: Tensor, y: Tensor) -> None:
        target, source = inexact[name], sources[name]
        axis = -1 if source.rows else 1
        if target.open_statistics:
            found = channel_moments(x, axis)
            pooled[name] = found if name not in pooled else merge(pooled[name], found)
        heard.add(name)
        fits[name].add(x if _is_linear(target) else target.module(x), y, axis)

    modes = {name: target.module.training for name, target in inexact.items()}
    for target in inexact.values():
        target.module.eval()
    with _listening(model, inexact, hear), undisturbed(model):
        for batch in one_pass():
            run(forward, model, batch)
            batches += 1
    if empty := [name for name in heard if not fits[name].count]:
        raise NormalizationError(
            f"batches are empty: {empty[0] or 'the model itself'} got no value from any of them, so that nothing can be "
            "fitted; give batches with at least one sample, or none at all (batches=None)"
        )
    for name, target in inexact.items():
        target.module.train(modes[name])
    return {name for name in inexact if _settle(sources[name], inexact[name], fits[name], pooled.get(name), batches)}


def measure(
    old: nn.Module, new: nn.Module, targets: Mapping[str, Target], one_pass: Pass, forward: Forward
) -> tuple[dict[str, Change], Change]:
    """Compare old and new on the batches, in evaluation mode.

    Args:
        old: The old model.
        new: The new one.
        targets: The new layers, by name.
        one_pass: The batches.
        forward: How a model is called.

    Returns:
        The change of each layer for the inputs that it has in the old model, and the change of the whole model.

    Raises:
        NormalizationError: If the two models return tensors of different shapes.
    """
    changes = {name: Change() for name in targets}
    whole = Change()

    def hear(name: str, x: Tensor, y: Tensor) -> None:
        changes[name].add(y, targets[name].module(x))

    with undisturbed(new), undisturbed(old):
        for batch in one_pass():
            with _listening(old, targets, hear):
                before = tensors(run(forward, old, own(batch)))
            after = tensors(run(forward, new, batch))
            if [t.shape for t in before] != [t.shape for t in after]:
                raise NormalizationError(
                    "the model returns other shapes for the same batch after conversion; give a fixed batch"
                )
            for a, b in zip(before, after, strict=True):
                whole.add(a, b)
    return changes, whole


class _listening:  # noqa: N801 -- used as a context manager
    """Hooks on layers that hand on what they take and give."""

    def __init__(self, model: nn.Module, names: Iterable[str], heard: _Heard) -> None:
        self.layers = [(name, model.get_submodule(name)) for name in names]
        self.heard = heard
        self.handles: list[Any] = []

    def __enter__(self) -> None:
        for name, layer in self.layers:
            self.handles.append(layer.register_forward_hook(self._hook(name)))

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if len(args) == 1 and isinstance(args[0], Tensor) and isinstance(output, Tensor):
                self.heard(name, args[0], output)

        return hook


def _is_linear(target: Target) -> bool:
    """Whether the new layer is an affine map of its input in evaluation mode."""
    return isinstance(target.norm, ChannelAffine) or isinstance(getattr(target.norm, "running_mean", None), Tensor)


def _reset(norm: nn.Module) -> None:
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    set_affine(
        norm,
        torch.ones_like(weight) if isinstance(weight, Tensor) else None,
        torch.zeros_like(bias) if isinstance(bias, Tensor) else None,
    )


def _settle(source: Source, target: Target, fit: ChannelFit, pooled: ChannelMoments | None, batches: int) -> bool:
    """Write the fitted numbers; returns whether there was anything to fit."""
    norm = target.norm
    mean, var = getattr(norm, "running_mean", None), getattr(norm, "running_var", None)
    if pooled is not None and isinstance(mean, Tensor) and isinstance(var, Tensor):
        mean.copy_(pooled.mean)
        var.copy_(pooled.variance.nan_to_num(nan=1.0))
        if isinstance(seen := getattr(norm, "num_batches_tracked", None), Tensor):
            seen.fill_(batches)
    weight = getattr(norm, "weight", None)
    if not isinstance(weight, Tensor) or not fit.count:
        set_affine(norm, source.weight, source.bias)
        return False
    carried = (weight if source.weight is None else source.weight.detach()).double()
    with_bias = isinstance(getattr(norm, "bias", None), Tensor)
    if isinstance(mean, Tensor) and isinstance(var, Tensor):  # y = slope x + shift, as the layer writes it
        spread = torch.sqrt(var.double() + source.eps)
        slope, shift = fit.solve(carried / spread, with_bias)
        set_affine(norm, slope * spread, shift + slope * mean.double())
    else:
        set_affine(norm, *fit.solve(carried, with_bias))
    return True

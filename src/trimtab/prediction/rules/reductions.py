"""Sums and means over dimensions."""

from collections.abc import Sequence
from dataclasses import replace

from trimtab.prediction.axes import expanded, fold
from trimtab.prediction.registry import Call, Gradients, register_rule
from trimtab.prediction.rules.contractions import shared
from trimtab.prediction.state import GAUSSIAN, State, dims_of, size


def _dimensions(call: Call) -> tuple[int, ...]:
    ndim = len(call.args[0].shape)
    chosen = call.argument(1, "dim")
    chosen = list(range(ndim)) if chosen is None or chosen == [] else [chosen] if isinstance(chosen, int) else chosen
    return tuple(d % ndim for d in chosen)


def _count(call: Call) -> int:
    return size([call.args[0].shape[d] for d in _dimensions(call)])


def _reduce(call: Call) -> State:
    state, reduced = call.state(call.args[0]), _dimensions(call)
    axes = state.axes(*reduced)
    factor = _count(call) if call.name == "aten.sum" else 1
    kappa = fold(state.kappa, state.sizes, axes).reshape([2] * (state.kappa.ndim - len(axes))) * float(factor) ** 2
    keep = bool(call.argument(2, "keepdim", False))
    dims = tuple(() if d in reduced else f for d, f in enumerate(state.dims) if keep or d not in reduced)
    rest = [a for a in range(len(state.sizes)) if a not in axes]
    q, mean = float(kappa.reshape(-1)[-1]), state.mean * factor
    scatter = state.scatter
    if mean**2 > 0.5 * q > 0:  # a mean of squares, as in RMSNorm: it scatters as they do
        scatter += 4.0 * max(q / mean**2 - 1.0, 0.0) * shared(state, rest)
    return State(dims, kappa, mean, GAUSSIAN, scatter, measured=state.measured)


def _reduce_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    gradient, value = gradients[0], call.args[0]
    if gradient is None:
        return {}
    if gradient.ndim < len(value.shape):
        left = iter(gradient.dims)
        reduced = _dimensions(call)
        gradient = replace(gradient, dims=tuple(() if d in reduced else next(left) for d in range(len(value.shape))))
    wide = [f or new for f, new in zip(gradient.dims, dims_of(value.shape), strict=True)]
    gradient = expanded(gradient, wide)
    return {value.id: gradient if call.name == "aten.sum" else gradient.scaled(1.0 / _count(call))}


register_rule("aten.mean", "aten.sum", forward=_reduce, backward=_reduce_back)

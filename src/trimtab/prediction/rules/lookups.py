"""Entries taken along a dimension by an index."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trimtab.prediction.axes import merged, reshaped
from trimtab.prediction.registry import Call, Gradients, register_rule
from trimtab.prediction.rules.maps import Sums, mapped
from trimtab.prediction.rules.views import one_axis, resized
from trimtab.prediction.state import Array, NoRuleError, State, size


class _Lookup(NamedTuple):
    """Entries taken along a dimension by an index.

    Attributes:
        shape: The input with the dimensions that are looked up as one.
        at: Which dimension that is.
        taken: How many entries are taken.
        repeats: How often the entry of a mean place is taken.
        across: The share of pairs of rows that take the same entry at a place.
    """

    shape: tuple[int, ...]
    at: int
    taken: int
    repeats: float
    across: float


def _lookup(call: Call) -> _Lookup:
    x, out = call.args[0], call.outputs[0]
    assert out is not None
    if call.name != "aten.index":
        at = call.args[1] % len(x.shape)
        repeats, across = call.repeats.get(call.args[2].id, (1.0, 1.0))
        return _Lookup(
            x.shape, at, call.args[2].shape[at] if call.name == "aten.gather" else out.shape[at], repeats, across
        )
    given = call.args[1]
    places = [k for k, v in enumerate(given) if v is not None]
    first = given[places[0]]
    width = len(places) if len(places) > 1 else len(x.shape) - len(out.shape) + 1 if first.id not in call.repeats else 1
    if places != list(range(places[0], places[-1] + 1)):
        raise NoRuleError("indices of dimensions that are no neighbours")
    at = places[0]
    inside, outside = x.shape[at : at + width], (*x.shape[:at], *x.shape[at + width :])
    count = size(out.shape) // size(outside)
    repeats = call.repeats.get(first.id, (1.0, 1.0))[0]
    return _Lookup((*x.shape[:at], size(inside), *x.shape[at + width :]), at, count, repeats, 1.0)


def _taken(call: Call) -> State:
    """Entries are alike: two that are taken are one with the share of repeats, else two different ones."""
    x, out = call.args[0], call.outputs[0]
    assert out is not None
    look = _lookup(call)
    state = call.state(x)
    state = one_axis(state if x.shape == look.shape else reshaped(state, look.shape), look.at)
    n = look.taken
    kappa = state.kappa
    if look.across < 1.0 and state.dims[look.at]:
        kappa = _apart(kappa, state.axes(look.at)[0], look.across)
    result = mapped(replace(state, kappa=kappa), look.at, Sums(n, n, n, n, n * look.repeats))
    if call.name == "aten.gather":
        for d, length in enumerate(out.shape):
            result = resized(result, d, length) if d != look.at else result
        return merged(result)
    return result if look.shape == x.shape and len(out.shape) == len(x.shape) else reshaped(result, out.shape)


def _apart(kappa: Array, axis: int, across: float) -> Array:
    """Where rows take different entries, two rows at one place have only the share `across` of them in common."""
    moved = np.moveaxis(kappa, axis, -1).copy()
    mixed = across * moved[..., 1] + (1.0 - across) * moved[..., 0]
    own = moved[(1,) * moved.ndim]
    moved[..., 1] = mixed
    moved[(1,) * moved.ndim] = own
    return np.moveaxis(moved, -1, axis)


def _taken_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    """Summed where an entry was taken more than once, zero where it was not."""
    gradient, x = gradients[0], call.args[0]
    if gradient is None:
        return {}
    look = _lookup(call)
    shape = list(look.shape)
    shape[look.at] = look.taken
    if call.name == "aten.gather":
        for d, length in enumerate(look.shape):
            if d != look.at:
                gradient = _placed_dimension(gradient, d, length)
    elif tuple(size(f) for f in gradient.dims) != tuple(shape):
        gradient = reshaped(gradient, shape)
    if look.across < 1.0 and size(gradient.dims[look.at]) > 1:
        gradient = one_axis(gradient, look.at)
        gradient = replace(gradient, kappa=_apart(gradient.kappa, gradient.axes(look.at)[0], look.across))
    m, n = look.taken, look.shape[look.at]
    gradient = mapped(gradient, look.at, Sums(n, m, m * look.repeats, m, m))
    if look.across < 1.0 and m == 1 and n > 1:
        axis = gradient.axes(look.at)[0]
        gradient = replace(gradient, kappa=_apart(gradient.kappa, axis, look.across))
    return {x.id: gradient if look.shape == x.shape else reshaped(gradient, x.shape)}


def _placed_dimension(gradient: State, d: int, length: int) -> State:
    m = max(size(gradient.dims[d]), 1)
    return gradient if m == length else mapped(gradient, d, Sums(length, m, m, m, m))


register_rule("aten.index", "aten.index_select", "aten.gather", forward=_taken, backward=_taken_back)

"""Entries in their order: sorting, the largest k, the largest."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, ndtr

from trimtab.prediction.fields import Field, field_of
from trimtab.prediction.laws import coarse
from trimtab.prediction.registry import Call, Gradients, register_rule
from trimtab.prediction.rules.maps import Sums, mapped
from trimtab.prediction.rules.views import one_axis
from trimtab.prediction.state import Array, NoRuleError, State

FINE, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
GRID = np.linspace(-8.0, 8.0, 401)
MOST = 4096


@functools.lru_cache(maxsize=64)
def largest(count: int, k: int = 1) -> tuple[Array, Array]:
    """Points and weights of one of the k largest of `count` independent standard Gaussians.

    An entry z is among them if less than k of the others are above it, a binomial probability.

    Args:
        count: How many there are.
        k: How many of them are taken.

    Returns:
        Points and weights.
    """
    weights = np.exp(-0.5 * GRID**2) * (bdtr(k - 1, count - 1, ndtr(-GRID)) if k < count else 1.0)
    return GRID, weights / weights.sum()


class _Taken(NamedTuple):
    """Which entries are taken: along which dimension, how many of how many, whether the dimension stays."""

    dimension: int
    among: int
    k: int
    up: bool
    keeps: bool


def _choice(call: Call) -> _Taken:
    x = call.args[0]
    names = [a.name for a in call.function._schema.arguments]
    given = dict(zip(names, call.args, strict=False)) | call.kwargs
    dimension = given.get("dim", 0 if call.name in {"aten.max", "aten.min"} else -1)
    if isinstance(dimension, list | tuple):
        if len(dimension) != 1:
            raise NoRuleError("the largest over several dimensions")
        dimension = dimension[0]
    if "dim" not in given and call.name in {"aten.max", "aten.min", "aten.amax", "aten.amin"}:
        raise NoRuleError("the largest of all")
    n = x.shape[dimension]
    k = {"aten.sort": n, "aten.topk": given.get("k", 1)}.get(call.name, 1)
    up = call.name not in {"aten.min", "aten.amin"} and given.get("largest", True)
    keeps = call.name in {"aten.sort", "aten.topk"} or bool(given.get("keepdim", False))
    return _Taken(dimension % len(x.shape), n, int(k), bool(up), keeps)


class _Ordered(NamedTuple):
    """The field before, and for what all of a row share (first axis) and its own part the values and slopes of what is taken."""

    field: Field
    values: Array
    slopes: Array
    weights: Array


def _ordered(call: Call, choice: _Taken) -> _Ordered:
    value = call.args[0]
    state = call.state(value)
    if not state.dims[choice.dimension] or choice.among > MOST:
        raise NoRuleError(f"the order of {choice.among} entries")
    field = state.field or field_of(value.id, state)
    order = np.argsort(field.z)
    start = field.start
    variance = start.second_moment - start.mean**2
    if variance <= 0 or start.law is not None or np.any(np.diff(field.values[order]) < -1e-9):
        raise NoRuleError("the order of a function that is not increasing")
    axis = one_axis(start, choice.dimension).axes(choice.dimension)[0]
    inside = float(
        one_axis(start, choice.dimension).kappa[tuple(0 if a == axis else 1 for a in range(_axes(start, choice)))]
    )
    rho = min(max((inside - start.mean**2) / variance, 0.0), 1.0)
    points, weights = largest(choice.among, choice.k)
    z = rho**0.5 * FINE[:, None] + (1.0 - rho) ** 0.5 * (points if choice.up else -points)
    whole = (WEIGHTS / WEIGHTS.sum())[:, None] * weights
    return _Ordered(
        field,
        np.interp(z, field.z[order], field.values[order]),
        np.interp(z, field.z[order], field.slopes[order]),
        whole,
    )


def _axes(state: State, choice: _Taken) -> int:
    return one_axis(state, choice.dimension).kappa.ndim


def _order(call: Call) -> Sequence[State | None]:
    """Order statistics: all rows share what each place has in the mean, and places of one row add to what they are together."""
    choice = _choice(call)
    _, values, _, weights = _ordered(call, choice)
    mean, q = float((weights * values).sum()), float((weights * values**2).sum())
    common = float(weights.sum(1) @ ((weights * values).sum(1) / weights.sum(1)) ** 2) - mean**2
    state = one_axis(call.state(call.args[0]), choice.dimension)
    axis, k = state.axes(choice.dimension)[0], choice.k
    before = max(state.second_moment - state.mean**2, 1e-300)
    apart = np.take(state.kappa, 0, axis) - state.mean**2
    inside = float(apart.reshape(-1)[-1])
    rows = apart * (common / inside) if inside > 1e-12 * before else np.zeros_like(apart)
    places = _places(values, weights, choice)
    same, different = mean**2 + rows + places, mean**2 + rows - places / max(k - 1, 1)
    same[(1,) * same.ndim] = q
    different[(1,) * different.ndim] = mean**2 + common - (q - mean**2 - common) / max(k - 1, 1)
    kappa = np.stack([different, same], axis) if k > 1 else same
    dims: tuple[tuple[int, ...], ...] = (
        *state.dims[: choice.dimension],
        (k,) if k > 1 else (),
        *state.dims[choice.dimension + 1 :],
    )
    if not choice.keeps:
        dims = (*dims[: choice.dimension], *dims[choice.dimension + 1 :])
    spread = max(float((weights * values**4).sum()) / q**2 - 1.0, 0.0) if q > 0 else 0.0
    taken = State(dims, kappa, mean, spread, state.scatter, state.alike, measured=state.measured)
    return [taken, *[None] * (len(call.outputs) - 1)]


def _places(values: Array, weights: Array, choice: _Taken) -> float:
    """Variance, over the places, of what each has in the mean: slices of equal weight of all that are taken."""
    if choice.k == 1:
        return 0.0
    row = int(len(values) // 2)
    law = coarse((values[row - 1 : row + 1].mean(0), weights[row] / weights[row].sum()), choice.k)
    mean = float(law[1] @ law[0])
    return float(law[1] @ (law[0] - mean) ** 2)


def _order_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    """To the entries that were taken, which the function before lets pass as often as such entries do."""
    gradient, value = gradients[0], call.args[0]
    if gradient is None:
        return {}
    choice = _choice(call)
    field, _, slopes, weights = _ordered(call, choice)
    if not choice.keeps:
        d = choice.dimension
        gradient = replace(gradient, dims=(*gradient.dims[:d], (), *gradient.dims[d:]))
    n, k = choice.among, choice.k
    routed = mapped(gradient, choice.dimension, Sums(n, k, k, k, k))
    # other rows have these places in another order
    axis = routed.axes(choice.dimension)[0]
    table = np.moveaxis(routed.kappa, axis, -1).copy()
    mixed = (table[..., 1] + (n - 1) * table[..., 0]) / n
    own = table[(1,) * (table.ndim - 1)].copy()
    table[..., 0] = table[..., 1] = mixed
    table[(1,) * (table.ndim - 1)] = own
    routed = replace(routed, kappa=np.moveaxis(table, -1, axis))
    if field.base == value.id:
        return {value.id: routed}
    call.shown[value.id] = routed.second_moment
    return {field.base: routed.scaled(float((weights * slopes**2).sum()) ** 0.5)}


register_rule(
    "aten.sort", "aten.topk", "aten.max", "aten.min", "aten.amax", "aten.amin", forward=_order, backward=_order_back
)

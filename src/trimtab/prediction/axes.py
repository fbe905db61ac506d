"""Averages over axes, products summed over axes, and views, on tables of covariances."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trimtab.prediction.state import MANY_AXES, Array, NoRuleError, State, size

Labels = Sequence[Sequence[str]]


def fold(table: Array, sizes: Sequence[int], axes: Sequence[int]) -> Array:
    """Covariances after averaging over axes, (kappa_1 + (n - 1) kappa_0)/n for each; the axes stay, of size 1."""
    for axis in axes:
        n = sizes[axis]
        table = (np.take(table, [1], axis) + (n - 1) * np.take(table, [0], axis)) / n
    return table


def centred(table: Array, sizes: Sequence[int], axes: Sequence[int]) -> Array:
    """Covariances after taking off the mean over axes."""
    return table - fold(table, sizes, axes)


def split(state: State, axis: int, first: int) -> State:
    """The axis as two, of `first` and of the remaining size: two entries differ where either part does."""
    n = state.sizes[axis]
    apart, same = np.take(state.kappa, 0, axis), np.take(state.kappa, 1, axis)
    pair = np.stack([np.stack([apart, apart], axis), np.stack([apart, same], axis)], axis)
    dims, start = list(state.dims), 0
    for dimension, factors in enumerate(state.dims):
        if start <= axis < start + len(factors):
            at = axis - start
            dims[dimension] = (*factors[:at], first, n // first, *factors[at + 1 :])
        start += len(factors)
    return replace(state, dims=tuple(dims), kappa=pair, field=None)


def refactored(state: State, wanted: Sequence[Sequence[int]]) -> State:
    """The same dimensions, with axes split until each dimension has at least the cuts of `wanted`."""
    for dimension, factors in enumerate(wanted):
        position, left = 0, list(factors)
        while left:
            axis = state.axes(dimension)[position]
            have = state.sizes[axis]
            if have == left[0]:
                left.pop(0)
            elif have % left[0] == 0:
                state = split(state, axis, left[0])
                left.pop(0)
            elif left[0] % have == 0:
                left[0] //= have
            else:
                raise NoRuleError(f"an axis of {have} entries that is cut at {left[0]}")
            position += 1
    return state


def reshaped(state: State, shape: Sequence[int]) -> State:
    """The state after a view to another shape of as many entries."""
    if size(shape) != size(state.sizes):
        raise NoRuleError(f"a view of {size(state.sizes)} entries to {tuple(shape)}")
    mask = state.mask
    if mask is not None:
        mask = replace(reshaped(expanded(mask, state.dims), shape), law=mask.law)
    flat = replace(state, dims=(state.sizes,), mask=mask)
    flat = refactored(flat, [[n for n in shape if n > 1]])
    factors, dims = list(flat.dims[0]), []
    for n in shape:
        mine: list[int] = []
        while size(mine) < n:
            mine.append(factors.pop(0))
        if size(mine) != n:
            raise NoRuleError(f"a view to {tuple(shape)} across its axes {state.sizes}")
        dims.append(tuple(mine))
    return merged(replace(flat, dims=tuple(dims), near=(), profile=(), law=None, field=None))


def merged(state: State) -> State:
    """Neighbouring axes of one dimension as one, where nothing tells them apart or there are too many."""
    for limit in (1e-9, np.inf):
        dimension = 0
        while dimension < state.ndim and not (limit == np.inf and state.kappa.ndim <= MANY_AXES - 1):
            axes = state.axes(dimension)
            for a, b in itertools.pairwise(axes):
                whole = _merge(state, dimension, a, b, limit)
                if whole is not None:
                    state = whole
                    break
            else:
                dimension += 1
    return state


def merge_first(state: State, dimension: int) -> State:
    """The first two axes of a dimension as one."""
    a, b = state.axes(dimension)[:2]
    whole = _merge(state, dimension, a, b, np.inf)
    assert whole is not None
    return whole


def _merge(state: State, dimension: int, a: int, b: int, limit: float) -> State | None:
    table = np.moveaxis(state.kappa, (a, b), (0, 1))
    n, m = state.sizes[a], state.sizes[b]
    apart = ((n - 1) * (m - 1) * table[0, 0] + (n - 1) * table[0, 1] + (m - 1) * table[1, 0]) / (n * m - 1)
    loss = max(np.abs(table[0, 1] - table[0, 0]).max(), np.abs(table[1, 0] - table[0, 0]).max())
    if loss > limit * max(abs(state.second_moment), 1e-300):
        return None
    kappa = np.moveaxis(np.stack([apart, table[1, 1]]), 0, a)
    first = state.axes(dimension)[0]
    factors = state.dims[dimension]
    whole = (*factors[: a - first], n * m, *factors[b - first + 1 :])
    dims = (*state.dims[:dimension], whole, *state.dims[dimension + 1 :])
    return replace(state, dims=dims, kappa=kappa, field=None)


def expanded(state: State, dims: Sequence[Sequence[int]]) -> State:
    """The state broadcast to these dimensions: entries along a new axis are equal."""
    new = len(dims) - state.ndim
    state = replace(state, dims=((),) * new + state.dims)
    for dimension, factors in enumerate(dims):
        if not state.dims[dimension] and factors:
            at = state.axes(*range(dimension))
            place = len(at)
            table = state.kappa
            for _ in factors:
                table = np.stack([table, table], place)
            state = replace(
                state, dims=(*state.dims[:dimension], tuple(factors), *state.dims[dimension + 1 :]), kappa=table
            )
    return refactored(state, dims)


def aligned(a: State, b: State) -> tuple[State, State]:
    """Both broadcast to one shape and cut at the same places."""
    ndim = max(a.ndim, b.ndim)
    full = [((),) * (ndim - s.ndim) + s.dims for s in (a, b)]
    a = expanded(a, [x or y for x, y in zip(*full, strict=True)])
    b = expanded(b, a.dims)
    return refactored(a, b.dims), b


def contract(a: State, first: Labels, b: State, second: Labels, out: Labels) -> State:
    """Sum of products over the labels that `out` leaves out, of two tensors that know nothing of each other.

    Products of independent covariances multiply; a sum over n products has the covariance n kappa_1 + n (n - 1) kappa_0
    of the product (for x W the length and correlation maps with the actual weights, Poole et al. 2016, eqs. 3 and 5).

    Args:
        a: One tensor.
        first: A label for each axis of each of its dimensions.
        b: The other.
        second: Its labels.
        out: Those of the result.

    Returns:
        The state of the result, without scatter of its own.
    """
    mine, theirs, kept = (list(itertools.chain.from_iterable(x)) for x in (first, second, out))
    sizes = dict(zip(mine, a.sizes, strict=True)) | dict(zip(theirs, b.sizes, strict=True))
    summed = [label for label in dict.fromkeys([*mine, *theirs]) if label not in kept]
    order = [*kept, *summed]
    table = _spread(a.kappa, mine, order) * _spread(b.kappa, theirs, order)
    count = 1
    for label in reversed(summed):
        n = sizes[label]
        table = n * table[..., 1] + n * (n - 1) * table[..., 0]
        count *= n
    dims = tuple(tuple(sizes[label] for label in dimension) for dimension in out)
    kappa = np.broadcast_to(table, (2,) * len(kept)).copy()
    return State(
        dims,
        kappa,
        count * a.mean * b.mean,
        scatter=a.scatter + b.scatter,
        measured=a.measured or b.measured,
    )


def _spread(table: Array, labels: Sequence[str], order: Sequence[str]) -> Array:
    """The table with its axes in this order; along labels that it has not, entries do not differ."""
    present = [label for label in order if label in labels]
    moved = np.transpose(table, [list(labels).index(label) for label in present])
    moved = moved.reshape([2 if label in present else 1 for label in order])
    return np.broadcast_to(moved, (2,) * len(order))


def named(state: State, names: Sequence[str]) -> list[list[str]]:
    """A label for each axis: the dimension's name, numbered where it has several."""
    return [[f"{name}{k}" for k in range(len(factors))] for name, factors in zip(names, state.dims, strict=True)]


def matched(a: State, i: int, b: State, j: int) -> tuple[State, State]:
    """Both with dimension i of one cut as dimension j of the other."""
    cuts: list[tuple[int, ...]] = [()] * a.ndim
    cuts[i] = b.dims[j]
    a = refactored(a, cuts)
    cuts = [()] * b.ndim
    cuts[j] = a.dims[i]
    return a, refactored(b, cuts)

"""Operations that give entries another place: views, selections, copies, joins."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trimtab.prediction.axes import aligned, expanded, merge_first, merged, reshaped
from trimtab.prediction.registry import Call, Forward, Gradients, Value, register_rule
from trimtab.prediction.rules.pointwise import summed_to
from trimtab.prediction.state import NoRuleError, State, dims_of, size


def permuted(state: State, order: Sequence[int]) -> State:
    """The state with its dimensions in another order."""
    axes = [axis for d in order for axis in state.axes(d)]
    dims = tuple(state.dims[d] for d in order)
    near = state.near if list(order) == list(range(state.ndim)) else ()
    parts = (list(order).index(state.parts[0]), *state.parts[1:]) if state.parts is not None else None
    profile = state.profile if near else ()
    return replace(
        state, dims=dims, kappa=np.transpose(state.kappa, axes), near=near, profile=profile, field=None, parts=parts
    )


def _order(call: Call) -> list[int]:
    n = call.state(call.args[0]).ndim
    order = list(range(n))
    if call.name == "aten.permute":
        return [d % n for d in call.args[1]]
    if call.name == "aten.t":
        return order[::-1]
    i, j = call.args[1] % n, call.args[2] % n
    order[i], order[j] = order[j], order[i]
    return order


def _permute(call: Call) -> State:
    return permuted(call.state(call.args[0]), _order(call))


def _permute_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    order = _order(call)
    back = sorted(range(len(order)), key=order.__getitem__)
    return {} if gradients[0] is None else {call.args[0].id: permuted(gradients[0], back)}


def _reshape(call: Call) -> State:
    out = call.outputs[0]
    assert out is not None
    state = call.state(call.args[0])
    if call.args[0].shape == out.shape:  # a copy: the same entries, and still the same function of them
        return state
    return reshaped(state, out.shape)


def _reshape_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    return {} if gradients[0] is None else {call.args[0].id: reshaped(gradients[0], call.args[0].shape)}


def _expand(call: Call) -> State:
    out = call.outputs[0]
    assert out is not None
    return expanded(call.state(call.args[0]), dims_of(out.shape)) if out.shape != call.args[0].shape else _reshape(call)


def _expand_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    return {} if gradients[0] is None else {call.args[0].id: summed_to(gradients[0], call.args[0].shape)}


def resized(state: State, dimension: int, n: int) -> State:
    """The state of n entries along a dimension, of as many alike; 1 leaves no axis."""
    state = one_axis(state, dimension)
    if (size(state.dims[dimension]) > 1) == (n > 1):
        return replace(state, dims=_with(state.dims, dimension, (n,) if n > 1 else ()), field=None)
    if n == 1:
        kappa = np.take(state.kappa, 1, state.axes(dimension)[0])
        return replace(state, dims=_with(state.dims, dimension, ()), kappa=kappa, field=None)
    raise NoRuleError("entries that were not there")


def one_axis(state: State, dimension: int) -> State:
    """The state with one axis in a dimension."""
    while len(state.dims[dimension]) > 1:
        state = merge_first(state, dimension)
    return state


def _with(dims: tuple[tuple[int, ...], ...], dimension: int, factors: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return (*dims[:dimension], factors, *dims[dimension + 1 :])


def _dimension(call: Call) -> int:
    default = call.argument(2, "dim", 0) if call.name in {"aten.split", "aten.unsafe_split", "aten.chunk"} else None
    position = {"aten.split_with_sizes": 2, "aten.unsafe_split_with_sizes": 2}.get(call.name, 1)
    chosen = default if default is not None else call.argument(position, "dim", 0)
    return int(chosen) % len(call.args[0].shape)


def _part(call: Call) -> Value | None:
    """The tensor that was stacked in the place that is selected."""
    parts = call.state(call.args[0]).parts
    if call.name != "aten.select" or parts is None or parts[0] != _dimension(call):
        return None
    chosen: Value = parts[1][int(call.argument(2, "index"))]
    call.states.setdefault(chosen.id, parts[2][chosen.id])
    return chosen


def _select(call: Call) -> "State | Sequence[State | None]":
    """Entries of one or several places along a dimension, which are alike: the covariances stay."""
    state, dimension = call.state(call.args[0]), _dimension(call)
    chosen = _part(call)
    if chosen is not None:
        return call.state(chosen)
    found: list[State | None] = []
    for out in call.outputs:
        if out is None:
            found.append(None)
        elif len(out.shape) < state.ndim:
            part = resized(state, dimension, 1)
            found.append(replace(part, dims=(*part.dims[:dimension], *part.dims[dimension + 1 :]), near=()))
        else:
            found.append(resized(state, dimension, out.shape[dimension]))
    return found


def _select_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    """Zeros everywhere else: each part adds its share of the places."""
    value, dimension = call.args[0], _dimension(call)
    chosen = _part(call)
    if chosen is not None:
        return {} if gradients[0] is None else {chosen.id: gradients[0]}
    total: State | None = None
    n = value.shape[dimension]
    for out, gradient in zip(call.outputs, gradients, strict=True):
        if out is None or gradient is None:
            continue
        if gradient.ndim < len(value.shape):
            gradient = replace(gradient, dims=(*gradient.dims[:dimension], (), *gradient.dims[dimension:]))
        part = _placed(gradient, dimension, out.shape[dimension] if len(out.shape) == len(value.shape) else 1, n)
        if total is None:
            total = part
        else:
            first, second = aligned(total, part)
            total = replace(first, kappa=first.kappa + second.kappa, mean=first.mean + second.mean)
    return {} if total is None else {value.id: total}


def _placed(gradient: State, dimension: int, m: int, n: int) -> State:
    """The gradient with m of n places filled: two places are both filled for (m/n)((m - 1)/(n - 1)) of the pairs."""
    if m == n:
        return gradient
    gradient = one_axis(gradient, dimension)
    axis = len(gradient.axes(*range(dimension)))
    if gradient.dims[dimension]:
        apart, same = np.take(gradient.kappa, 0, axis), np.take(gradient.kappa, 1, axis)
    else:
        apart = same = gradient.kappa
    kappa = np.stack([apart * (m / n) * ((m - 1) / (n - 1)), same * (m / n)], axis)
    dims = _with(gradient.dims, dimension, (n,))
    return replace(gradient, dims=dims, kappa=kappa, mean=gradient.mean * m / n, field=None)


def _join(call: Call) -> State:
    """Parts side by side: means over the parts; different parts share their means alone."""
    values: list[Value] = [v for v in call.args[0] if v is not None]  # an empty cache has no memory, and no name
    out = call.outputs[0]
    assert out is not None
    new = call.name == "aten.stack"
    dimension = int(call.argument(1, "dim", 0)) % len(out.shape)
    states = [call.state(v) for v in values if size(v.shape)]
    if new:
        states = [replace(s, dims=(*s.dims[:dimension], (), *s.dims[dimension:]), field=None, near=()) for s in states]
    if len(states) == 1:
        return states[0]
    parts = [one_axis(s, dimension) for s in states]
    sizes = [max(size(s.dims[dimension]), 1) for s in parts]
    n = sum(sizes)
    tables = []
    for part, m in zip(parts, sizes, strict=True):
        axis = len(part.axes(*range(dimension)))
        table = part.kappa if m > 1 else np.stack([part.kappa, part.kappa], axis)
        tables.append(replace(part, dims=_with(part.dims, dimension, (n,)), kappa=table))
    for k in range(1, len(tables)):
        tables[0], tables[k] = aligned(tables[0], tables[k])
    axis = tables[0].axes(dimension)[0]
    same = sum(np.take(s.kappa, 1, axis) * m / n for s, m in zip(tables, sizes, strict=True))
    inside = sum(np.take(s.kappa, 0, axis) * m * (m - 1) for s, m in zip(tables, sizes, strict=True))
    mean = sum(s.mean * m for s, m in zip(tables, sizes, strict=True))
    across = mean**2 - sum((s.mean * m) ** 2 for s, m in zip(tables, sizes, strict=True))
    kappa = np.stack([(inside + across) / (n * (n - 1)), same], axis)
    weights = [m / n for m in sizes]
    held = (dimension, tuple(values), {v.id: call.state(v) for v in values}) if new else None
    near = states[0].near if dimension == 1 and len(out.shape) == 4 else ()
    return State(
        tables[0].dims,
        kappa,
        mean / n,
        sum(w * s.spread for w, s in zip(weights, states, strict=True)),
        sum(w * s.scatter for w, s in zip(weights, states, strict=True)),
        max(s.alike for s in states),
        near=near,
        parts=held,
        measured=any(s.measured for s in states),
    )


def _join_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    if gradients[0] is None:
        return {}
    out = call.outputs[0]
    assert out is not None
    dimension = int(call.argument(1, "dim", 0)) % len(out.shape)
    found: dict[int, State] = {}
    for value in call.args[0]:
        if value is None or value.known or not size(value.shape):
            continue
        if call.name == "aten.stack":
            part = resized(gradients[0], dimension, 1)
            part = replace(part, dims=(*part.dims[:dimension], *part.dims[dimension + 1 :]))
        else:
            part = resized(gradients[0], dimension, value.shape[dimension])
        if value.id in found:
            first, second = aligned(found[value.id], part)
            part = replace(first, kappa=first.kappa + second.kappa)
        found[value.id] = part
    return found


def _flip(call: Call) -> State:
    return replace(call.state(call.args[0]), field=None)


def _flip_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    return {} if gradients[0] is None else {call.args[0].id: gradients[0]}


def _copied(call: Call) -> State:
    out = call.outputs[0]
    assert out is not None
    return merged(expanded(call.state(call.args[1]), dims_of(out.shape)))


def _copied_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    return {} if gradients[0] is None else {call.args[1].id: summed_to(gradients[0], call.args[1].shape)}


_select_rule: Forward = _select
register_rule("aten.permute", "aten.t", "aten.transpose", forward=_permute, backward=_permute_back)
register_rule(
    "aten.view", "aten._unsafe_view", "aten.reshape", "aten.unsqueeze", "aten.squeeze", "aten.clone", "aten._to_copy",
    "aten._reshape_alias", "aten.flatten", "aten.contiguous",
    forward=_reshape, backward=_reshape_back,
)  # fmt: skip
register_rule("aten.expand", forward=_expand, backward=_expand_back)
register_rule(
    "aten.select", "aten.slice", "aten.unbind", "aten.split", "aten.split_with_sizes", "aten.unsafe_split", "aten.chunk",
    "aten.narrow",
    forward=_select_rule, backward=_select_back,
)  # fmt: skip
register_rule("aten.cat", "aten.stack", forward=_join, backward=_join_back)
register_rule("aten.flip", "aten.roll", forward=_flip, backward=_flip_back)
register_rule("aten.copy", forward=_copied, backward=_copied_back)

"""Tensors that were written piece by piece: padding by hand, sequences of different lengths, caches."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trimtab.prediction.axes import aligned, merged, reshaped
from trimtab.prediction.registry import Call, Gradients, Value, register_rule
from trimtab.prediction.rules.maps import Sums, mapped
from trimtab.prediction.rules.views import resized
from trimtab.prediction.state import NoRuleError, State, size


class _Part(NamedTuple):
    """A part that was written.

    Attributes:
        value: What was written.
        shape: Its shape in the dimensions of the whole.
        left: The share of it that later parts have left.
    """

    value: Value
    shape: tuple[int, ...]
    left: float


def _parts(call: Call) -> tuple[list[_Part], float, _Part | None]:
    """The parts, the share of the whole without one, and the part that the tensor itself lies in, if there is one."""
    base, values, places = call.args
    out = call.outputs[0]
    assert out is not None
    if not values or None in places:
        raise NoRuleError("a write into a part of another shape")
    parts, room = [], 1.0
    for value, shape in zip(reversed(values), reversed(places), strict=True):
        share = size(shape) / size(out.shape)
        parts.append(_Part(value, shape, min(1.0, room / share)))
        room = max(room - share, 0.0)
    outer = next((p for p in parts if all(a >= b for a, b in zip(p.shape, out.shape, strict=True))), None)
    if base is not None and base.shape != out.shape:
        raise NoRuleError("a write into a part of a view")
    return parts, room if room > 1e-9 else 0.0, outer


def _thinned(state: State, share: float) -> State:
    """The state where only this share of the entries is left, the others zero."""
    kappa = state.kappa * share**2
    kappa[(1,) * kappa.ndim] = state.second_moment * share
    return replace(state, kappa=kappa, mean=state.mean * share, field=None, law=None)


def _sized(state: State, shape: Sequence[int]) -> State:
    """The state of a part of a tensor."""
    for d, n in enumerate(shape):
        state = resized(state, d, n) if size(state.dims[d]) != n else state
    return state


def _within(state: State, shape: Sequence[int]) -> State:
    """The state of a tensor that is zero but for this part."""
    for d, n in enumerate(shape):
        m = size(state.dims[d])
        state = mapped(state, d, Sums(n, m, m, m, m)) if m != n else state
    return state


def _written(call: Call) -> State:
    """The sum of the parts, each zero elsewhere, and of what they leave: zeros, or what was there before."""
    parts, room, outer = _parts(call)
    out = call.outputs[0]
    assert out is not None
    if outer is not None:
        return _sized(reshaped(call.state(outer.value), outer.shape), out.shape)
    total = _thinned(call.state(call.args[0]), room) if call.args[0] is not None and room else None
    for value, shape, left in parts:
        total = _together(total, _thinned(_within(reshaped(call.state(value), shape), out.shape), left))
    assert total is not None
    return merged(replace(total, field=None, law=None, near=(), profile=()))


def _together(total: State | None, part: State) -> State:
    """Two tensors that are never both there at one place; at two places their means multiply."""
    if total is None:
        return part
    first, second = aligned(total, part)
    kappa = first.kappa + second.kappa + 2.0 * first.mean * second.mean
    kappa[(1,) * kappa.ndim] = first.second_moment + second.second_moment
    q = np.array([first.second_moment, second.second_moment])
    share = q / max(q.sum(), 1e-300)
    return replace(
        first,
        kappa=kappa,
        mean=first.mean + second.mean,
        spread=float(share @ [first.spread, second.spread]),
        scatter=float(share @ np.sqrt([first.scatter, second.scatter])) ** 2,
        alike=max(first.alike, second.alike),
        measured=first.measured or second.measured,
    )


def _written_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    gradient = gradients[0]
    if gradient is None:
        return {}
    parts, room, outer = _parts(call)
    if outer is not None:
        return {outer.value.id: reshaped(_within(gradient, outer.shape), outer.value.shape)}
    found: dict[int, State] = {}
    for value, shape, left in parts:
        found[value.id] = reshaped(_thinned(_sized(gradient, shape), left), value.shape)
    if call.args[0] is not None and room:
        found[call.args[0].id] = _thinned(gradient, room)
    return found


register_rule("trimtab.written_in_parts", forward=_written, backward=_written_back)

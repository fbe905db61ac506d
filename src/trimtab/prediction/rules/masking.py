"""What leaves entries out: dropout, masked filling, and the choice between two tensors by a mask."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from trimtab.prediction.axes import aligned
from trimtab.prediction.registry import Call, Gradients, Value, register_rule
from trimtab.prediction.rules.pointwise import added, multiplied, summed_to
from trimtab.prediction.state import Array, Dims, NoRuleError, State

HIDES = -1e4
"""A fill of this or less is meant for -inf in half precision: a softmax gives nothing to it."""


def _noise(call: Call, dims: Dims) -> State:
    """1/(1 - p) with probability 1 - p, else 0 (Srivastava et al. 2014)."""
    keep = 1.0 if call.argument(2, "train") is False else 1.0 - float(call.args[1])
    if keep <= 0.0:
        raise NoRuleError("dropout of everything")
    kappa = np.ones((2,) * sum(map(len, dims)))
    kappa[(1,) * kappa.ndim] = 1.0 / keep
    return State(dims, kappa, 1.0, 1.0 / keep - 1.0)


def _dropout(call: Call) -> Sequence[State | None]:
    state = call.state(call.args[0])
    return [multiplied(state, _noise(call, state.dims)), None]


def _dropout_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    gradient = gradients[0]
    return {} if gradient is None else {call.args[0].id: multiplied(gradient, _noise(call, gradient.dims))}


def _left(mask: State) -> State:
    """The mask of the others, 1 - m."""
    return replace(mask, kappa=1.0 - 2.0 * mask.mean + mask.kappa, mean=1.0 - mask.mean)


class _Filled(NamedTuple):
    """What is kept, what it is filled with, and where."""

    kept: Value
    fill: Value | float
    mask: State
    hides: bool


def _filled(call: Call) -> _Filled:
    x, mask, fill = call.args[:3] if call.name == "aten.masked_fill" else (call.args[1], call.args[0], call.args[2])
    where = call.state(mask)
    if call.name == "aten.where":  # which keeps where the mask is true
        where = replace(_left(where), mask=where.mask)
        if _number(call, x) is not None:
            x, fill, where = fill, x, replace(_left(where), mask=where.mask)
    number = _number(call, fill)
    hides = number is not None and number <= HIDES
    if call.name == "aten.where" and not (hides or mask.known):
        raise NoRuleError("a choice by a mask that the signal has made")
    return _Filled(x, fill if number is None else number, where, hides)


def _number(call: Call, item: Any) -> float | None:
    """A fill that is one number, None if it is a tensor."""
    if isinstance(item, Value):
        return call.state(item).mean if item.known and not item.shape else None
    return float(item)


def _fill(call: Call) -> State:
    """(1 - m) x + m y, of which never both are there; or scores under a mask."""
    x, fill, mask, hides = _filled(call)
    state = call.state(x)
    if hides:
        return replace(aligned(state, mask)[0], mask=mask.mask, field=None)
    other = (
        replace(mask, kappa=np.full_like(mask.kappa, fill**2), mean=fill)
        if isinstance(fill, float)
        else call.state(fill)
    )
    kept, filled = aligned(multiplied(state, _left(mask)), multiplied(other, mask))
    both: Array = mask.mean - aligned(mask, kept)[0].kappa  # E[(1 - m) m'] = E m - E m m'
    whole = added(replace(kept, mean=0.0), replace(filled, mean=0.0))
    kappa = whole.kappa + 2.0 * state.mean * other.mean * both
    q, fourth = float(kappa.reshape(-1)[-1]), sum((s.spread + 1.0) * s.second_moment**2 for s in (kept, filled))
    spread = max(fourth / q**2 - 1.0, 0.0) if q > 0 else 0.0
    return replace(whole, kappa=kappa, mean=kept.mean + filled.mean, spread=spread, law=None, mask=None)


def _fill_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    gradient = gradients[0]
    if gradient is None:
        return {}
    x, fill, mask, hides = _filled(call)
    if hides:  # the softmax behind has given nothing to what is left out
        return {x.id: summed_to(gradient, x.shape)}
    shares = ((x, _left(mask)), (fill, mask))
    return {
        item.id: summed_to(multiplied(gradient, share), item.shape)
        for item, share in shares
        if isinstance(item, Value) and not item.known
    }


register_rule("aten.native_dropout", "aten._fused_dropout", forward=_dropout, backward=_dropout_back)
register_rule("aten.masked_fill", "aten.where", forward=_fill, backward=_fill_back)

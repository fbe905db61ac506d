"""Convolutions of any stride, padding, dilation, groups and dimension, transposed ones too."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trimtab.prediction.axes import contract, merged, refactored, split
from trimtab.prediction.registry import Call, Gradients, register_rule
from trimtab.prediction.rules.contractions import grown, noise
from trimtab.prediction.rules.pointwise import added, summed_to
from trimtab.prediction.rules.views import resized
from trimtab.prediction.state import GAUSSIAN, State, size
from trimtab.propagation import PropagationError, fans, padded_fans


class _Shape(NamedTuple):
    """Which dimension of the weight is summed over, and which part of its products there is on average."""

    summed: int
    groups: int
    present: float


def _settings(call: Call) -> tuple[list[int], list[int], list[int], bool, int]:
    _, _, _, stride, padding, dilation, transposed, _, groups = call.args[:9]
    taps = len(call.args[1].shape) - 2
    wide = [list(v) * taps if len(v) == 1 else list(v) for v in (stride, padding, dilation)]
    return wide[0], wide[1], wide[2], transposed, groups


def _present(call: Call) -> tuple[float, float]:
    """Shares of the products that an output sums, and that an input feeds: not those with padding or between strides."""
    x, weight = call.args[:2]
    stride, padding, dilation, transposed, groups = _settings(call)
    out = call.outputs[0]
    assert out is not None
    full = weight.shape[1] * math.prod(weight.shape[2:]), weight.shape[0] / groups * math.prod(weight.shape[2:])
    try:
        if transposed:  # the adjoint of a convolution from its output to its input
            first, second = padded_fans(weight.shape, out.shape[2:], stride, padding, dilation, groups)
        else:
            first, second = padded_fans(weight.shape, x.shape[2:], stride, padding, dilation, groups)
    except PropagationError:
        first, second = fans(weight.shape, stride, groups)
    shares = first / full[0], second / full[1]
    return (shares[1], shares[0]) if transposed else shares


def _convolved(state: State, weight: State, places: Sequence[int], shape: _Shape) -> State:
    """Sum over channels and taps: two taps are two different places, and so are two positions of the output."""
    summed, groups, present = shape
    taps = [size(f) for f in weight.dims[2:]]
    if groups > 1:
        state = refactored(state, [(), (groups,), *[()] * len(taps)])
        weight = refactored(weight, [(groups,), *[()] * (weight.ndim - 1)])
    inner = weight.dims[0][1:] if groups > 1 and summed == 0 else weight.dims[summed]
    channels = (groups, *inner) if groups > 1 else inner
    state = refactored(state, [(), channels, *[()] * len(taps)])
    cuts = state.dims[1][1:] if groups > 1 else state.dims[1]
    weight = refactored(
        weight, [((groups, *cuts) if groups > 1 else cuts) if d == summed == 0 else cuts if d == summed else () for d in range(weight.ndim)]
    )
    names = [f"c{k}" for k in range(len(cuts))]
    group = ["g"] if groups > 1 else []
    outer = weight.dims[1 - summed][len(group) if summed == 1 else 0 :]
    outs = [f"o{k}" for k in range(len(outer))]
    first = [[f"n{k}" for k in range(len(state.dims[0]))], [*group, *names]]
    second = [[*group, *outs], names] if summed == 1 else [[*group, *names], outs]
    out = [first[0], [*group, *outs]]
    for d, (tap, place) in enumerate(zip(taps, places, strict=True)):
        state, labels = _unfolded(state, 2 + d, tap, place)
        first.append([f"{label}{d}" for label in labels])
        second.append([f"t{d}"] if tap > 1 else [])
        out.append([f"p{d}"] if "p" in labels else [])
    result = contract(state, first, weight, second, out)
    terms = size(cuts) * math.prod(taps) * present
    kept = [*state.axes(0), *(a for d in range(2, state.ndim) for a in state.axes(d))]
    scatter = result.scatter + noise(state, int(max(terms, 1)), kept)
    result = replace(result, kappa=result.kappa * present, mean=result.mean * present, spread=GAUSSIAN, scatter=scatter)
    return grown(result, state, terms)


def _unfolded(state: State, dimension: int, tap: int, place: int) -> tuple[State, list[str]]:
    """A dimension of positions as taps and positions of the output."""
    state = resized(state, dimension, max(size(state.dims[dimension]), 1))
    if not state.dims[dimension]:  # one position: what differs from it is padding
        if tap == 1 and place == 1:
            return state, []
        axis = len(state.axes(*range(dimension)))
        kappa = np.stack([state.kappa, state.kappa], axis)
        state = replace(state, kappa=kappa, dims=(*state.dims[:dimension], (2,), *state.dims[dimension + 1 :]))
    axis = state.axes(dimension)[0]
    if place == 1 or tap == 1:
        factor = (tap,) if place == 1 else (place,)
        if tap == place == 1:
            return resized(state, dimension, 1), []
        label = ["t"] if place == 1 else ["p"]
        return replace(state, dims=(*state.dims[:dimension], factor, *state.dims[dimension + 1 :])), label
    wide = replace(state, dims=(*state.dims[:dimension], (tap * place,), *state.dims[dimension + 1 :]))
    return split(wide, axis, tap), ["t", "p"]


def _forward(call: Call) -> State:
    x, weight, bias = call.args[:3]
    stride, _, _, transposed, groups = _settings(call)
    out = call.outputs[0]
    assert out is not None
    shape = _Shape(0 if transposed else 1, groups, _present(call)[0])
    state = call.state(x)
    result = _convolved(state, call.state(weight), out.shape[2:], shape)
    near = () if transposed else _strided(state.near, max(stride))
    result = replace(merged(result), near=near)
    if bias is not None:
        shift = call.state(bias)
        shift = replace(shift, dims=(*shift.dims, *[()] * (len(out.shape) - 2)))
        result = replace(added(result, shift), near=near)
    return result


def _strided(near: tuple[float, ...], stride: int) -> tuple[float, ...]:
    """Neighbours after a stride of 2^k were 2^k apart."""
    return near[int(math.log2(stride)) :] if stride > 1 else near


def _backward(call: Call, gradients: Sequence[State | None]) -> Gradients:
    x, weight, bias = call.args[:3]
    gradient = gradients[0]
    found: dict[int, State] = {}
    if gradient is None:
        return found
    _, _, _, transposed, groups = _settings(call)
    if not x.known:
        shape = _Shape(1 if transposed else 0, groups, _present(call)[1])
        found[x.id] = merged(_convolved(gradient, call.state(weight), x.shape[2:], shape))
    if bias is not None and not bias.known:
        found[bias.id] = summed_to(gradient, (bias.shape[0], *[1] * (gradient.ndim - 2)))
    return found


register_rule(
    "aten.convolution", "aten._convolution", "aten.convolution_overrideable", forward=_forward, backward=_backward
)

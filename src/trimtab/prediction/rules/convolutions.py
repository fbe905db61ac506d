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
from trimtab.prediction.state import GAUSSIAN, Array, State, size


class _Shape(NamedTuple):
    """Which dimension of the weight is summed over, and which of its products there are."""

    summed: int
    groups: int
    present: tuple[tuple[float, float], ...]
    """For each dimension, the share of the taps that a position has, and that two different positions both have."""


def _settings(call: Call) -> tuple[list[int], list[int], list[int], bool, int]:
    _, _, _, stride, padding, dilation, transposed, _, groups = call.args[:9]
    taps = len(call.args[1].shape) - 2
    wide = [list(v) * taps if len(v) == 1 else list(v) for v in (stride, padding, dilation)]
    return wide[0], wide[1], wide[2], transposed, groups


def _present(call: Call, state: State, back: bool) -> tuple[tuple[tuple[float, float], ...], tuple[Array, ...]]:
    """Which products there are, forward or back, and the profile they leave: not those with padding or between strides.

    A constant image is no constant behind zero padding, so that what two positions share is less than what one has; of an image of
    4x4 a 3x3 kernel loses a sixth for one position and a third for two, in each dimension.

    Args:
        call: The operation.
        state: What is convolved, the signal or the gradient.
        back: Whether it is the gradient.

    Returns:
        For each dimension the shares of `_Shape.present`, and the profiles.
    """
    x, weight = call.args[:2]
    out = call.outputs[0]
    assert out is not None
    stride, padding, dilation, transposed, _ = _settings(call)
    wide, narrow = (out.shape, x.shape) if transposed else (x.shape, out.shape)
    shares, profiles = [], []
    for d, taps in enumerate(weight.shape[2:]):
        places = np.arange(narrow[2 + d])[:, None] * stride[d] - padding[d] + np.arange(taps) * dilation[d]
        on_narrow, tap = np.nonzero((places >= 0) & (places < wide[2 + d]))
        on_wide = places[on_narrow, tap]
        to_wide = back != transposed
        to, source = (on_wide, on_narrow) if to_wide else (on_narrow, on_wide)
        n = (wide if to_wide else narrow)[2 + d]
        profile = state.profile[d] if len(state.profile) > d else np.ones((narrow if to_wide else wide)[2 + d])
        table = np.zeros((n, taps))
        table[to, tap] = np.sqrt(profile[source])
        level = np.square(table).sum(1)
        same = float(level.mean())
        both = (float(np.square(table.sum(0)).sum()) - n * same) / (n * (n - 1)) if n > 1 else same
        shares.append((same / taps, both / taps))
        profiles.append(level / same if same > 0 else np.ones(n))
    return tuple(shares), tuple(profiles)


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
        weight,
        [
            ((groups, *cuts) if groups > 1 else cuts) if d == summed == 0 else cuts if d == summed else ()
            for d in range(weight.ndim)
        ],
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
    kept = [*state.axes(0), *(a for d in range(2, state.ndim) for a in state.axes(d))]
    # the taps of a channel share its level: only the channels are independent
    scatter = result.scatter + noise(state, groups * size(cuts), kept)
    kappa, axis = result.kappa, len(result.sizes)
    for d in reversed(range(len(taps))):
        same, both = present[d]
        if out[2 + d]:
            axis -= 1
            kappa = kappa * np.array([both, same]).reshape([2 if a == axis else 1 for a in range(kappa.ndim)])
        else:
            kappa = kappa * same
    mean = result.mean * math.prod(same for same, _ in present)
    result = replace(result, kappa=kappa, mean=mean, spread=GAUSSIAN, scatter=scatter)
    return grown(result, state, groups * size(cuts) * _different(state.near, taps))


def _different(near: tuple[float, ...], taps: Sequence[int]) -> float:
    """How many taps count as different, where neighbouring positions are alike."""
    spots = np.stack(np.meshgrid(*[np.arange(t) for t in taps], indexing="ij"), -1).reshape(-1, len(taps))[:128]
    apart = np.abs(spots[:, None] - spots).sum(-1)
    lags = [0.0, *(2.0**k for k in range(len(near)))]
    square = np.interp(apart, lags, [1.0, *near], right=0.0) ** 2
    return float(1.0 / np.where(apart == 0, 1.0, square if near else 0.0).mean())


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
    state = call.state(x)
    present, profile = _present(call, state, back=False)
    shape = _Shape(0 if transposed else 1, groups, present)
    result = _convolved(state, call.state(weight), out.shape[2:], shape)
    near = () if transposed else _strided(state.near, max(stride))
    result = replace(merged(result), near=near, profile=profile)
    if bias is not None:
        shift = call.state(bias)
        shift = replace(shift, dims=(*shift.dims, *[()] * (len(out.shape) - 2)))
        result = replace(added(result, shift), near=near, profile=profile)
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
        present, profile = _present(call, gradient, back=True)
        shape = _Shape(1 if transposed else 0, groups, present)
        result = merged(_convolved(gradient, call.state(weight), x.shape[2:], shape))
        found[x.id] = replace(result, profile=profile)
    if bias is not None and not bias.known:
        found[bias.id] = summed_to(gradient, (bias.shape[0], *[1] * (gradient.ndim - 2)))
    return found


register_rule(
    "aten.convolution", "aten._convolution", "aten.convolution_overrideable", forward=_forward, backward=_backward
)

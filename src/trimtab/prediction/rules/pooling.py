"""Average and maximum pooling, with fixed and adaptive windows."""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import log_ndtr

from trimtab.prediction.axes import fold
from trimtab.prediction.fields import Field, far, field_of
from trimtab.prediction.registry import Call, Gradients, register_rule
from trimtab.prediction.rules.views import one_axis, resized
from trimtab.prediction.state import Array, NoRuleError, State, size

FINE, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
GRID = np.linspace(-6.0, 8.0, 281)


def _window(call: Call) -> tuple[int, ...]:
    """Sizes of the window, from the argument or from the sizes before and after."""
    x, out = call.args[0], call.outputs[0]
    assert out is not None
    spatial = len(x.shape) - 2
    if "adaptive" in call.name:
        return tuple(math.ceil(a / b) for a, b in zip(x.shape[2:], out.shape[2:], strict=True))
    given = call.args[1]
    return tuple(given) * spatial if len(given) == 1 else tuple(given)


def _stepped(state: State, call: Call) -> tuple[float, ...]:
    out = call.outputs[0]
    assert out is not None
    step = max(1, round(call.args[0].shape[2] / out.shape[2])) if len(out.shape) > 2 else 1
    return state.near[int(math.log2(step)) :] if step > 1 else state.near


def window_correlation(state: State, window: Sequence[int]) -> float:
    """Mean, over pairs of different positions of a window, of where their covariance lies between far and same."""
    if not state.near:
        return 0.0
    lags = [2.0**k for k in range(len(state.near))]
    total, pairs = 0.0, 0
    spots = [divmod(k, window[-1]) for k in range(size(window))]
    for a in spots[:64]:
        for b in spots[:64]:
            if a != b:
                apart = abs(a[0] - b[0]) + abs(a[1] - b[1])
                total += float(np.interp(apart, lags, state.near))
                pairs += 1
    return total / pairs if pairs else 0.0


def _shrunk(state: State, call: Call) -> State:
    out = call.outputs[0]
    assert out is not None
    for d in range(2, len(out.shape)):
        state = resized(state, d, out.shape[d])
    profile = tuple(_resampled(p, n) for p, n in zip(state.profile, out.shape[2:], strict=False))
    return replace(state, near=_stepped(state, call), profile=profile, field=None, law=None)


def _resampled(profile: Array, n: int) -> Array:
    """The profile at another number of positions: means over what is pooled, or each value repeated."""
    edges = np.interp(np.linspace(0, 1, n + 1), np.linspace(0, 1, len(profile) + 1), np.append(0.0, np.cumsum(profile)))
    means = np.diff(edges)
    return np.asarray(means / means.mean()) if means.sum() > 0 else np.ones(n)


def _average(call: Call) -> State:
    """Mean over a window: kappa_0 + (kappa_1 - kappa_0) times the mean over its pairs."""
    state, window = call.state(call.args[0]), _window(call)
    count = size(window)
    whole = all(n == w for n, w in zip(call.args[0].shape[2:], window, strict=True))
    for d in range(2, state.ndim):
        state = one_axis(state, d)
    if whole:
        axes = state.axes(*range(2, state.ndim))
        kappa = fold(state.kappa, state.sizes, axes).reshape([2] * (state.kappa.ndim - len(axes)))
        dims = (*state.dims[:2], *[()] * (state.ndim - 2))
        return State(dims, kappa, state.mean, scatter=state.scatter, measured=state.measured)
    inside = 1.0 / count + (1.0 - 1.0 / count) * window_correlation(state, window)
    kappa = state.kappa.copy()
    index: list[slice | int] = [slice(None)] * kappa.ndim
    for axis in state.axes(*range(2, state.ndim)):
        index[axis] = 1
    zero = [0 if a in state.axes(*range(2, state.ndim)) else slice(None) for a in range(kappa.ndim)]
    level = kappa[tuple(zero)]
    kappa[tuple(index)] = level + (kappa[tuple(index)] - level) * inside
    return _shrunk(replace(state, kappa=kappa, spread=2.0), call)


def _average_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    gradient, value, window = gradients[0], call.args[0], _window(call)
    if gradient is None:
        return {}
    out = call.outputs[0]
    assert out is not None
    fed = size(out.shape[2:]) * size(window) / size(value.shape[2:])  # outputs that a position feeds
    return {value.id: _grown(gradient, value.shape).scaled(math.sqrt(fed) / size(window))}


def _grown(gradient: State, shape: Sequence[int]) -> State:
    """The gradient spread over the positions before pooling; those of one window share theirs."""
    for d in range(2, len(shape)):
        gradient = one_axis(gradient, d)
        if shape[d] > 1 and not gradient.dims[d]:
            axis = len(gradient.axes(*range(d)))
            kappa = np.stack([gradient.kappa, gradient.kappa], axis)
            gradient = replace(gradient, kappa=kappa, dims=(*gradient.dims[:d], (shape[d],), *gradient.dims[d + 1 :]))
        elif gradient.dims[d]:
            n, m = size(gradient.dims[d]), shape[d]
            axis = gradient.axes(d)[0]
            same, apart = np.take(gradient.kappa, 1, axis), np.take(gradient.kappa, 0, axis)
            alike = max(m / n - 1.0, 0.0) / max(m - 1, 1)  # other positions of the same window
            kappa = np.stack([apart + alike * (same - apart), same], axis)
            gradient = replace(gradient, kappa=kappa, dims=(*gradient.dims[:d], (m,), *gradient.dims[d + 1 :]))
    profile = tuple(_resampled(p, n) for p, n in zip(gradient.profile, shape[2:], strict=False))
    return replace(gradient, profile=profile, field=None)


@functools.lru_cache(maxsize=64)
def _largest(count: int) -> tuple[Array, Array]:
    """Points and weights of the largest of `count` independent standard Gaussians."""
    log = math.log(count) - 0.5 * GRID**2 + (count - 1) * log_ndtr(GRID)
    weights = np.exp(log - log.max())
    return GRID, weights / weights.sum()


def _maximal(call: Call) -> tuple[Field, Array, Array, float]:
    """The field before pooling, with the points and weights of the largest Gaussian of a window."""
    value = call.args[0]
    state, window = call.state(value), _window(call)
    field = state.field or field_of(value.id, state)
    start = field.start
    variance = start.second_moment - start.mean**2
    order = np.argsort(field.z)
    if variance <= 0 or np.any(np.diff(field.values[order]) < -1e-9):
        raise NoRuleError("a maximum over a function that is not increasing")
    apart = far(start)
    inside = apart + window_correlation(start, window) * (start.second_moment - apart)
    rho = min(max((inside - start.mean**2) / variance, 0.0), 1.0)
    top, weights = _largest(size(window))
    z = (math.sqrt(rho) * FINE[:, None] + math.sqrt(1.0 - rho) * top).ravel()
    w = ((WEIGHTS / WEIGHTS.sum())[:, None] * weights).ravel()
    return field, z, w, rho


def _maximum(call: Call) -> Sequence[State | None]:
    """The largest of n equally correlated Gaussians, and the increasing function of it."""
    state = call.state(call.args[0])
    field, z, w, _ = _maximal(call)
    v = np.interp(z, field.z, field.values)
    q, mean = float(w @ v**2), float(w @ v)
    for d in range(2, state.ndim):
        state = one_axis(state, d)
    before = max(state.second_moment - state.mean**2, 1e-300)
    kappa = mean**2 + (state.kappa - state.mean**2) * ((q - mean**2) / before)
    spread = max(float(w @ v**4) / q**2 - 1.0, 0.0) if q > 0 else 0.0
    pooled = State(
        state.dims, kappa, mean, spread, state.scatter, near=state.near, measured=state.measured, profile=state.profile
    )
    return [_shrunk(pooled, call), *[None] * (len(call.outputs) - 1)]


def _maximum_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    """To the largest alone, which the function before lets pass more often than others."""
    gradient, value, out = gradients[0], call.args[0], call.outputs[0]
    if gradient is None or out is None:
        return {}
    field, z, w, _ = _maximal(call)
    share = size(out.shape[2:]) / size(value.shape[2:])
    grown = _grown(gradient, value.shape)
    kappa = grown.kappa * share**2
    kappa[(1,) * kappa.ndim] = grown.second_moment * share
    routed = replace(grown, kappa=kappa, mean=grown.mean * share)
    if field.base == value.id:
        return {value.id: routed}
    slopes = np.interp(z, field.z, field.slopes)
    call.shown[value.id] = routed.second_moment
    return {field.base: routed.scaled(float(w @ slopes**2) ** 0.5)}


register_rule(
    "aten.avg_pool1d", "aten.avg_pool2d", "aten._adaptive_avg_pool2d", forward=_average, backward=_average_back
)
register_rule(
    "aten.max_pool2d_with_indices",
    "aten.adaptive_max_pool2d",
    "aten.max_pool2d",
    forward=_maximum,
    backward=_maximum_back,
)

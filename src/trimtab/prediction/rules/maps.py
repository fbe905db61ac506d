"""Linear maps along one dimension, with the same weights everywhere: padding, upsampling, cumulative sums."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from trimtab.prediction.axes import merged
from trimtab.prediction.registry import Call, Gradients, Value, register_rule
from trimtab.prediction.rules.contractions import shared
from trimtab.prediction.rules.views import one_axis
from trimtab.prediction.state import GAUSSIAN, Array, NoRuleError, State, size

LONGEST = 2048
"""Positions along a dimension whose weights are written down as a matrix."""


class Sums(NamedTuple):
    """What a map y = M x along a dimension does to second moments: sums over its n rows, with s = M 1 and T = M R M'.

    Attributes:
        rows: n.
        level: Sum of s.
        lengths: Sum of s^2.
        own: Trace of T.
        cross: Sum of all of T.
    """

    rows: int
    level: float
    lengths: float
    own: float
    cross: float


def sums(matrix: Array, alike: Array | None = None) -> Sums:
    """Those of a matrix, with R the correlation of its inputs off what all of them share; None if there is no more."""
    s = matrix.sum(1)
    passed = matrix if alike is None else matrix @ alike
    return Sums(
        len(matrix),
        float(s.sum()),
        float(s @ s),
        float((passed * matrix).sum()),
        float((passed @ matrix.sum(0)).sum()),
    )


def mapped(state: State, dimension: int, by: Sums, mean_alike: float = 0.0) -> State:
    """The state after a linear map along a dimension: covariances a + b R of its entries become a s s' + b T.

    Args:
        state: What is mapped.
        dimension: Along which of its dimensions.
        by: The map.
        mean_alike: Mean of R over different entries.

    Returns:
        The state, with `by.rows` entries there.
    """
    state = one_axis(state, dimension)
    axis, n = len(state.axes(*range(dimension))), by.rows
    if state.dims[dimension]:
        apart, same = np.take(state.kappa, 0, axis), np.take(state.kappa, 1, axis)
    else:
        apart = same = state.kappa
    apart = (apart - mean_alike * same) / (1.0 - mean_alike)
    whole = (by.lengths * apart + by.own * (same - apart)) / n
    dims = (*state.dims[:dimension], (n,) if n > 1 else (), *state.dims[dimension + 1 :])
    kappa = whole
    if n > 1:
        left = (by.level**2 - by.lengths) * apart + (by.cross - by.own) * (same - apart)
        kappa = np.stack([left / (n * (n - 1)), whole], axis)
    mean = state.mean * by.level / n
    return replace(state, dims=dims, kappa=kappa, mean=mean, near=(), profile=(), field=None, law=None, parts=None)


def _matrix(apply: Callable[[torch.Tensor], torch.Tensor], n: int, place: int, spatial: int) -> Array:
    """The weights of an operation along one spatial dimension, by what it makes of each unit vector."""
    shape = [1] * spatial
    shape[place] = n
    found = apply(torch.eye(n, dtype=torch.float64).reshape(1, n, *shape))
    return np.asarray(found.reshape(n, -1).T.numpy())


def _resampling(call: Call) -> list[Array]:
    """For each spatial dimension the weights of padding or of upsampling."""
    x, out = call.args[0], call.outputs[0]
    assert out is not None
    spatial = _spatial(call)
    if max(*x.shape[-spatial:], *out.shape[-spatial:]) > LONGEST:
        raise NoRuleError(f"more than {LONGEST} positions")
    function = getattr(torch.ops.aten, call.name.removeprefix("aten.")).default
    given = dict(zip((a.name for a in call.function._schema.arguments), call.args, strict=False)) | call.kwargs
    return [
        _matrix(lambda t, d=d: _along(function, given, out, t, d, spatial), x.shape[d - spatial], d, spatial)  # type: ignore[misc]
        for d in range(spatial)
    ]


def _spatial(call: Call) -> int:
    if call.name == "aten.constant_pad_nd":
        return len(call.args[1]) // 2
    return int(call.name[-2])


def _along(function: Any, given: dict[str, Any], out: Value, unit: torch.Tensor, d: int, spatial: int) -> torch.Tensor:
    """The operation along one dimension alone, the others having one entry."""
    if "padding" in given or "pad" in given:
        name = "padding" if "padding" in given else "pad"
        if given.get("value"):
            raise NoRuleError("a padding that is not zero")
        pads = [0] * (2 * spatial)
        at = 2 * (spatial - 1 - d)  # the last dimension stands first
        pads[at : at + 2] = given[name][at : at + 2]
        result: torch.Tensor = function(unit, pads)
        return result
    shape = [1] * spatial
    shape[d] = out.shape[d - spatial]
    scales = given.get("scale_factors")
    suffix = {1: [""], 2: ["_h", "_w"], 3: ["_d", "_h", "_w"]}[spatial]
    named = [scales[k] if scales else given.get(f"scales{suffix[k]}") for k in range(spatial)]
    scale = [named[k] if k == d else None for k in range(spatial)]
    align = [given["align_corners"]] if "align_corners" in given else []
    return function(unit, shape, *align, *scale)  # type: ignore[no-any-return]


def _lags(state: State, n: int) -> tuple[Array, float]:
    """R of the positions along a row of an image, from how alike neighbours are, and its mean off the diagonal."""
    lags = [0.0, *(2.0**k for k in range(len(state.near)))]
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    table = np.interp(apart, lags, [1.0, *state.near], right=0.0)
    return table, float((table.sum() - n) / max(n * (n - 1), 1))


def _through(before: State, matrices: Sequence[Array]) -> State:
    """Each spatial dimension in turn, by where the border has less and with neighbours as alike as they are."""
    state, first = before, before.ndim - len(matrices)
    image = first == 2
    near: tuple[float, ...] = ()
    profiles = []
    for d, matrix in enumerate(matrices):
        n = matrix.shape[1]
        alike, level = _lags(before, n) if before.ndim == 4 and image and n > 1 else (np.eye(n), 0.0)
        weights = matrix * np.sqrt(before.profile[d] if len(before.profile) > d else np.ones(n))
        state = mapped(state, first + d, sums(weights, alike), level)
        passed = weights @ alike @ weights.T
        profile = np.diag(passed)
        profiles.append(profile / profile.mean() if profile.mean() > 0 else np.ones(len(profile)))
        near = _nearness(passed) or near
    return replace(
        merged(state), near=near if before.ndim == 4 and image else (), profile=tuple(profiles) if image else ()
    )


def _resampled(call: Call) -> State:
    state, matrices = call.state(call.args[0]), _resampling(call)
    copies = all((np.count_nonzero(m, axis=1) <= 1).all() for m in matrices)
    return replace(_through(state, matrices), spread=state.spread if copies else min(state.spread, GAUSSIAN))


def _nearness(passed: Array) -> tuple[float, ...]:
    """Mean covariance at distance 1, 2, 4, ... of that of the same position."""
    found, apart = [], 1
    while apart < len(passed):
        found.append(float(np.diag(passed, apart).mean() / np.diag(passed).mean()))
        apart *= 2
    return tuple(found)


def _resampled_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    gradient = gradients[0]
    if gradient is None:
        return {}
    return {call.args[0].id: replace(_through(gradient, [m.T for m in _resampling(call)]), near=())}


def _running(n: int) -> Sums:
    """Those of a cumulative sum, forward or back: sums of k, k^2 and min(k, l)."""
    triangle, squares = n * (n + 1) / 2.0, n * (n + 1) * (2 * n + 1) / 6.0
    return Sums(n, triangle, squares, triangle, squares)


def _cumulated(state: State, dimension: int) -> State:
    """Sums of 1 to n entries: those of one row scatter together, as random walks do."""
    n = size(state.dims[dimension])
    result = mapped(state, dimension, _running(n))
    if dimension == 0:  # what samples have in common is seen to where the scatter is judged
        return result
    others = size([m for d, f in enumerate(state.dims) for m in f if d not in {0, dimension}])
    more = GAUSSIAN * max(shared(result, result.axes(dimension)) - 1.0 / n, 0.0) / others
    return replace(result, scatter=state.scatter + more * shared(state, state.axes(0)))


def _cumsum(call: Call) -> State:
    state = call.state(call.args[0])
    return _cumulated(state, call.args[1] % state.ndim)


def _cumsum_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    gradient = gradients[0]
    return {} if gradient is None else {call.args[0].id: _cumulated(gradient, call.args[1] % gradient.ndim)}


register_rule(
    *(f"aten.{kind}_pad{d}d" for kind in ("reflection", "replication") for d in (1, 2, 3)),
    "aten.constant_pad_nd",
    *(f"aten.{kind}{d}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for d in (1, 2, 3)),
    "aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_trilinear3d", "aten.upsample_bicubic2d",
    forward=_resampled, backward=_resampled_back,
)  # fmt: skip
register_rule("aten.cumsum", forward=_cumsum, backward=_cumsum_back)

"""Softmax, in attention and at the end."""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trimtab.prediction.axes import aligned, centred
from trimtab.prediction.registry import Call, Gradients, register_rule
from trimtab.prediction.rules.views import one_axis
from trimtab.prediction.state import Array, NoRuleError, State, size

LARGEST = 900.0
"""Variance of scores beyond which one entry has all."""
SMALL = 0.05
"""Covariance below which exp(c)/(1 + (exp(c) - 1)/n) is as good."""
NODES, MASSES = np.polynomial.legendre.leggauss(200)

Rows = tuple[tuple[float, ...], tuple[float, ...]]
"""How many entries rows choose from, and which share of the rows does; under a bias a mean number need not be whole."""


class Squares(NamedTuple):
    """Of the weights p of one softmax: E sum p^2, E sum p^3, E (sum p^2)^2, and Var p^2/(E p^2)^2 of rows of one length."""

    second: float
    third: float
    square: float
    spread: float


@functools.lru_cache(maxsize=1024)
def squares(variance: float, rows: Rows) -> Squares:
    """How much of a softmax the largest entries have, exactly for independent Gaussian scores u of this variance.

    With S = sum e^u and S^-k = the integral of t^(k-1) e^(-tS)/(k-1)! over t, a mean over all scores falls into means over
    one: E sum p^2 = n times the integral of t E[e^(2u) e^(-t e^u)] E[e^(-t e^u)]^(n-1).

    Args:
        variance: Of the scores.
        rows: How many there are.

    Returns:
        The means over the rows.
    """
    s = min(max(variance, 0.0), LARGEST) ** 0.5
    z = 8.0 * NODES
    weights = MASSES * np.exp(-0.5 * z**2)
    weights /= weights.sum()
    log_t = np.linspace(-8.0 * s - math.log(max(rows[0])) - 8.0, 8.0 * s + 5.0, 250)
    share = np.exp(np.minimum(log_t[:, None] + s * z, 40.0))  # t e^u
    left = np.exp(-share)
    means = [(share**k * left) @ weights for k in (0, 2, 3, 4)]
    log = np.log(np.maximum(means[0], 1e-300))
    step, total = float(log_t[1] - log_t[0]), np.zeros(4)
    for n, part in zip(*rows, strict=True):
        n = max(n, 1.0)
        rest, other = np.exp((n - 1.0) * log), np.exp(max(n - 2.0, 0.0) * log)
        second, third, fourth = (step * n * float(m @ rest) / math.factorial(k) for k, m in enumerate(means[1:], 1))
        pairs = step * n * max(n - 1.0, 0.0) * float(means[1] ** 2 @ other) / 6.0
        total += part * np.array([second, third, fourth + pairs, max(n * fourth / second**2 - 1.0, 0.0)])
    return Squares(*(float(v) for v in total))


def _rows(state: State, n: int) -> Rows:
    """How many of n entries the rows choose from, by the mask."""
    if state.mask is None or state.mask.law is None:
        return (float(n),), (1.0,)
    shares, parts = state.mask.law
    return tuple(float(1.0 / p) for p in shares), tuple(float(v) for v in parts)


def _grown(covariance: float, rows: Rows) -> float:
    """E sum p p' of scores with this covariance, over that of equal ones."""
    equal = sum(part / n for n, part in zip(*rows, strict=True))
    if covariance > SMALL:
        return squares(float(f"{covariance:.4g}"), rows).second / equal
    grown = math.exp(max(covariance, -50.0))
    return grown / (1.0 + (grown - 1.0) * equal)


def _covariance(state: State, axis: int) -> Array:
    """Of the scores, off their row's mean."""
    return np.asarray(np.take(state.kappa, [1], axis) - np.take(state.kappa, [0], axis))


def _shares(call: Call) -> tuple[State, int, Squares]:
    """The scores with one axis to choose from, which one, and the squares of what is chosen."""
    state = call.state(call.args[0])
    dimension = call.args[1] % state.ndim
    if not state.dims[dimension]:
        raise NoRuleError("a softmax over one entry")
    state = one_axis(state, dimension)
    axis = state.axes(dimension)[0]
    variance = float(_covariance(state, axis).reshape(-1)[-1])
    return state, axis, squares(float(f"{max(variance, 0.0):.4g}"), _rows(state, state.sizes[axis]))


def _softmax(call: Call) -> State:
    """E[p p'] from the covariance of the scores off their row's mean, held to rows that sum to 1 (`squares`).

    Under a mask, in the place of 1/n^2 stands the softmax of the mask alone, and n is how many it leaves.

    Args:
        call: The operation.

    Returns:
        The state of the probabilities.
    """
    state, axis, whole = _shares(call)
    n = state.sizes[axis]
    rows = _rows(state, n)
    covariance = _covariance(state, axis)
    flat = np.full_like(covariance, 1.0 / n**2)
    if state.mask is not None:
        plain = replace(state, kappa=np.zeros_like(state.kappa), mask=None, field=None)
        _, wide = aligned(plain, state.mask)
        flat = np.take(wide.kappa, [1], axis)
    grown = np.reshape([_grown(c, rows) for c in covariance.ravel()], covariance.shape)
    same = flat * grown
    kappa = np.concatenate([(1.0 / n - same) / (n - 1), same], axis)
    return State(state.dims, kappa, 1.0 / n, whole.spread, measured=state.measured)


def _softmax_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    """The adjoint p (g - sum p g): E p^2 (1 - 2 p + sum p^2) of what g is off its row's mean."""
    gradient, out = gradients[0], call.outputs[0]
    if gradient is None or out is None:
        return {}
    whole = _shares(call)[2]
    state, gradient = aligned(call.state(out), gradient)
    dimension = call.args[1] % state.ndim
    axes = state.axes(dimension)
    n = size(state.dims[dimension])
    passed = (whole.second - 2.0 * whole.third + whole.square) / (whole.second * (1.0 - 1.0 / n))
    kappa = state.kappa * centred(gradient.kappa, gradient.sizes, axes) * passed
    return {call.args[0].id: replace(gradient, kappa=kappa, mean=0.0, field=None)}


def _log_softmax(call: Call) -> State:
    """U - log sum exp u: off the row's mean, and down by log n + s^2/2."""
    state = call.state(call.args[0])
    dimension = call.args[1] % state.ndim
    axes = state.axes(dimension)
    n = size([state.sizes[a] for a in axes])
    kappa = centred(state.kappa, state.sizes, axes)
    variance = float(kappa.reshape(-1)[-1])
    mean = -np.log(max(n, 1)) - 0.5 * variance
    return replace(state, kappa=kappa + mean**2, mean=float(mean), field=None, near=())


def _log_softmax_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    """The adjoint g - p sum g: the gradient less about its row's mean."""
    gradient = gradients[0]
    if gradient is None:
        return {}
    dimension = call.args[1] % gradient.ndim
    kappa = centred(gradient.kappa, gradient.sizes, gradient.axes(dimension))
    n = size(gradient.dims[dimension])
    whole = np.abs(gradient.kappa - kappa) * max(n, 1)  # n^2 of the mean's square, times p^2 = 1/n
    return {call.args[0].id: replace(gradient, kappa=kappa + whole / max(n, 1), field=None)}


register_rule("aten._softmax", "aten._safe_softmax", forward=_softmax, backward=_softmax_back)
register_rule("aten._log_softmax", forward=_log_softmax, backward=_log_softmax_back)

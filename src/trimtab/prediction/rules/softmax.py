"""Softmax, in attention and at the end."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trimtab.prediction.axes import aligned, centred
from trimtab.prediction.registry import Call, Gradients, register_rule
from trimtab.prediction.rules.views import one_axis
from trimtab.prediction.state import NoRuleError, State, size


def _softmax(call: Call) -> State:
    """E[p p'] = exp(c)/n^2, c the covariance of the scores off their row's mean, held to rows that sum to 1.

    For Gaussian scores exp(u - s^2/2)/n has the mean 1/n and E p^2 = exp(s^2)/n^2 while s^2 is well below log n; at most
    1/n. Under a mask, in the place of 1/n^2 stands the softmax of the mask alone.

    Args:
        call: The operation.

    Returns:
        The state of the probabilities.

    Raises:
        NoRuleError: If there is nothing to choose from.
    """
    state = call.state(call.args[0])
    dimension = call.args[1] % state.ndim
    if not state.dims[dimension]:
        raise NoRuleError("a softmax over one entry")
    base = state.mask
    state = one_axis(state, dimension)
    axis = state.axes(dimension)[0]
    n = size(state.dims[dimension])
    apart = np.take(state.kappa, [0], axis)
    covariance = np.take(state.kappa, [1], axis) - apart
    grown = np.exp(np.clip(covariance, -50.0, 50.0))
    flat = np.full_like(grown, 1.0 / n**2)
    if base is not None:
        plain = replace(state, kappa=np.zeros_like(state.kappa), mask=None, field=None)
        _, wide = aligned(plain, base)
        flat = np.take(wide.kappa, [1], axis)
    same = flat * grown / (1.0 + (grown - 1.0) / n)
    different = (1.0 / n - same) / (n - 1)
    kappa = np.concatenate([different, same], axis)
    q = float(kappa.reshape(-1)[-1])
    spread = max(float(np.exp(min(4.0 * covariance.max(), 20.0))) - 1.0, 0.0)
    return State(state.dims, kappa, 1.0 / n, min(spread, n / max(q * n**2, 1e-300)), measured=state.measured)


def _softmax_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    """P (g - sum p g): off the row's mean, times p."""
    gradient, out = gradients[0], call.outputs[0]
    if gradient is None or out is None:
        return {}
    state = call.state(out)
    dimension = call.args[1] % state.ndim
    state, gradient = aligned(state, gradient)
    axes = state.axes(dimension)
    kappa = state.kappa * centred(gradient.kappa, gradient.sizes, axes)
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

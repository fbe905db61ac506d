"""Rows of the table: tolerances, and which of prediction and measurement is out of place."""

import math
from collections.abc import Sequence

from trimtab.prediction.engine import Flow
from trimtab.prediction.listening import Heard
from trimtab.prediction.rules.contractions import common
from trimtab.prediction.state import State
from trimtab.propagation import band
from trimtab.report.prediction import Odd, Site

SIGMAS = 3.0
FORM = 0.1
"""Relative error of the rules themselves (entries taken as Gaussian and exchangeable), in natural logarithms of a second moment per
three sigma: the least that a band is wide."""
GONE = 4.0
"""Decades of a second moment, from the input for the signal and from the output for the gradient, that a prediction may foretell
before it is bad itself: the rule of vanishing gradients has the same number."""


def judged(heard: Sequence[Heard], flow: Flow, inputs: Sequence[float]) -> tuple[Site, ...]:
    """A row for each site.

    Args:
        heard: What was measured.
        flow: What was propagated.
        inputs: Second moments of the batch.

    Returns:
        The rows in order.
    """
    rows = []
    start = max((q for q in inputs if q > 0), default=math.nan)
    end = next((flow.shown[h.value.id] for h in reversed(heard) if flow.shown.get(h.value.id, 0.0) > 0), math.nan)
    for depth, site in enumerate(heard, 1):
        state, gradient = flow.states.get(site.value.id), flow.gradients.get(site.value.id)
        predicted = state.second_moment if state is not None else math.nan
        back = flow.shown.get(site.value.id, math.nan)
        measured_back = site.backward if site.backward is not None else math.nan
        variance = log_variance(state) if state is not None else math.nan
        variance_back = log_variance(gradient) if gradient is not None else _nearest(flow, state)
        bad = _decades(predicted, start) > GONE or (
            math.isfinite(measured_back) and math.isfinite(back) and _decades(back, end) > GONE
        )
        leaves = _leaves(predicted, site.forward, variance) or _leaves(back, measured_back, variance_back)
        odd: Odd = "measurement" if leaves else "prediction" if bad else ""
        covered = site.value.id not in flow.read and not (gradient is not None and gradient.measured)
        rows.append(
            Site(
                site.name,
                site.kind,
                depth,
                centre(predicted, variance),
                site.forward,
                factor(variance),
                centre(back, variance_back),
                measured_back,
                factor(variance_back) if math.isfinite(back) else math.nan,
                covered and state is not None,
                odd,
                state.mean if state is not None else math.nan,
                _alike(state),
            )
        )
    return tuple(rows)


def _alike(state: State | None) -> float:
    """Correlation of two samples, of which nothing is known where there is one."""
    if state is None or not state.dims or not state.dims[0] or state.second_moment <= 0:
        return math.nan
    other = [1] * state.kappa.ndim
    for axis in state.axes(0):
        other[axis] = 0
    return float(state.kappa[tuple(other)]) / state.second_moment


def log_variance(state: State) -> float:
    """Var log of what a tensor shows: the scatter below it, and that of its own finite number of units."""
    units = [n for d, f in enumerate(state.dims) for n in f if d > 0] or [1]
    own = state.spread * (common(state, range(len(state.sizes))) + state.alike / math.prod(units))
    return state.scatter + own + (FORM / SIGMAS) ** 2


def _nearest(flow: Flow, state: State | None) -> float:
    """Of a gradient in the middle of a pointwise chain: that at its end."""
    if state is None or state.field is None:
        return math.nan
    base = flow.gradients.get(state.field.base)
    return log_variance(base) if base is not None else math.nan


def factor(variance: float) -> float:
    """The factor that three standard deviations of the log are."""
    return math.exp(min(SIGMAS * math.sqrt(variance), 700.0)) if math.isfinite(variance) else math.nan


def centre(mean: float, variance: float) -> float:
    """Where the logs lie for a mean over draws of the weights: lower by half their variance (Hanin & Nica 2018)."""
    return mean * math.exp(-0.5 * min(variance, 700.0)) if math.isfinite(variance) else mean


def _leaves(predicted: float, measured: float, variance: float) -> bool:
    if not (math.isfinite(predicted) and math.isfinite(measured) and math.isfinite(variance)):
        return False
    if predicted <= 0.0 or measured <= 0.0:
        return (predicted <= 0.0) != (measured <= 0.0)
    low, high = band(math.log(predicted), variance, SIGMAS)
    return not low <= math.log(measured) <= high


def _decades(value: float, start: float) -> float:
    if not (value > 0.0 and start > 0.0 and math.isfinite(value) and math.isfinite(start)):
        return 0.0
    return abs(math.log10(value / start))

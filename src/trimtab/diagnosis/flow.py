"""The flow of the gradient through the layers of a model: measured, expected to be kept, and predicted from the weights.

The gradient at a layer's output is measured by its squared norm G. A layer that keeps the gradient has G(before)/G(at) = 1; a
finite width n scatters the logarithm of one layer's gain with variance v/n, v = 5 for ReLU layers and 2 for linear ones, and the
variances of a chain add up (Hanin & Nica 2018, arXiv:1812.05994; `propagation.backward_log_variance` for other activations).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trimtab._messages import say
from trimtab.diagnosis.layers import Layer
from trimtab.propagation import PropagationError, activation, backward_log_variance, mean_derivative_squared
from trimtab.report import Evidence

EARLY = 10
"""Steps at the start whose gradients count as those of the initialization."""

SCATTER = 5.0
"""Variance of the logarithm of a layer's squared-gradient gain, times the width, where no known activation says better: ReLU's."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What one layer does to the squared gradient on its way back.

    Attributes:
        source: The layer in front, at whose output the gradient arrives.
        layer: The layer that the gradient passes.
        measured: G at the source over G at the layer.
        predicted: The same from the actual weights and the measured spread of the signal; None where other things than an
            activation lie between.
    """

    source: Layer
    layer: Layer
    measured: float
    predicted: float | None


@dataclass(frozen=True, slots=True)
class Flow:
    """The gradient along one model at the start of training.

    Attributes:
        layers: Layers with a measured gradient, in forward order.
        gradients: Their squared gradient norms G.
        gains: Gains between layers that follow one another.
        log_total: log10 of G at the first layer over G at the last.
        tolerance: Three standard deviations of `log_total` at this width and depth.
    """

    layers: tuple[Layer, ...]
    gradients: tuple[float, ...]
    gains: tuple[Gain, ...]
    log_total: float
    tolerance: float

    @property
    def per_layer(self) -> float:
        """Geometric mean of the measured gains, NaN where there is none."""
        return mean_gain(self.gains)


def mean_gain(gains: Sequence[Gain]) -> float:
    """Geometric mean of measured gains that are positive and finite, NaN where there is none."""
    return _geometric_mean([gain.measured for gain in gains])


def mean_predicted_gain(gains: Sequence[Gain]) -> float:
    """Geometric mean of the predicted gains, NaN where there is none."""
    return _geometric_mean([gain.predicted for gain in gains if gain.predicted is not None])


def _geometric_mean(values: Sequence[float]) -> float:
    logs = [math.log(value) for value in values if value > 0 and math.isfinite(value)]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def scatter(gain: Gain) -> float:
    """Three standard deviations of the logarithm of one layer's gain at its width."""
    return 3 * math.sqrt(_variance(gain.source, gain.layer))


def against_prediction(gains: Sequence[Gain]) -> list[Evidence]:
    """The mean gain beside the one that the weights foretell, with what the widths scatter.

    Args:
        gains: Any gains.

    Returns:
        One piece of evidence, none where nothing was predicted.
    """
    known = [gain for gain in gains if gain.predicted is not None]
    predicted = mean_predicted_gain(known)
    if math.isnan(predicted):
        return []
    variance = sum(_variance(gain.source, gain.layer) for gain in known)
    within = math.exp(3 * math.sqrt(variance) / len(known))
    return [Evidence(say("the same, as the weights predict"), mean_gain(known), predicted, within, "x", 0)]


def _variance(source: Layer, layer: Layer) -> float:
    """Variance of the logarithm of a layer's gain at its width."""
    width, names = max(source.shape[0], 1), layer.before.activations
    if layer.before.sources != (source.name,) or layer.before.norms or len(names) > 1 or not len(source.output):
        return SCATTER / width
    try:
        q = float(source.output.second_moment[0])
        return backward_log_variance(activation(names[0] if names else "identity"), width, q)
    except PropagationError:  # an unknown activation, or one that passes nothing at this q
        return SCATTER / width


def flows(layers: list[Layer]) -> list[Flow]:
    """The gradient's flow through every model, at the start of training.

    Args:
        layers: All layers.

    Returns:
        One flow for each model with at least two layers that have a gradient.
    """
    found = []
    for model in sorted({layer.model for layer in layers}):
        own = [layer for layer in layers if layer.model == model]
        flow = _flow(own)
        if flow is not None:
            found.append(flow)
    return found


def _flow(layers: list[Layer]) -> Flow | None:
    measured = [(layer, gradient_at_start(layer)) for layer in layers]
    seen = [(layer, g) for layer, g in measured if not math.isnan(g)]
    if len(seen) < 2:
        return None
    first, last = seen[0][1], seen[-1][1]
    if last <= 0 or not math.isfinite(last):
        return None
    chain = [layer for layer, _ in seen]
    narrowest = min(layer.shape[0] for layer in chain[:-1])
    variance = sum(max(_variance(front, behind), 2 / narrowest) for front, behind in pairwise(chain))
    tolerance = 3 * math.sqrt(variance) / math.log(10)
    total = math.log10(first / last) if first > 0 and math.isfinite(first) else (-math.inf if first == 0 else math.inf)
    by_name = {layer.name: g for layer, g in seen}
    gains = []
    for layer, g in seen:
        for source in layer.before.sources:
            if source in by_name and len(layer.before.sources) == 1 and not layer.before.joins and g > 0:
                front = next(other for other, _ in seen if other.name == source)
                gains.append(Gain(front, layer, by_name[source] / g, predicted_gain(front, layer)))
    return Flow(tuple(chain), tuple(g for _, g in seen), tuple(gains), total, tolerance)


def gradient_at_start(layer: Layer) -> float:
    """Squared norm of the gradient at a layer's output, at the first of the early steps at which it is not zero.

    The first that is not zero, because zero-initialized branches (ReZero, Fixup) pass nothing at step 0; the first only, because
    later ones belong to training.

    Args:
        layer: The layer.

    Returns:
        The number; 0 when it is exactly zero at all of them, NaN when it was not seen or is not finite.
    """
    early = layer.gradient.steps < EARLY
    if not early.any():
        return math.nan
    rows = layer.gradient.rows[early]
    squares = (rows[:, 1] ** 2 + rows[:, 2] ** 2) * rows[:, 0]
    for square, bad in zip(squares, rows[:, 6], strict=True):
        if bad > 0 or not math.isfinite(square):
            return math.nan
        if square > 0:
            return float(square)
    return 0.0


def predicted_gain(source: Layer, layer: Layer) -> float | None:
    """Expected gain of the squared gradient from `layer` back to `source`: ||W||^2/n_out times E phi'^2.

    Theory: backward mean-field recursion (Schoenholz et al. 2017, arXiv:1611.01232, eq. 7), with the actual weights in place
    of their ensemble and the measured mean and spread of the pre-activation.

    Args:
        source: The layer in front.
        layer: The layer that the gradient passes.

    Returns:
        The gain, None where anything but known activations lies between, or nothing was measured.
    """
    if (
        layer.before.norms
        or layer.before.others
        or layer.recurrent
        or source.recurrent
        or not len(layer.values)
        or not len(source.output)
    ):
        return None
    gain = layer.fan_in * float(layer.values.second_moment[0])
    mean, std = float(source.output.mean[0]), float(source.output.std[0])
    if len(layer.before.activations) > 1 or not math.isfinite(mean) or not math.isfinite(std):
        return None
    for name in layer.before.activations:
        try:
            gain *= mean_derivative_squared(activation(name), std**2, mean)
        except PropagationError:
            return None
    return gain

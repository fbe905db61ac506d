"""The flow of the gradient through the layers of a model: measured, expected to be kept, and predicted from the weights.

The gradient at a layer's output is measured by its squared norm G. A layer that keeps the gradient has G(before)/G(at) = 1. What the
weights foretell, and how far a finite width may move it, tells the prediction of the first pass (`view.predictions`); where there is
none, a width n scatters the logarithm of one layer's gain with variance 5/n (Hanin & Nica 2018, arXiv:1812.05994, ReLU layers).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab._messages import say
from trimtab.diagnosis.layers import Layer
from trimtab.diagnosis.view import View
from trimtab.recording import call_name
from trimtab.report import Evidence, Repair
from trimtab.report.prediction import Site

EARLY = 10
"""Steps at the start whose gradients count as those of the initialization."""

SCATTER = 5.0
"""Variance of the logarithm of a layer's squared-gradient gain, times the width, where no prediction says better: ReLU's."""

LINEAR = 2.0
"""The same of a linear layer, the least there is."""


@dataclass(frozen=True, slots=True)
class Gain:
    """What one layer does to the squared gradient on its way back.

    Attributes:
        source: The layer in front, at whose output the gradient arrives.
        layer: The layer that the gradient passes.
        measured: G at the source over G at the layer.
        predicted: The same, foretold from the weights; None where nothing is.
        variance: Of the logarithm of the gain, over the draw of weights of this width.
    """

    source: Layer
    layer: Layer
    measured: float
    predicted: float | None
    variance: float


@dataclass(frozen=True, slots=True)
class Flow:
    """The gradient along one model at the start of training.

    Attributes:
        layers: Layers with a measured gradient, in forward order.
        gradients: Their squared gradient norms G.
        gains: Gains between layers that follow one another.
        log_total: log10 of G at the first layer over G at the last.
        tolerance: Three standard deviations of `log_total` at this width and depth.
        log_predicted: `log_total` as the weights foretell it, NaN where nothing is.
    """

    layers: tuple[Layer, ...]
    gradients: tuple[float, ...]
    gains: tuple[Gain, ...]
    log_total: float
    tolerance: float
    log_predicted: float = math.nan

    @property
    def per_layer(self) -> float:
        """Geometric mean of the measured gains, NaN where there is none."""
        return mean_gain(self.gains)

    @property
    def leaves(self) -> bool:
        """Whether the measured gradient is not what the weights foretell: then they are not to blame."""
        return abs(self.log_total - self.log_predicted) > self.tolerance + LEAVES


LEAVES = 1.0
"""Decades beyond the tolerance from which on a flow is not the one that was foretold: what the rules call a fading."""


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
    return 3 * math.sqrt(gain.variance)


def against_prediction(flow: Flow, gains: Sequence[Gain]) -> list[Evidence]:
    """The mean gain beside the one that the weights foretell, with what the widths scatter; the whole ratio where no gain is known.

    Args:
        flow: The flow.
        gains: Those of its gains that are shown.

    Returns:
        One piece of evidence, none where nothing was predicted.
    """
    known = [gain for gain in gains if gain.predicted is not None]
    predicted = mean_predicted_gain(known)
    if math.isnan(predicted):
        if not math.isfinite(flow.log_predicted):
            return []
        measured, ratio = 10 ** min(flow.log_total, 300.0), 10 ** min(flow.log_predicted, 300.0)
        return [Evidence(say("first over last, as the weights predict"), measured, ratio, 10**flow.tolerance, "x", 0)]
    variance = sum(gain.variance for gain in known)
    within = math.exp(3 * math.sqrt(variance) / len(known))
    return [Evidence(say("the same, as the weights predict"), mean_gain(known), predicted, within, "x", 0)]


def foretold(flow: Flow) -> str:
    """Whether the weights foretell it, as a sentence; "" where that is not known."""
    if math.isnan(flow.log_predicted):
        return ""
    predicted = 10 ** min(flow.log_predicted, 300.0)
    if flow.leaves:
        return say("The weights foretell {predicted:.2g}, so it is not they that do it.", predicted=predicted)
    return say("The weights as they were drawn foretell it ({predicted:.2g}).", predicted=predicted)


def leaving(view: View, gains: Sequence[Gain]) -> tuple[Repair, ...]:
    """What to look at where the gradient leaves what the weights foretell."""
    places = ", ".join(dict.fromkeys(view.name(gain.layer.model, gain.layer.name) for gain in gains[:3]))
    return (
        Repair(
            say(
                "Look at what lies in front of {places}: units that are off, a part that is detached or multiplied by nearly zero, a hook that changes "
                "gradients",
                places=places or say("the last layer"),
            )
        ),
    )


def flows(view: View) -> list[Flow]:
    """The gradient's flow through every model, at the start of training.

    Args:
        view: The record.

    Returns:
        One flow for each model with at least two layers that have a gradient.
    """
    found = []
    for model in sorted({layer.model for layer in view.layers}):
        flow = _flow(view, [layer for layer in view.layers if layer.model == model])
        if flow is not None:
            found.append(flow)
    return found


def _flow(view: View, layers: list[Layer]) -> Flow | None:
    measured = [(layer, gradient_at_start(layer)) for layer in layers]
    seen = [(layer, g) for layer, g in measured if not math.isnan(g)]
    if len(seen) < 2:
        return None
    first, last = seen[0][1], seen[-1][1]
    if last <= 0 or not math.isfinite(last):
        return None
    chain = [layer for layer, _ in seen]
    total = math.log10(first / last) if first > 0 and math.isfinite(first) else (-math.inf if first == 0 else math.inf)
    foretold = _foretold_gain(view, chain[0], chain[-1])
    by_name = {layer.name: (layer, g) for layer, g in seen}
    gains = []
    for layer, g in seen:
        for source in layer.before.sources:
            if source in by_name and len(layer.before.sources) == 1 and not layer.before.joins and g > 0:
                front, before = by_name[source]
                gain = _foretold_gain(view, front, layer)
                gains.append(Gain(front, layer, before / g, gain, _variance(view, front, layer)))
    return Flow(
        tuple(chain),
        tuple(g for _, g in seen),
        tuple(gains),
        total,
        3 * math.sqrt(_variance(view, chain[0], chain[-1], chain)) / math.log(10),
        math.log10(foretold) if foretold else math.nan,
    )


def _foretold_gain(view: View, front: Layer, behind: Layer) -> float | None:
    """G at one layer over G at a later one, as the prediction has them; None where it has not both."""
    sites = _sites(view, front, behind)
    if sites is None:
        return None
    above = sites[0].backward * float(front.gradient.count[0])
    below = sites[1].backward * float(behind.gradient.count[0])
    return above / below if below > 0 and above >= 0 and math.isfinite(above) else None


def _sites(view: View, front: Layer, behind: Layer) -> tuple[Site, Site] | None:
    """What is foretold of two layers that ran once each; what is read of a layer that ran more often is the sum of its calls."""
    once = [view.foretold(layer.model, call_name(layer.name, 2)) is None for layer in (front, behind)]
    first, second = view.foretold(front.model, front.name), view.foretold(behind.model, behind.name)
    return None if first is None or second is None or not all(once) else (first, second)


def _variance(view: View, front: Layer, behind: Layer, chain: Sequence[Layer] = ()) -> float:
    """Variance of the logarithm of the gain between two layers, with those between them, at their widths."""
    sites = _sites(view, front, behind)
    widths = [max(layer.shape[0], 1) for layer in chain[:-1] or (front,)]
    if sites is not None:
        within = [math.log(site.backward_tolerance) / 3 for site in sites]
        if all(math.isfinite(w) for w in within):  # each counts from the output
            return max(within[0] ** 2 - within[1] ** 2, LINEAR / max(widths))
    return SCATTER * sum(1 / width for width in widths)


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

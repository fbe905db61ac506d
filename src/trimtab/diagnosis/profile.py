"""Signal and gradient by depth, measured and predicted, of one record: what the figure shows."""

import math

import numpy as np

from trimtab.diagnosis.flow import SCATTER, predicted_gain
from trimtab.diagnosis.layers import Layer
from trimtab.diagnosis.view import View
from trimtab.propagation import PropagationError, activation, linear_forward, second_moment
from trimtab.recording import Record
from trimtab.report.figures import Profile


def profile(record: Record, title: str) -> Profile:
    """Second moments of a plain chain of layers at its first step.

    The signal is predicted from the measured second moment of the input and the weights alone (length map, Poole et al. 2016,
    arXiv:1606.05340), the gradient from that at the last layer and the weights (Schoenholz et al. 2017, arXiv:1611.01232). Where a
    layer has more in front of it than an activation, the prediction starts anew from what was measured there.

    Args:
        record: The record.
        title: What the network is.

    Returns:
        The profile of the first model's layers.
    """
    view = View(record)
    layers = [
        layer for layer in view.layers if layer.model == view.active[0] and len(layer.output) and len(layer.gradient)
    ]
    signal, signal_band = _signal(view, layers)
    gradient, gradient_band = _gradient(layers)
    return Profile(
        title=title,
        layers=tuple(layer.name for layer in layers),
        signal_measured=[float(layer.output.second_moment[0]) for layer in layers],
        signal_predicted=signal,
        gradient_measured=[float(layer.gradient.second_moment[0]) for layer in layers],
        gradient_predicted=gradient,
        signal_low=[1 / b for b in signal_band],
        signal_high=signal_band,
        gradient_low=[1 / b for b in gradient_band],
        gradient_high=gradient_band,
    )


def _signal(view: View, layers: list[Layer]) -> tuple[list[float], list[float]]:
    predicted: list[float] = []
    variance = 0.0
    band = []
    for i, layer in enumerate(layers):
        previous = layers[i - 1] if i else None
        plain = (
            previous is not None
            and layer.before.sources == (previous.name,)
            and not layer.before.norms
            and not layer.before.joins
        )
        if plain and previous is not None:
            before = _after_activations(predicted[-1], layer)
        else:
            before = _measured_input(view, layer)
            variance = 0.0
        bias = view.series(layer.model, layer.bias, "parameter") if layer.bias else None
        weight = float(layer.values.second_moment[0]) if len(layer.values) else math.nan
        predicted.append(
            linear_forward(before, layer.fan_in, weight, float(bias.second_moment[0]) if bias is not None else 0.0)
            if math.isfinite(before) and math.isfinite(weight)
            else float(layer.output.second_moment[0])
        )
        variance += SCATTER / max(layer.shape[0], 1)
        band.append(math.exp(3 * math.sqrt(variance)))
    return predicted, band


def _after_activations(q: float, layer: Layer) -> float:
    """Second moment behind the activations in front of a layer, for a centred Gaussian pre-activation."""
    for name in layer.before.activations[:1]:
        try:
            return second_moment(activation(name), q)
        except PropagationError:
            return math.nan
    return q


def _measured_input(view: View, layer: Layer) -> float:
    """Second moment of what the first layer was fed with."""
    for site in view.sites("input"):
        series = view.record.series(site)
        if site.model == layer.model and len(series):
            return float(series.second_moment[0])
    return math.nan


def _gradient(layers: list[Layer]) -> tuple[list[float], list[float]]:
    norms = [float(layer.gradient.second_moment[0] * layer.gradient.count[0]) for layer in layers]
    predicted = list(norms)
    variance = 0.0
    band = [1.0] * len(layers)
    for i in range(len(layers) - 2, -1, -1):
        source, layer = layers[i], layers[i + 1]
        gain = (
            predicted_gain(source, layer) if layer.before.sources == (source.name,) and not layer.before.joins else None
        )
        if gain is not None:
            predicted[i] = predicted[i + 1] * gain
            variance += SCATTER / max(source.shape[0], 1)
        else:
            variance = 0.0
        band[i] = math.exp(3 * math.sqrt(variance))
    counts = [float(layer.gradient.count[0]) for layer in layers]
    return [p / np.float64(c) for p, c in zip(predicted, counts, strict=True)], band

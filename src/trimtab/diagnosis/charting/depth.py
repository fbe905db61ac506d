"""Signal and gradient by depth: what the weights foretell, with its tolerance, and what was measured."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trimtab._messages import say
from trimtab.diagnosis.charting.flow import name_of
from trimtab.diagnosis.layers import Layer
from trimtab.diagnosis.view import View
from trimtab.recording import Series
from trimtab.report.charts import Chart, Curve, LineChart
from trimtab.report.prediction import Site


def by_depth(view: View) -> tuple[list[Chart], list[str]]:
    """Two charts for each model: its weight layers in forward order."""
    charts: list[Chart] = []
    several = len({layer.model for layer in view.layers}) > 1
    for model in view.active:
        layers = [layer for layer in view.layers if layer.model == model and len(layer.output)]
        if layers:
            own = view.record.models[model].get("label") or f"model{model}"
            charts += _of_model(view, layers, f"-{own}" if several else "", f": {own}" if several else "")
    return charts, []


def _of_model(view: View, layers: list[Layer], key: str, title: str) -> list[LineChart]:
    expected = [view.foretold(layer.model, layer.name) for layer in layers]
    return [
        _chart(
            view,
            layers,
            [(_up(site) if site else None) for site in expected],
            lambda layer: layer.output,
            f"signal-by-depth{key}",
            say("Signal by depth{model}", model=title),
            say("mean square of the outputs"),
        ),
        _chart(
            view,
            layers,
            [(_back(site) if site else None) for site in expected],
            lambda layer: layer.gradient,
            f"gradient-by-depth{key}",
            say("Gradient by depth{model}", model=title),
            say("mean square of the gradient at the outputs"),
        ),
    ]


def _up(site: Site) -> tuple[float, float]:
    return site.forward, site.forward_tolerance


def _back(site: Site) -> tuple[float, float]:
    return site.backward, site.backward_tolerance


def _chart(
    view: View,
    layers: list[Layer],
    expected: list[tuple[float, float] | None],
    which: Callable[[Layer], Series],
    key: str,
    title: str,
    unit: str,
) -> LineChart:
    first, last = int(layers[0].output.steps[0]), int(layers[0].output.steps[-1])
    predicted = np.array([pair[0] if pair else np.nan for pair in expected])
    factor = np.array([pair[1] if pair else np.nan for pair in expected])
    curves = []
    caption = say("Each weight layer in the order of the forward pass.")
    if np.isfinite(predicted).any():
        curves.append(Curve(say("predicted"), predicted, "line", predicted / factor, predicted * factor))
        caption += " " + say(
            "The line is what theory expects of these weights on the first batch, the band what a finite width may do to it (3 sigma)."
        )
    curves.append(Curve(say("measured, step {step}", step=first), _at(first, layers, which), "points"))
    if last > first:
        curves.append(Curve(say("measured, step {step}", step=last), _at(last, layers, which), "points"))
    return LineChart(
        key=key,
        section="depth",
        title=title,
        x=np.arange(1.0, len(layers) + 1),
        curves=tuple(curves),
        x_label=say("depth in layers"),
        y_label=unit,
        log=True,
        names=tuple(name_of(view, layer.model, layer.name) for layer in layers),
        caption=caption,
    )


def _at(step: int, layers: list[Layer], which: Callable[[Layer], Series]) -> NDArray[np.float64]:
    """Second moment of each layer's series at a step, NaN where it was not seen then."""
    values = []
    for layer in layers:
        series = which(layer)
        place = np.flatnonzero(series.steps == step)
        values.append(float(series.second_moment[place[0]]) if len(place) else np.nan)
    return np.array(values)

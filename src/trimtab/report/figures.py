"""The figure of a network's two signals by depth: what theory predicts and what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trimtab._messages import say
from trimtab._style import COLUMN, empty, saved, styled
from trimtab.report.charts import Chart, Curve, LineChart, Numbers
from trimtab.report.drawing import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW = 2.5
"""Inches of a row of charts."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One network's second moments by depth, first layer first.

    The bands are factors on the prediction: the light band reaches from `predicted * low` to `predicted * high`.
    Values that are not positive and finite have no place on a logarithmic axis and leave a gap.

    Attributes:
        title: What the network is, "before the repair" for instance.
        layers: The layers' names.
        signal_measured: Second moment of each layer's output.
        signal_predicted: The same as theory expects it.
        gradient_measured: Second moment of the gradient at each layer's output.
        gradient_predicted: The same as theory expects it.
        signal_low: Lower factor of the signal's band, None for no band.
        signal_high: Upper factor of the signal's band.
        gradient_low: Lower factor of the gradient's band, None for no band.
        gradient_high: Upper factor of the gradient's band.
    """

    title: str
    layers: tuple[str, ...]
    signal_measured: Sequence[float]
    signal_predicted: Sequence[float]
    gradient_measured: Sequence[float]
    gradient_predicted: Sequence[float]
    signal_low: Sequence[float] | None = None
    signal_high: Sequence[float] | None = None
    gradient_low: Sequence[float] | None = None
    gradient_high: Sequence[float] | None = None

    @property
    def charts(self) -> tuple[LineChart, LineChart]:
        """The signal, and the gradient below it."""
        return (
            self._chart(
                "signal-by-depth",
                self.title,
                say("mean square of the outputs"),
                _curves(self.signal_measured, self.signal_predicted, self.signal_low, self.signal_high),
            ),
            self._chart(
                "gradient-by-depth",
                "",
                say("mean square of the gradient at the outputs"),
                _curves(self.gradient_measured, self.gradient_predicted, self.gradient_low, self.gradient_high),
            ),
        )

    def _chart(self, key: str, title: str, unit: str, curves: tuple[Curve, ...]) -> LineChart:
        x = np.arange(1.0, len(self.layers) + 1)
        return LineChart(key, "depth", title, x, curves, say("depth in layers"), unit, log=True, names=self.layers)


def signal_figure(panels: Sequence[Profile], path: str | Path | None = None) -> "Figure":
    """The signal (above) and the gradient (below) by depth, one column for each network, on shared logarithmic axes.

    Predictions are lines with a light band, measurements are points. No global state of matplotlib is touched.

    Args:
        panels: The networks, at least one.
        path: Where to save the figure, as PNG unless it ends in .svg or .pdf; None saves nothing.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no panel.
    """
    if not panels:
        raise ValueError("signal_figure needs at least one profile, got none")
    return saved(side_by_side([panel.charts for panel in panels]), path)


@styled
def side_by_side(columns: Sequence[Sequence[Chart]]) -> "Figure":
    """Charts in rows and columns: those of a row share their numbers, those of a column their places.

    Args:
        columns: The charts of each column from above, equally many; at least one.

    Returns:
        The figure; each column's legend is that of its first chart.
    """
    rows = len(columns[0])
    figure = empty(COLUMN * len(columns), _ROW * rows)
    axes = figure.subplots(rows, len(columns), sharey="row", sharex="col", squeeze=False)
    for column, charts in enumerate(columns):
        for row, chart in enumerate(charts):
            draw(chart, axes[row, column], legend=row == 0)
    for one in axes.ravel():
        one.label_outer()
    return figure


def _curves(
    measured: Sequence[float], predicted: Sequence[float], low: Sequence[float] | None, high: Sequence[float] | None
) -> tuple[Curve, ...]:
    line = _numbers(predicted)
    band = (None, None) if low is None or high is None else (line * _numbers(low), line * _numbers(high))
    return Curve(say("predicted"), line, "line", *band), Curve(say("measured"), _numbers(measured), "points")


def _numbers(values: Sequence[float]) -> Numbers:
    return np.asarray(values, dtype=np.float64)

"""One chart, into axes that are given or into a figure of its own."""

from typing import TYPE_CHECKING

from trimtab._style import COLUMN, empty, own_style
from trimtab.report.charts import Chart, HeatMap, LineChart
from trimtab.report.drawing.heat import draw_cells
from trimtab.report.drawing.lines import draw_curves
from trimtab.report.drawing.words import (
    LONGEST,
    Key,
    head,
    label,
    name_all,
    names_along_x,
    names_along_y,
    steps_along_x,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TALLEST = 4.8
"""Inches of a heat map with many rows."""


def draw(chart: Chart, ax: "Axes | None" = None, *, title: bool = True, legend: bool = True) -> "Axes":
    """Draw a chart.

    Line charts: lines, points and dashed limits, light bands; layers by name. Heat maps: colours by value, blank where nothing was
    seen, grey for zero, red for what was not finite, one column a recorded step. Numbers without a place on a logarithmic axis leave a
    gap; numbers beyond 1e±200 stand at the edge. Where there is no room for every name, some are left out.

    Args:
        chart: What to draw.
        ax: Axes of yours, whose fonts are those of your rcParams. None makes a figure of its own, at the width of a column (3.3 inches),
            which no setting of yours changes: `draw(chart).figure`.
        title: Whether the chart's title stands above it.
        legend: Whether its curves are named, or its colours explained.

    Returns:
        The axes. No global state of matplotlib is touched.

    Raises:
        TypeError: `ax` is not axes of matplotlib.
    """
    if ax is None:
        with own_style():
            figure = empty(COLUMN, _height(chart))
            axes = figure.subplots()
            key = _mark(axes, chart, legend)
            _tell(axes, chart, key, title)
            figure.draw_without_rendering()
            _tell(axes, chart, key, title)  # once more: now it is known how much room the names have left
            return axes
    from matplotlib.axes import Axes

    if not isinstance(ax, Axes):
        raise TypeError(f"ax must be axes of matplotlib, or None for a figure of its own, not {type(ax).__name__}")
    _tell(ax, chart, _mark(ax, chart, legend), title)
    return ax


def _mark(axes: "Axes", chart: Chart, legend: bool) -> Key:
    if isinstance(chart, LineChart):
        return draw_curves(axes, chart, legend)
    return draw_cells(axes, chart, legend)


def _tell(axes: "Axes", chart: Chart, key: Key, title: bool) -> None:
    """Name places, curves and axes, as far as there is room."""
    if isinstance(chart, HeatMap):
        names_along_y(axes, chart.rows)
        steps_along_x(axes, chart.columns.tolist())
    elif chart.names:
        names_along_x(axes, chart.x.tolist(), chart.names)
    height = name_all(axes, key)
    if title:
        head(axes, chart.title, height)
    label(axes, chart.x_label, chart.y_label)


def _height(chart: Chart) -> float:
    if isinstance(chart, HeatMap):
        return min(2.0 + 0.11 * len(chart.rows), _TALLEST)
    names, curves = max(map(len, chart.names), default=0), len(chart.curves)
    return 2.4 + 0.055 * min(names, LONGEST) + 0.14 * max(curves - 3, 0)

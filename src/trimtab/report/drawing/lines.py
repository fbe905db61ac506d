"""Line charts: courses, points, limits and bands over common places."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trimtab._style import BLUE, COLOURS, GREEN, INK, ORANGE, PINK, number, quiet, roomy, ruled
from trimtab.report.charts import Curve, LineChart, Numbers
from trimtab.report.drawing.words import Key

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_MOST = 1e200  # an axis needs room beyond it in a float
_MARKS = (("o", INK, "white"), ("D", ORANGE, ORANGE), ("^", GREEN, GREEN), ("s", PINK, "white"))
_DASHES = ((0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
_MANY = 40
"""Places from which on marks are small."""


def draw_curves(axes: "Axes", chart: LineChart, named: bool) -> Key:
    """Draw curves, bands and the scales.

    Args:
        axes: Where.
        chart: What.
        named: Whether curves are named.

    Returns:
        What is to be named, and how; nothing where the title says it.
    """
    x = np.asarray(chart.x, dtype=np.float64)
    if chart.log:
        axes.set_yscale("log")
    count = dict.fromkeys(("line", "points", "limit"), 0)
    key = []
    for curve in chart.curves:
        key.append((_curve(axes, x, curve, count[curve.look], chart.log), curve.name))
        count[curve.look] += 1
    quiet(axes)
    ruled(axes)
    axes.autoscale(axis="y")
    if chart.log:
        roomy(axes, 30.0 if chart.section == "depth" else 4.0)
    else:
        _never_flat(axes, chart)
        _plain_numbers(axes.yaxis)
    _plain_numbers(axes.xaxis, integer=True)
    if len(x):
        margin = 0.5 if chart.names else 0.02 * float(x[-1] - x[0]) or 0.5
        axes.set_xlim(x[0] - margin, x[-1] + margin)
    told = len(key) == 1 and chart.curves[0].low is None and key[0][1].casefold() in _told(chart)
    return key if named and not told else []


def _told(chart: LineChart) -> tuple[str, str]:
    return chart.title.casefold(), chart.y_label.casefold()


def _plain_numbers(axis: "Axis", integer: bool = False) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(5, integer=integer, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(number))


def _never_flat(axes: "Axes", chart: LineChart) -> None:
    """A constant stands beside zero: its fifth digit is no news."""
    drawn = _drawn(chart)
    if drawn.any() and np.ptp(drawn) <= 1e-9 * abs(drawn[0]):
        axes.set_ylim(*sorted((0.0, 2.0 * drawn[0])))


def _drawn(chart: LineChart) -> Numbers:
    """All numbers that have a place on the axis."""
    given = [y for curve in chart.curves for y in (curve.y, curve.low, curve.high) if y is not None]
    shown = _shown(np.concatenate([np.zeros(0), *given]), chart.log)
    return shown[np.isfinite(shown)]


def _curve(axes: "Axes", x: Numbers, curve: Curve, nth: int, log: bool) -> Any:
    """Draw one curve, the `nth` of its look.

    Args:
        axes: Where.
        x: Its places.
        curve: The curve.
        nth: How many of its look came before it.
        log: Whether the axis is logarithmic.

    Returns:
        What stands for it in a legend.
    """
    y = _shown(curve.y, log)
    alone = _alone(y)
    band_colour = COLOURS[nth % len(COLOURS)]
    if curve.look == "points":
        mark, edge, face = _MARKS[nth % len(_MARKS)]
        size = 4.2 if len(x) <= _MANY else 2.4
        (drawn,) = axes.plot(
            x, y, linestyle="none", marker=mark, markersize=size if mark == "o" else 0.85 * size,
            markeredgecolor=edge, markerfacecolor=face, markeredgewidth=1.0 if len(x) <= _MANY else 0.6, zorder=3 + 0.1 * nth,
        )  # fmt: skip
        band_colour = BLUE if nth == 0 else edge
    elif curve.look == "limit":
        (drawn,) = axes.plot(
            x, y, color=INK, linewidth=1.0, linestyle=_DASHES[nth % len(_DASHES)], zorder=1.9,
            marker="_" if alone else "", markersize=12, markevery=alone,
        )  # fmt: skip
    else:
        (drawn,) = axes.plot(
            x, y, color=band_colour, linewidth=1.4 if len(x) <= 200 else 0.9, linestyle="-" if nth < len(COLOURS) else "--",
            marker="o" if alone else "", markersize=2.5, markevery=alone, solid_capstyle="round", zorder=2,
        )  # fmt: skip
    if curve.low is None or curve.high is None:
        return drawn
    return _band(axes, x, _shown(curve.low, log), _shown(curve.high, log), curve.look, band_colour), drawn


def _band(axes: "Axes", x: Numbers, low: Numbers, high: Numbers, look: str, colour: str) -> Any:
    """A light band; a bar of its own for each place that no line goes through."""
    from matplotlib.patches import Patch

    style: dict[str, Any] = {"color": colour, "alpha": 0.2, "linewidth": 0}
    bars = np.isfinite(low + high) if look == "points" else np.zeros(len(x), dtype=bool)
    if look != "points":
        axes.fill_between(x, low, high, **style)
        bars[_alone(low + high)] = True
    if bars.any():
        axes.bar(x[bars], (high - low)[bars], bottom=low[bars], width=0.5, **style)
    return Patch(**style)


def _shown(values: NDArray[Any], log: bool) -> Numbers:
    """The numbers that have a place on the axis, NaN for the others."""
    y = np.asarray(values, dtype=np.float64)
    y = np.where(np.isfinite(y) & ((y > 0) | (not log)), y, np.nan)
    return np.clip(y, 1 / _MOST if log else -_MOST, _MOST)


def _alone(y: Numbers) -> list[int]:
    """Places without a neighbour to draw a line to."""
    there = np.concatenate([[False], np.isfinite(y), [False]])
    return np.flatnonzero(there[1:-1] & ~there[:-2] & ~there[2:]).tolist()

"""Heat maps: a number for each module and recorded step, by colour."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trimtab._messages import say
from trimtab._style import GREY, INK, LABEL, TICK, log_ticks, number, quiet
from trimtab.report.charts import HeatMap, Numbers
from trimtab.report.drawing.words import Key, inches, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.image import AxesImage

COLOURS = "viridis"
"""Even in lightness, and told apart by the colour-blind."""

ZERO, BROKEN = "#C8C8C8", "#D50000"
"""Colours of zero and of what was not finite; no colour of the map looks like them, nor does paper, to whatever eye."""


def draw_cells(axes: "Axes", chart: HeatMap, named: bool) -> Key:
    """Draw the cells and a bar of their colours.

    Args:
        axes: Where.
        chart: What.
        named: Whether colours are explained.

    Returns:
        The special colours there are, and their names.
    """
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.patches import Patch

    values = np.asarray(chart.values, dtype=np.float64)
    usual = np.isfinite(values) & ((values > 0) | (not chart.log))
    quiet(axes)
    if values.size:
        image = _image(axes, values, usual, _norm(values[usual], chart.log), COLOURS)
    key = []
    for name, colour, where in (
        (say("zero"), ZERO, (values == 0) & chart.log),
        (say("not finite"), BROKEN, np.isinf(values)),
    ):
        if where.any():
            _image(axes, np.ones_like(values), where, Normalize(0, 1), ListedColormap([colour]))
            key.append((Patch(facecolor=colour, linewidth=0), name))
    if named and usual.any():
        _colour_bar(axes, image, chart)
    return key if named else []


def _image(axes: "Axes", values: Numbers, there: NDArray[np.bool_], norm: "Normalize", colours: Any) -> "AxesImage":
    """An image of the cells that are there; where they are more than the columns of pixels, these are means and no cell is left out."""
    rows, columns = values.shape
    pixels = axes.get_window_extent()
    crowded = columns > pixels.width or rows > pixels.height
    thick = max(round(pixels.height / max(rows, 1)), 1) if crowded else 1  # to take means of columns alone, not of rows
    return axes.imshow(
        np.ma.array(values, mask=~there).repeat(thick, axis=0),
        norm=norm,
        cmap=colours,
        aspect="auto",
        origin="upper",
        interpolation="antialiased" if crowded else "nearest",
        interpolation_stage="rgba",
        extent=(-0.5, columns - 0.5, rows - 0.5, -0.5),
    )


def _norm(usual: NDArray[np.float64], log: bool) -> "Normalize":
    """From the least to the largest number; a factor of ten (or one, where it is not logarithmic) where they are about the same."""
    from matplotlib.colors import LogNorm, Normalize

    low, high = (float(usual.min()), float(usual.max())) if len(usual) else (1.0, 1.0)
    if log:
        if high < 10 * low:
            middle = low**0.5 * high**0.5
            low, high = middle / 10**0.5, middle * 10**0.5
        return LogNorm(low, high)
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        low, high = low - 0.5 * max(abs(low), 1.0), high + 0.5 * max(abs(high), 1.0)
    return Normalize(low, high)


def _colour_bar(axes: "Axes", image: "AxesImage", chart: HeatMap) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    figure = axes.get_figure()
    assert figure is not None
    width, height = inches(axes)
    pad = (
        0.03 if figure.get_layout_engine() else 0.45 / height
    )  # without an engine nobody else makes room for the ticks' labels
    bar = figure.colorbar(
        image, ax=axes, location="bottom", aspect=32, fraction=min(0.14 / height, 0.3), pad=min(pad, 0.5)
    )
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=TICK, color=GREY, labelcolor=INK, length=2, width=0.8)
    if chart.log:
        places, texts = log_ticks(*image.get_clim())
        bar.set_ticks(places, labels=texts)
    else:
        bar.ax.xaxis.set_major_locator(MaxNLocator(4))
        bar.ax.xaxis.set_major_formatter(FuncFormatter(number))
    bar.minorticks_off()
    bar.ax.set_xlabel(wrapped(chart.unit, LABEL, width), fontsize=LABEL, color=INK, usetex=False)

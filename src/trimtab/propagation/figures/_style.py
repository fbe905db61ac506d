"""How every figure looks: an empty one without global state, colours that the colour-blind tell apart, quiet axes."""

from pathlib import Path
from typing import TYPE_CHECKING

from trimtab._messages import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK = COLOURS = (  # Okabe and Ito
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
INK, GREY, FAINT, DPI = "#222222", "#888888", "#D9D9D9", 200


def empty(width: float, height: float) -> "Figure":
    """A figure of so many inches that belongs to nobody."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def by_depth(axes: "Axes", depth: int, label: str) -> None:
    """Layers to the right, from 1; quiet spines and a grid across."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0.5, max(depth, 2) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.set_xlabel(say("layer"), fontsize=9, color=INK)
    axes.set_title(label, fontsize=10, color=INK, pad=8)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    quiet(axes)


def quiet(axes: "Axes") -> None:
    """No frame above and to the right, small grey ticks."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(labelsize=8, color=GREY, labelcolor=INK)


def roomy(axes: "Axes", least: float = 100.0) -> None:
    """A logarithmic axis of two decades or more, so that a flat line looks flat; few ticks."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < least * low:
        middle = (low * high) ** 0.5
        axes.set_ylim(middle / least**0.5, middle * least**0.5)
    axes.yaxis.set_major_locator(LogLocator(numticks=7))
    axes.yaxis.set_minor_locator(NullLocator())


def saved(figure: "Figure", path: str | Path | None) -> "Figure":
    """The figure, written as PNG where a path is given."""
    if path is not None:
        figure.savefig(path, format="png", dpi=DPI)
    return figure

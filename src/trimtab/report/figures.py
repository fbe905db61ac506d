"""The figure of a network's two signals by depth: what theory predicts and what was measured."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray

from trimtab._messages import say

_SIGNAL, _GRADIENT, _INK, _FAINT = "#0072B2", "#D55E00", "#222222", "#D9D9D9"  # the first two: Okabe and Ito
_COLUMN, _HEIGHT, _DPI = 3.3, 5.0, 200


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


def signal_figure(panels: Sequence[Profile], path: str | Path | None = None) -> Figure:
    """The signal (above) and the gradient (below) by depth, one column for each network, on shared logarithmic axes.

    Predictions are lines with a light band, measurements are points. No global state of matplotlib is touched.

    Args:
        panels: The networks, at least one.
        path: Where to save the figure as PNG; None saves nothing.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no panel.
    """
    if not panels:
        raise ValueError("signal_figure needs at least one profile, got none")
    figure = Figure(figsize=(_COLUMN * len(panels) + 0.6, _HEIGHT), dpi=_DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(panels), sharey="row", sharex="col", squeeze=False)
    for column, panel in enumerate(panels):
        above, below = axes[:, column]
        _curve(above, panel.signal_measured, panel.signal_predicted, panel.signal_low, panel.signal_high, _SIGNAL)
        _curve(
            below, panel.gradient_measured, panel.gradient_predicted, panel.gradient_low, panel.gradient_high, _GRADIENT
        )
        above.set_title(_verbatim(panel.title), fontsize=10, color=_INK, pad=8)
        _name_layers(below, panel.layers)
    axes[0, 0].set_ylabel(say("signal\nmean square of the outputs"), fontsize=9, color=_INK)
    axes[1, 0].set_ylabel(say("gradient\nmean square at the outputs"), fontsize=9, color=_INK)
    _dress(axes.ravel())
    _legend(axes[0, 0])
    if path is not None:
        figure.savefig(path, format="png", dpi=_DPI)
    return figure


def _positive(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(array) & (array > 0), array, np.nan)


def _curve(
    axes: Axes,
    measured: Sequence[float],
    predicted: Sequence[float],
    low: Sequence[float] | None,
    high: Sequence[float] | None,
    colour: str,
) -> None:
    line = _positive(predicted)
    depth = np.arange(1, len(line) + 1)
    axes.set_yscale("log")
    if low is not None and high is not None:
        edges = line * _positive(low), line * _positive(high)
        axes.fill_between(depth, *edges, color=colour, alpha=0.16, linewidth=0, label=say("its tolerance"))
    axes.plot(depth, line, color=colour, linewidth=1.6, label=say("predicted"), solid_capstyle="round")
    points = _positive(measured)
    axes.plot(
        np.arange(1, len(points) + 1),
        points,
        linestyle="none",
        marker="o",
        markersize=4.8,
        markerfacecolor="white",
        markeredgecolor=_INK,
        markeredgewidth=1.1,
        label=say("measured"),
        zorder=3,
    )


def _name_layers(axes: Axes, layers: Sequence[str]) -> None:
    """Ticks at whole depths; the first and the last layer by name, so that the direction is plain."""
    axes.set_xlim(0.5, max(len(layers), 1) + 0.5)
    axes.set_xticks(range(1, len(layers) + 1, 1 + len(layers) // 10))
    label = say("depth in layers")
    if layers:
        ends = tuple(_verbatim(name if len(name) <= 16 else f"…{name[-15:]}") for name in (layers[0], layers[-1]))
        label = say("{label}  ({first} → {last})", label=label, first=ends[0], last=ends[1])
    axes.set_xlabel(label, fontsize=9, color=_INK)


def _verbatim(text: str) -> str:
    return text.replace("$", r"\$")


def _dress(all_axes: Iterable[Axes]) -> None:
    for axes in all_axes:
        axes.set_axisbelow(True)
        axes.grid(axis="y", which="major", color=_FAINT, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#888888")
        axes.yaxis.set_major_locator(LogLocator(numticks=7))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.minorticks_off()
        axes.tick_params(labelsize=8, color="#888888", labelcolor=_INK)
        bottom, top = axes.get_ylim()
        if top < bottom * 30:  # under one and a half decades: room, so that a flat line looks flat
            axes.set_ylim(bottom / 5, top * 5)


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1],
        labels[::-1],
        fontsize=8,
        frameon=False,
        loc="best",
        handlelength=1.6,
        labelcolor=_INK,
        borderaxespad=0.2,
    )

"""The loss on a line or a plane, with the model and the path that led to it."""

from pathlib import Path
from typing import Any

import numpy as np

from trimtab._messages import say
from trimtab._style import (
    BLACK,
    BLUE,
    FAINT,
    INK,
    LABEL,
    ORANGE,
    SMALL,
    TICK,
    TITLE,
    empty,
    quiet,
    ruled,
    saved,
    styled,
)
from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.surface import Surface

LEVELS = 14


@styled
def surface_figure(
    *surfaces: Surface, labels: tuple[str, ...] = (), path: str | Path | None = None, ax: Any = None
) -> Any:
    """Draw slices: a plane as contours that are even in the logarithm of the loss, lines one over the other.

    Points whose loss is NaN or infinite stay empty (grey). The model is a dot; the path of checkpoints is a line that ends there.

    Args:
        *surfaces: One plane, or lines.
        labels: What each line is.
        path: Where to save the figure, as PNG unless it ends in .svg or .pdf; None saves nothing.
        ax: Axes of matplotlib to draw on; None for a figure of its own.

    Returns:
        The figure.

    Raises:
        CurvatureError: There is nothing to draw, or a plane beside something else.
    """
    planes = [s for s in surfaces if len(s.axes) == 2]
    if not surfaces or (planes and len(surfaces) > 1):
        raise CurvatureError(f"surface_figure draws one plane, or lines, but it was given {len(surfaces)} surfaces")
    if labels and len(labels) != len(surfaces):
        raise CurvatureError(f"labels must be one a line, {len(surfaces)}, but there are {len(labels)}")
    figure = empty(3.6, 3.1) if ax is None else ax.figure
    axes = figure.subplots() if ax is None else ax
    if planes:
        _plane(axes, planes[0])
    else:
        _lines(axes, surfaces, labels)
    axes.set_xlabel(surfaces[0].directions.names[0], fontsize=LABEL, color=INK)
    quiet(axes)
    return saved(figure, path)


def _lines(axes: Any, surfaces: tuple[Surface, ...], labels: tuple[str, ...]) -> None:
    for one, label in zip(surfaces, labels or [None] * len(surfaces), strict=True):
        axes.plot(one.axes[0], np.where(np.isfinite(one.values), one.values, np.nan), label=label, linewidth=1.4)
        axes.plot([0.0], [one.loss], "o", color=axes.lines[-1].get_color(), markersize=4)
    axes.set_ylabel(say("loss"), fontsize=LABEL, color=INK)
    ruled(axes)
    if labels:
        axes.legend(fontsize=SMALL, frameon=False, labelcolor=INK)


def _plane(axes: Any, one: Surface) -> None:
    finite = np.isfinite(one.values)
    if not finite.any():
        raise CurvatureError("no point of the surface has a finite loss, so there is nothing to draw")
    values = np.ma.masked_where(~finite, one.values).T
    axes.set_facecolor(FAINT)
    axes.contour(*one.axes, values, levels=levels(one), colors=BLUE, linewidths=0.8)
    drawn = axes.contourf(*one.axes, values, levels=levels(one), cmap="Blues", extend="both", alpha=0.6)
    bar = axes.figure.colorbar(drawn, ax=axes, format="%.3g")
    bar.set_label(say("loss"), fontsize=LABEL, color=INK)
    bar.ax.tick_params(labelsize=TICK)
    track = one.directions.path
    if track is not None and track.shape[1] == 2:
        ends = np.vstack([track, np.zeros((1, 2))])
        axes.plot(ends[:, 0], ends[:, 1], "-o", color=ORANGE, markersize=2.5, linewidth=1.2)
    axes.plot([0.0], [0.0], "o", color=BLACK, markersize=5)
    axes.set_ylabel(one.directions.names[1], fontsize=LABEL, color=INK)
    axes.set_title(say("loss {loss:.4g} at the model", loss=one.loss), fontsize=TITLE, color=INK, pad=8)


def levels(one: Surface) -> np.ndarray:
    """Contours: even steps in the logarithm of the loss where all of it is positive, else in the loss.

    Args:
        one: A plane.

    Returns:
        Rising values.
    """
    good = one.values[np.isfinite(one.values)]
    low, high = float(good.min()), float(good.max())
    if not high > low:
        return np.array([low - 1.0, low + 1.0])
    return np.geomspace(low, high, LEVELS) if low > 0 else np.linspace(low, high, LEVELS)

"""The phase diagram of an activation: where signals are kept apart, where they merge, and how deep they reach."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trimtab._messages import say
from trimtab._style import BLUE, INK, LABEL, ORANGE, SMALL, TICK, TITLE, empty, quiet, saved, styled, verbatim
from trimtab.propagation._activation import Activation, Array
from trimtab.propagation._checks import (
    PropagationError,
    require_places,
    require_positive,
    require_sequence,
    require_whole,
)
from trimtab.propagation.functions import ActivationLike, as_activation
from trimtab.propagation.gains import mean_derivative_squared, second_moment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ORDER, _CHAOS, _NONE = BLUE, ORANGE, "#EEEEEE"
_LEVELS = (2.0, 5.0, 10.0, 20.0, 50.0)


@styled
def phase_diagram(
    activation: ActivationLike,
    weight_var: tuple[float, float] = (0.25, 4.0),
    bias_var: tuple[float, float] = (0.0, 1.0),
    path: str | Path | None = None,
    *,
    points: int = 60,
    levels: Sequence[float] = _LEVELS,
) -> "Figure":
    """Order and chaos over weight and bias variance, with the depths over which a gradient changes by a factor e.

    Blue, chi_1 < 1 at the stable fixed point q*: gradients vanish and inputs merge; orange, chi_1 > 1: gradients explode and
    inputs part; the line between is the edge of chaos (Schoenholz et al. 2017, fig. 1). Contours are xi = 1/|log chi_1| in
    layers, in the ordered phase the xi_c of two inputs. Grey: the signal grows without bound; a dashed line is where chi_1 = 1 at an unstable one.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        weight_var: Lowest and highest n_in Var W.
        bias_var: Lowest and highest Var b.
        path: Where to save the figure, as PNG unless it ends in .svg or .pdf; None saves nothing.
        points: Points of the grid along each axis.
        levels: Depths of the contours, in layers.

    Returns:
        The figure. No global state of matplotlib is touched.

    Raises:
        PropagationError: If a range is empty or negative, or there are fewer than two points.
    """
    phi = as_activation(activation)
    for name, ends in (("weight_var", weight_var), ("bias_var", bias_var)):
        require_places(name, ends)
        if not (len(ends) == 2 and 0.0 <= ends[0] < ends[1]):
            raise PropagationError(f"{name} is {ends}; a lowest number from 0 up and a higher one are needed")
    require_whole("points", points, least=2)
    for depth in require_sequence("levels", levels, "depths"):
        require_positive("a number of levels", depth)
    weights, biases = np.linspace(*weight_var, points), np.linspace(*bias_var, points)
    gains = _at_rest(phi, weights, biases)
    figure = empty(4.4, 3.9)
    axes = figure.subplots()
    _phases(axes, weights, biases, gains)
    _depths(axes, weights, biases, gains, levels)
    _edge(axes, phi, weight_var, bias_var)
    _dress(axes, phi.name, gains, weight_var, bias_var)
    return saved(figure, path)


def _at_rest(phi: Activation, weights: Array, biases: Array) -> Array:
    """Return chi_1 at the lowest stable fixed point, shape (biases, weights), nan where none is; to the eye's precision."""
    q = np.geomspace(1e-8, 1e6, 1000)
    moments, slopes = second_moment(phi, q), mean_derivative_squared(phi, q)
    start = float(mean_derivative_squared(phi, 0.0))
    out = np.full((len(biases), len(weights)), np.nan)
    for row, bias in enumerate(biases):
        for column, weight in enumerate(weights):
            excess = (weight * moments + bias) / q - 1.0
            falls = np.flatnonzero((excess[:-1] > 0.0) & (excess[1:] <= 0.0))
            if excess[0] <= 0.0:  # below the grid
                out[row, column] = weight * start
            elif len(falls):
                k = falls[0]
                share = excess[k] / (excess[k] - excess[k + 1])
                out[row, column] = weight * (slopes[k] + share * (slopes[k + 1] - slopes[k]))
    return out


def _phases(axes: "Axes", weights: Array, biases: Array, gains: Array) -> None:
    axes.set_facecolor(_NONE)
    for low, high, colour in ((-np.inf, 1.0, _ORDER), (1.0, np.inf, _CHAOS)):
        bottom, top = np.nanmin(gains, initial=1.0) - 1.0, np.nanmax(gains, initial=1.0) + 1.0
        axes.contourf(weights, biases, gains, [max(low, bottom), min(high, top)], colors=[colour], alpha=0.22)


def _depths(axes: "Axes", weights: Array, biases: Array, gains: Array, levels: Sequence[float]) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        signed = np.log(gains)  # smooth through the edge, where the depth itself is infinite
    for sign, colour in ((-1.0, _ORDER), (1.0, _CHAOS)):
        marks = {sign / depth: f"{depth:g}" for depth in levels}
        inside = sorted(mark for mark in marks if np.nanmin(signed) < mark < np.nanmax(signed))
        if inside:
            lines = axes.contour(weights, biases, signed, inside, colors=[colour], linewidths=0.9, linestyles="solid")
            for text in axes.clabel(lines, fmt=marks, fontsize=TICK, inline_spacing=2):
                text.set_rotation(0.0)


def _edge(axes: "Axes", phi: Activation, weight_var: tuple[float, float], bias_var: tuple[float, float]) -> None:
    """The curve q -> (1/E phi'^2, q - E phi^2/E phi'^2), dashed where its fixed point is unstable."""
    q = np.geomspace(1e-6, 1e5, 600)
    slopes = mean_derivative_squared(phi, q)
    passing = slopes > 0.0
    q, weights = q[passing], 1.0 / slopes[passing]
    biases = q - weights * second_moment(phi, q)
    step = 1e-4
    tilt = (second_moment(phi, q * (1 + step)) - second_moment(phi, q * (1 - step))) * weights / (2 * step * q)
    seen = (weights <= 1.2 * weight_var[1]) & (biases >= -1e-12) & (biases <= 1.2 * bias_var[1] + 1e-12)
    if np.all(np.abs(biases) < 1e-9 * q):  # homogeneous: one point of the bias-free axis
        axes.plot(weights[:1], [0.0], "o", color=INK, markersize=6, clip_on=False, zorder=5, label=say("edge of chaos"))
        return
    for part, style, label in (
        (seen & (tilt < 1.0), "-", say("edge of chaos")),
        (seen & (tilt >= 1.0), "--", say("edge of chaos, unstable")),
    ):
        if np.any(part):
            x, y = np.where(part, weights, np.nan), np.where(part, biases, np.nan)
            axes.plot(x, y, style, color=INK, linewidth=2.0, label=label, zorder=4)


def _dress(
    axes: "Axes", name: str, gains: Array, weight_var: tuple[float, float], bias_var: tuple[float, float]
) -> None:
    from matplotlib.patches import Patch

    axes.set_xlim(*weight_var)
    axes.set_ylim(*bias_var)
    axes.set_xlabel(say("weight variance × fan-in"), fontsize=LABEL, color=INK)
    axes.set_ylabel(say("bias variance"), fontsize=LABEL, color=INK)
    axes.set_title(
        say("{name}: layers until a gradient changes by a factor e", name=verbatim(name)),
        fontsize=TITLE,
        color=INK,
        pad=8,
    )
    quiet(axes)
    handles, _ = axes.get_legend_handles_labels()
    for there, colour, alpha, label in (
        (np.mean(gains < 1.0) > 0.005, _ORDER, 0.22, say("gradients vanish")),
        (np.mean(gains > 1.0) > 0.005, _CHAOS, 0.22, say("gradients explode")),
        (np.any(np.isnan(gains)), _NONE, 1.0, say("signal grows without bound")),
    ):
        if there:
            handles.append(Patch(facecolor=colour, alpha=alpha, label=label))
    axes.legend(
        handles=handles,
        fontsize=SMALL,
        frameon=False,
        ncols=2,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.16),
        labelcolor=INK,
    )

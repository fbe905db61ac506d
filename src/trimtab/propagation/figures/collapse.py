"""The correlation collapse: how alike two inputs become with depth, foretold and measured."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trimtab._messages import say
from trimtab._style import COLOURS, INK, SMALL, empty, roomy, saved, styled, verbatim
from trimtab.propagation._checks import PropagationError
from trimtab.propagation.figures._layers import by_depth
from trimtab.propagation.jacobians import NetworkJacobian
from trimtab.propagation.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEAREST = 1e-16  # below this 1 - c is rounding


@styled
def collapse_figure(
    predicted: Mapping[str, Trajectory],
    measured: Mapping[str, NetworkJacobian] | None = None,
    path: str | Path | None = None,
) -> "Figure":
    """Correlation c of two inputs by layer, and 1 - c on a logarithmic axis, where order, edge and chaos part.

    In order 1 - c falls exponentially, at rate 1/xi_c; on the edge like a power of the depth; in chaos c comes to c* < 1
    (Poole et al. 2016, arXiv:1606.05340, fig. 2; Schoenholz et al. 2017, arXiv:1611.01232, sec. 3). Lines are foretold,
    points measured: the mean cosine between examples at each layer's output.

    Args:
        predicted: By name, what `trajectory` gives from the start of each net; `plain_net(...).course` too.
        measured: By the same names, what `jacobian` gives for a net, with a row for each layer.
        path: Where to save the figure, as PNG unless it ends in .svg or .pdf; None saves nothing.

    Returns:
        The figure. No global state of matplotlib is touched.

    Raises:
        PropagationError: If there is no net, there are more than seven, or a name was not predicted.
    """
    measured = {} if measured is None else measured
    unknown = [name for name in measured if name not in predicted]
    if unknown or not 1 <= len(predicted) <= len(COLOURS):
        raise PropagationError(
            f"measured has {unknown[0]!r}, which predicted lacks"
            if unknown
            else f"predicted has {len(predicted)} nets; 1 to {len(COLOURS)} can be told apart"
        )
    figure = empty(7.6, 3.3)
    plain, zoomed = figure.subplots(1, 2)
    depth = max(len(course.d) for course in predicted.values())
    for (name, course), colour in zip(predicted.items(), COLOURS, strict=False):
        layers = np.arange(1, len(course.d) + 1)
        plain.plot(layers, course.c, color=colour, linewidth=1.8, label=verbatim(name))
        zoomed.plot(layers, np.where(course.d > NEAREST, course.d, np.nan), color=colour, linewidth=1.8)
        if name in measured:
            found = np.array([layer.correlation for layer in measured[name].layers])
            depth, at = max(depth, len(found)), np.arange(1, len(found) + 1)
            points = {
                "color": colour,
                "marker": "o",
                "markersize": 4.2,
                "markerfacecolor": "white",
                "linestyle": "none",
            }
            plain.plot(at, found, **points)
            zoomed.plot(at, np.where(1.0 - found > NEAREST, 1.0 - found, np.nan), **points)
    if measured:
        plain.plot(
            [],
            [],
            color="#444444",
            marker="o",
            markersize=4.2,
            markerfacecolor="white",
            linestyle="none",
            label=say("measured"),
        )
    by_depth(plain, depth, say("correlation c of two inputs"))
    by_depth(zoomed, depth, say("1 − c"))
    plain.set_ylim(min(-0.03, plain.get_ylim()[0]), 1.05)
    roomy(zoomed)
    figure.legend(
        *plain.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        fontsize=SMALL,
        frameon=False,
        labelcolor=INK,
    )
    return saved(figure, path)

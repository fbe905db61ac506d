"""The figure of a coordinate check."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trimtab._style import COLOURS, INK, LABEL, TICK, TITLE, empty, quiet, roomy, ruled, saved, styled, verbatim
from trimtab.propagation.width._exponents import QUANTITIES
from trimtab.propagation.width.coordinate import SHOWN_AT, CoordinateCheck

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SPAN = 10.0
_TITLES = {
    "activation": "output at the start",
    "change": "change of the output",
    "gradient": "gradient at the output",
    "update": "first update of the weight",
}


@styled
def coordinate_figure(check: CoordinateCheck, path: str | Path | None = None) -> "Figure":
    """Root mean square against width, a panel for each size, a line for each layer, on logarithmic axes.

    Points are seeds, lines go through their geometric means. Flat lines in the panel of changes are what muP is for. No
    global state of matplotlib is touched.

    Args:
        check: What `coordinate_check` found.
        path: Where to save the figure, as PNG unless it ends in .svg or .pdf; None saves nothing.

    Returns:
        The figure.
    """
    from matplotlib.ticker import NullLocator

    figure = empty(10.0, 5.6)
    axes = figure.subplots(2, 2, sharex=True)
    for axis, quantity in zip(axes.ravel(), QUANTITIES, strict=True):
        rows = [site for site in check.shown if site.quantity == quantity]
        for number, site in enumerate(rows):
            sizes = np.array(site.sizes)
            colour = COLOURS[number % len(COLOURS)]
            axis.plot(check.widths, sizes, ".", color=colour, markersize=4, alpha=0.5)
            with np.errstate(divide="ignore", invalid="ignore"):
                means = np.exp(np.log(sizes).mean(axis=1))
            label = verbatim(f"{site.name} ({site.role}) {site.slope:+.2f}")
            axis.plot(check.widths, means, color=colour, linewidth=1.4, label=label)
        step = SHOWN_AT.get(quantity, check.steps)
        title = _TITLES[quantity] + (f" after {step} steps" if quantity == "change" else "")
        axis.set_title(title, fontsize=TITLE, color=INK)
        axis.set_xscale("log")
        roomy(axis, _SPAN)  # or the scatter of a flat line fills the panel
        axis.set_xticks(check.widths, [str(width) for width in check.widths])
        axis.xaxis.set_minor_locator(NullLocator())
        ruled(axis, "both")
        quiet(axis)
        if rows:
            axis.legend(
                fontsize=TICK,
                frameon=False,
                labelcolor=INK,
                title="layer, slope",
                title_fontsize=TICK,
                loc="upper left",
                bbox_to_anchor=(1.0, 1.0),
            )
    for axis in axes[1]:
        axis.set_xlabel("width", fontsize=LABEL, color=INK)
    for axis in axes[:, 0]:
        axis.set_ylabel("root mean square", fontsize=LABEL, color=INK)
    return saved(figure, path)

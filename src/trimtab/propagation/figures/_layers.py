"""Axes with layers to the right."""

from typing import TYPE_CHECKING

from trimtab._messages import say
from trimtab._style import INK, LABEL, TITLE, quiet, ruled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def by_depth(axes: "Axes", depth: int, label: str) -> None:
    """Layers to the right, from 1; quiet spines and a grid across."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0.5, max(depth, 2) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.set_xlabel(say("layer"), fontsize=LABEL, color=INK)
    axes.set_title(label, fontsize=TITLE, color=INK, pad=8)
    ruled(axes)
    quiet(axes)

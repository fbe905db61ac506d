"""Every figure of the theory; matplotlib is loaded when one is drawn."""

from trimtab.propagation.figures.collapse import collapse_figure
from trimtab.propagation.figures.depth import depth_figure
from trimtab.propagation.figures.phase import phase_diagram
from trimtab.propagation.figures.widths import coordinate_figure

__all__ = ["collapse_figure", "coordinate_figure", "depth_figure", "phase_diagram"]

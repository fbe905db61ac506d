"""Figures of a loss and its curvature; matplotlib is loaded when one is drawn."""

from trimtab.curvature.figures.over_training import sharpness_figure, smoothness_figure
from trimtab.curvature.figures.surface import surface_figure

__all__ = ["sharpness_figure", "smoothness_figure", "surface_figure"]

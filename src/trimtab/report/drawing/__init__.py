"""The charts of a run drawn with matplotlib, into axes of the user's or into files."""

from trimtab.report.drawing.chart import draw
from trimtab.report.drawing.files import save_figures

__all__ = ["draw", "save_figures"]

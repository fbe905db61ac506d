"""The charts of a record: what the page, the figures and the comparison show."""

from trimtab.diagnosis.charting.build import charts_of

__all__ = ["charts_of"]

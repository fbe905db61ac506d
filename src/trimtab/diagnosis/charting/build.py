"""All charts of one record."""

from collections.abc import Callable

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.charting.depth import by_depth
from trimtab.diagnosis.charting.flow import flows
from trimtab.diagnosis.charting.normalization import statistics
from trimtab.diagnosis.charting.training import course
from trimtab.diagnosis.view import View
from trimtab.recording import Record
from trimtab.report.charts import Chart, Charts

BUILDERS: tuple[Callable[[View], tuple[list[Chart], list[str]]], ...] = (course, flows, by_depth, statistics)
"""Each gives the charts that a record has numbers for, and notes on them."""


def charts_of(record: Record) -> Charts:
    """What there is to see of a run.

    Args:
        record: Its record, of a run that trains or has ended.

    Returns:
        The charts there are numbers for, in the order of reading. Long runs are thinned: at most 1000 of the recorded steps become
        columns of a heat map and 2000 losses points of a curve; the notes say so.
    """
    view = View(record)
    charts: list[Chart] = []
    notes: list[str] = []
    if not len(record.steps) and not record.step_count:
        return Charts((), (say("No step was recorded yet."),))
    with np.errstate(all="ignore"):
        for build in BUILDERS:
            more, remarks = build(view)
            charts += more
            notes += remarks
    return Charts(tuple(charts), tuple(notes))

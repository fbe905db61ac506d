"""One chart of two runs, and all of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trimtab.report.charts import Chart, Section

Places: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A chart on scales that it shares.

    Attributes:
        chart: The chart; NaN at places that only the other run has.
        places: Of each curve, the indices of the places that are its run's own; empty where all of them are.
    """

    chart: Chart
    places: tuple[Places, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One chart of both runs.

    Attributes:
        key: The chart's key.
        section: Where it stands.
        runs: One chart with both runs in it, or one of each; None where a run has no such chart.
        caption: How it is read.
        x_range: Ends of the common horizontal axis of line charts side by side, None where the places are common.
        y_range: Lowest and highest number of both, None for heat maps.
    """

    key: str
    section: Section
    runs: tuple[Fitted | None, ...]
    caption: str = ""
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PairedCharts:
    """The charts of two runs.

    Attributes:
        panels: In the order of reading.
        notes: What a reader must know of them.
    """

    panels: tuple[Panel, ...] = ()
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Panel]:
        return iter(self.panels)

    def __len__(self) -> int:
        return len(self.panels)

    def __getitem__(self, key: str) -> Panel:
        for panel in self.panels:
            if panel.key == key:
                return panel
        raise KeyError(key)

    def of(self, section: Section) -> tuple[Panel, ...]:
        """The panels of a section."""
        return tuple(panel for panel in self.panels if panel.section == section)

"""What there is to see of a run, as data: the page, the figures and the comparison draw the same charts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trimtab._messages import say
from trimtab.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Section: TypeAlias = Literal["training", "flow", "depth", "normalization", "curvature", "bounds"]
"""Where on the page a chart stands: how it went, layer by layer over the steps, against theory by depth, and so on."""

SECTIONS: tuple[Section, ...] = ("training", "flow", "depth", "normalization", "curvature", "bounds")

Look: TypeAlias = Literal["line", "points", "limit"]
"""A course is a line, what was measured at single places is points, and what should not be passed is a dashed line."""

Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Numbers over the places of a line chart.

    Attributes:
        name: What they are, for the legend.
        y: One number a place, shape (n,); NaN where there is none.
        look: How they are drawn.
        low: Lower edge of the band around them, shape (n,), None for no band.
        high: Upper edge of the band.
    """

    name: str
    y: Numbers
    look: Look = "line"
    low: Numbers | None = None
    high: Numbers | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LineChart:
    """Curves over common places.

    Attributes:
        key: Its name for programs, the same in every run: charts of two runs with one key are compared.
        section: Where it stands.
        title: What it shows.
        x: The places, ascending, shape (n,).
        curves: What is drawn over them.
        x_label: What the places are.
        y_label: What the numbers are, with their unit.
        log: Whether the numbers are drawn on a logarithmic axis; such as are not positive leave a gap there.
        names: A name for each place where they are layers, empty otherwise.
        caption: How it is read, in a sentence or two.
    """

    key: str
    section: Section
    title: str
    x: Numbers
    curves: tuple[Curve, ...]
    x_label: str
    y_label: str
    log: bool = False
    names: tuple[str, ...] = ()
    caption: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """One number for each row and column, by colour.

    Attributes:
        key: Its name for programs, as of a `LineChart`.
        section: Where it stands.
        title: What it shows.
        columns: What each column is, ascending (the step), shape (n,).
        rows: What each row is, the first on top.
        values: Shape (rows, n) in float32: NaN where nothing was seen, infinite where values were not finite.
        x_label: What the columns are.
        y_label: What the rows are.
        unit: What the numbers are.
        log: Whether colours follow the logarithm; zero has a colour of its own then.
        caption: How it is read.
    """

    key: str
    section: Section
    title: str
    columns: Numbers
    rows: tuple[str, ...]
    values: NDArray[np.float32]
    x_label: str
    y_label: str
    unit: str
    log: bool = True
    caption: str = ""


Chart: TypeAlias = LineChart | HeatMap


@dataclass(frozen=True, slots=True, eq=False)
class Charts:
    """The charts of one run.

    Attributes:
        charts: In the order of reading.
        notes: What a reader must know of them: that steps were thinned, for instance.
    """

    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __iter__(self) -> Iterator[Chart]:
        return iter(self.charts)

    def __len__(self) -> int:
        return len(self.charts)

    def __getitem__(self, key: str) -> Chart:
        for chart in self.charts:
            if chart.key == key:
                return chart
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return any(chart.key == key for chart in self.charts)

    def of(self, section: Section) -> tuple[Chart, ...]:
        """The charts of a section."""
        return tuple(chart for chart in self.charts if chart.section == section)

    def draw(self, key: str, ax: "Axes | None" = None, *, title: bool = True, legend: bool = True) -> "Axes":
        """Draw one chart with matplotlib (`trimtab.report.drawing.draw` says how).

        Args:
            key: Its name, "loss" for instance; `[chart.key for chart in charts]` are all.
            ax: Axes of yours; None makes a figure of its own, at the width of a column.
            title: Whether the chart's title stands above it.
            legend: Whether its curves are named, or its colours explained.

        Returns:
            The axes.

        Raises:
            UsageError: There is no such chart.
        """
        from trimtab.report.drawing import draw

        if key not in self:
            known = ", ".join(chart.key for chart in self) or say("none")
            raise UsageError(say("no chart {key!r}; the charts of this run: {known}", key=key, known=known))
        return draw(self[key], ax, title=title, legend=legend)

    def save(self, folder: str | Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
        """Draw every chart into a file of its own, named by its key.

        Args:
            folder: Where to; it is made where it is missing, and files of the same names are replaced.
            formats: "png", "svg", "pdf": one file a chart for each.

        Returns:
            The files.

        Raises:
            UsageError: There is no such format, or the folder cannot be written to.
        """
        from trimtab.report.drawing import save_figures

        return save_figures(self, folder, formats)

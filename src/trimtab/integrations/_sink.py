"""What every tracker has in common: series as they come, and at the end the diagnosis and the figure of the two signals."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from trimtab.integrations._figure import flow_figure
from trimtab.integrations.series import PREFIX, Run, Series
from trimtab.recording import Record
from trimtab.report import Diagnosis
from trimtab.runner import Watch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOW = f"{PREFIX}/flow"
"""Name of the figure."""

DIAGNOSIS = f"{PREFIX}/diagnosis"
"""Name of the text."""


class Sink:
    """Where a run's series go. Each tracker has its own; this one does the reading.

    Args:
        layers: Patterns as of a shell ("encoder.*") of the layers to tell; None for every module with parameters of its own.
        first_step: What to add to the run's step numbers, which begin at 0: the step at which a resumed run goes on.
    """

    def __init__(self, *, layers: Sequence[str] | None = None, first_step: int = 0) -> None:
        self.first_step = first_step
        self._series = Series(layers)
        self._told: Diagnosis | None = None

    def update(self, run: Run) -> int:
        """Write the recorded steps that have come since the last call; cheap where there are none.

        Args:
            run: A watch, a record, or the path of a record's file; each time the same run.

        Returns:
            How many steps were written.
        """
        steps = 0
        for step, points in groupby(self._series.new(run), key=lambda point: point[0]):
            self._write(step + self.first_step, {name: value for _, name, value in points})
            steps += 1
        self._written(run if steps else None)
        return steps

    def finish(self, run: Run, diagnosis: Diagnosis | None = None) -> Diagnosis:
        """Write what is left, the diagnosis and the figure of signal and gradient by depth.

        Args:
            run: As for `update`.
            diagnosis: What to write; by default the run is diagnosed.

        Returns:
            The diagnosis.
        """
        from trimtab.diagnosis import diagnose

        self.update(run)
        record = run.record if isinstance(run, Watch) else run if isinstance(run, Record) else Record.open(run)
        found = diagnose(record) if diagnosis is None else diagnosis
        last = self.first_step + (int(record.steps[-1]) if len(record.steps) else 0)
        self._conclude(found, last)
        figure = flow_figure(record)
        if figure is not None:
            self._draw(figure, last)
        return found

    def _write(self, step: int, values: dict[str, float]) -> None:
        """One step's values."""
        raise NotImplementedError

    def _written(self, run: Run | None) -> None:
        """All that was new has been written; None where nothing was."""

    def _conclude(self, diagnosis: Diagnosis, step: int) -> None:
        """The diagnosis of the run."""

    def _draw(self, figure: "Figure", step: int) -> None:
        """The figure of the run."""


class FunctionSink(Sink):
    """Series for any tracker that has a function for it.

    Args:
        log: Called with the values of a step, by name, and the step's number.
        layers: As for every sink.
        first_step: As for every sink.
    """

    def __init__(
        self,
        log: Callable[[dict[str, float], int], object],
        *,
        layers: Sequence[str] | None = None,
        first_step: int = 0,
    ) -> None:
        super().__init__(layers=layers, first_step=first_step)
        self._log = log

    def _write(self, step: int, values: dict[str, float]) -> None:
        self._log(values, step)


def found_codes(diagnosis: Diagnosis) -> list[str]:
    """Codes of the root causes above a note, in the order of reading: what a run is tagged with."""
    return list(dict.fromkeys(finding.code for finding in diagnosis.roots if finding.severity != "note"))


def summary(diagnosis: Diagnosis) -> str:
    """The root causes in one line of codes, "healthy" where there is none."""
    return ", ".join(found_codes(diagnosis)) or "healthy"


def all_of(sinks: "Sink | Iterable[Sink]") -> tuple[Sink, ...]:
    """One sink or several, as a tuple.

    Args:
        sinks: What the user gave.

    Returns:
        The sinks.

    Raises:
        TypeError: Something else is among them.
    """
    found = (sinks,) if isinstance(sinks, Sink) else tuple(sinks)
    for sink in found:
        if not isinstance(sink, Sink):
            raise TypeError(
                "sinks must be sinks of trimtab.integrations, such as tensorboard.Sink(writer), "
                f"but one is a {type(sink).__name__}"
            )
    return found

"""`trimtab run --live`: what is shown of a run while it goes on, in a panel or, where there is no terminal, in lines now and then."""

import contextlib
import time
from collections.abc import Callable
from typing import Protocol, TextIO

from trimtab._messages import say
from trimtab.recording import Recorder
from trimtab.report import Finding
from trimtab.report.words import clean, number, places, share
from trimtab.runner.gauges import QUANTITIES, Flow, Gauges, Reading
from trimtab.runner.screen import Screen

SHARE = 0.003
"""Share of the run's time that showing it may take."""

LOOKING = 0.005
"""The same of the looks beside it, so that both together stay below one percent with some room."""

APART = 0.5
"""Seconds from frame to frame at least."""

PEEK = 0.02
"""Seconds from one question to the next: whether it is time to draw, and how large the terminal is."""

MINUTE = 60.0
"""Seconds from line to line at least."""

RARER = 0.1
"""The next line waits until the run is by this share longer: a log of a week has a hundred lines."""

EXAMPLE = Reading(
    1, 1.0, (1.0, 2.0), 0.1, 1.0, flow=Flow(0, ("a", "b"), {quantity: [1.0, 0.1] for quantity in QUANTITIES})
)


class Display(Protocol):
    """What is told of a run as it goes on."""

    def step_ended(self, step: int) -> None:
        """A step has ended."""

    def found(self, finding: Finding, step: int) -> None:
        """Something was found."""

    def close(self) -> None:
        """The run has ended, or something else is to be written: leave the terminal as it was."""


def display(recorder: Recorder, errors: TextIO, tell: Callable[[str], None]) -> Display:
    """What shows a run on standard error.

    Args:
        recorder: The run's recorder.
        errors: Standard error.
        tell: Prints a line there.

    Returns:
        A panel where it is a terminal, else lines.
    """
    if Screen.can_show(errors):
        with contextlib.suppress(OSError):
            return Panelled(recorder, Screen(errors), tell)
    tell(
        say(
            "trimtab: --live needs standard error to be a terminal that can be drawn on; without one it prints a line a minute, later ever fewer"
        )
    )
    return Lines(recorder, tell)


class Panelled:
    """A panel at the bottom of the terminal, drawn between two steps of the training.

    Never so often that all frames, with one more like the last, take more than `SHARE` of the run's time. Both are time of the processor
    where the run gets less than a whole one: what other programs do meanwhile is neither the view's cost nor the run's.

    Args:
        recorder: The run's recorder.
        screen: Its terminal.
        tell: Prints a line on it.
    """

    def __init__(self, recorder: Recorder, screen: Screen, tell: Callable[[str], None]) -> None:
        from trimtab.runner.panel import Panel  # with rich, which a run without a view does not load

        self._recorder = recorder
        self._screen = screen
        self._tell = tell
        self._gauges = Gauges(recorder)
        self._panel = Panel(recorder.name, unicode=screen.encoding.lower().replace("-", "") == "utf8")
        self._findings: list[Finding] = []
        self._off = False
        self._peek = self._due = 0.0
        self._spent = 0.0
        self._panel.lines(EXAMPLE, (), 80, 24)  # whatever is slow the first time is done now, before the run
        begin = time.thread_time()
        self._panel.lines(EXAMPLE, (), 80, 24)
        self._last = time.thread_time() - begin
        self._began = time.perf_counter(), time.process_time()

    def step_ended(self, step: int) -> None:
        """Draw, if it is time to.

        Args:
            step: The step that has just ended.
        """
        if self._off:
            return
        self._gauges.step_ended(step)
        begin = time.perf_counter()
        if begin < self._peek:
            return
        self._peek = begin + PEEK
        self._screen.follow()
        if begin < self._due or self._spent + self._last > SHARE * self._run_time():
            return
        busy = time.thread_time()
        try:
            self._draw(step)
        except Exception as error:  # never into the user's step
            self._give_up(error)
        end, self._last = time.perf_counter(), time.thread_time() - busy
        self._spent += self._last
        self._recorder.spent += end - begin
        self._due = end + APART

    def _run_time(self) -> float:
        wall, busy = self._began
        return min(time.perf_counter() - wall, time.process_time() - busy)

    def found(self, finding: Finding, step: int) -> None:
        """Show a finding from the next frame on."""
        self._findings.append(finding)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._off = True
        self._screen.close()

    def _draw(self, step: int) -> None:
        columns, rows = self._screen.size()
        self._screen.draw(self._panel.lines(self._gauges.read(step), self._findings, columns, rows))

    def _give_up(self, error: Exception) -> None:
        self.close()
        if not isinstance(error, OSError):  # else the terminal is gone
            what = f"{type(error).__name__}: {error}"
            self._tell(
                say(
                    "trimtab: the live view has failed ({error}) and is given up; the run is recorded as before",
                    error=what,
                )
            )


class Lines:
    """A line now and then, for a log.

    Args:
        recorder: The run's recorder.
        tell: Prints a line.
    """

    def __init__(self, recorder: Recorder, tell: Callable[[str], None]) -> None:
        self._gauges = Gauges(recorder)
        self._recorder = recorder
        self._tell = tell
        self._due = time.perf_counter() + MINUTE
        self._began = time.perf_counter()

    def step_ended(self, step: int) -> None:
        """Print a line, if it is time to.

        Args:
            step: The step that has just ended.
        """
        self._gauges.step_ended(step)
        begin = time.perf_counter()
        if begin < self._due:
            return
        with contextlib.suppress(Exception):  # never into the user's step
            self._tell(_line(self._gauges.read(step)))
        end = time.perf_counter()
        self._due = end + max(MINUTE, RARER * (end - self._began))
        self._recorder.spent += end - begin

    def found(self, finding: Finding, step: int) -> None:
        """Print a finding at once."""
        self._tell(
            say(
                "trimtab: found at step {step}: {severity}: {code} at {where}: {summary}",
                step=step,
                severity=say(finding.severity),
                code=finding.code,
                where=places(finding.where),
                summary=clean(finding.summary),
            )
        )

    def close(self) -> None:
        """Nothing is left to be put away."""


def _line(reading: Reading) -> str:
    parts = [say("step {step}", step=f"{reading.steps:,}")]
    if reading.loss is not None:
        parts.append(say("loss {loss}", loss=number(reading.loss)))
    if reading.rate is not None:
        parts.append(say("rate {rate}", rate=number(reading.rate)))
    if reading.speed is not None:
        parts.append(say("{speed} steps/s", speed=number(reading.speed)))
    parts += [
        say("watching {share}", share=share(reading.watching)),
        say("{count} recorded", count=f"{reading.recorded:,}"),
    ]
    return f"trimtab: {', '.join(parts)}"

"""A diagnosis while the run still trains: it looks at the record every so often, and tells each new finding once."""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable, Sequence

from trimtab._messages import say
from trimtab.diagnosis import diagnose
from trimtab.errors import RunStopped
from trimtab.recording import Record, Recorder, Store
from trimtab.report import Diagnosis, Finding

SHARE = 0.01
"""Share of the run's time that looks may take where nobody says how often to look."""

GUESS = 0.1
"""Seconds that the first look is taken to cost."""

OF_THE_END = frozenset({"stale-running-stats", "learning-rate-too-low"})
"""Codes that speak of a run as it ends: how far its statistics or its weights have come by then."""

FIRST = 10
"""Recorded steps before the first look: fewer show what a start looks like, and not what becomes of it."""


def check_every(every: int | None) -> None:
    """Refuse a distance between looks that is none.

    Args:
        every: Recorded steps, or None.

    Raises:
        ValueError: It is not a whole number of at least 1.
    """
    if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
        raise ValueError(f"diagnose_every must be a whole number of recorded steps, at least 1, not {every!r}")


class Live:
    """Looks at a run's record while it is written.

    A finding counts as new where neither this look nor an earlier one has told its code at any of its places, or not as grave. It is told
    when a second look finds it too: what the first steps show may pass.

    Args:
        recorder: The run's recorder.
        tell: Called with each new finding; what it raises ends the run.
        every: Recorded steps from look to look; None for as many looks as `share` pays for.
        severity: "error" or "warning": what is told.
        ignore: As for `trimtab.diagnose`.
        share: Share of the run's time that looks may take where `every` does not say how often to look.

    Raises:
        ValueError: `every` is not a whole number of at least 1.
    """

    def __init__(
        self,
        recorder: Recorder,
        tell: Callable[[Finding], None],
        *,
        every: int | None = None,
        severity: str = "warning",
        ignore: Sequence[str] = (),
        share: float = SHARE,
    ) -> None:
        check_every(every)
        self.recorder = recorder
        self.looks = 0
        self.spent = 0.0
        self._tell = tell
        self._every = every
        self._severity = severity
        self._ignore = ignore
        self._share = share
        self._recorded = 0
        self._last = 0.0
        self._looked = 0
        self._broken = False
        self._off = False
        self._before: set[tuple[str, str, str]] = set()
        self._told: set[tuple[str, str, str]] = set()

    def step_ended(self, step: int) -> None:
        """Look, if it is time to.

        Args:
            step: Number of the step that has just ended.
        """
        recorder = self.recorder
        if self._off or recorder.fault is not None:
            return
        broke = recorder.store.broke is not None and not self._broken
        if recorder.schedule.records(step):
            self._recorded += 1
        elif not broke:
            return
        if broke:  # nothing will get better: no second look is waited for
            self._broken = True
        elif self._recorded < FIRST or not self._is_time():
            return
        diagnosis = self._look()
        if diagnosis is not None:
            self._tell_new(diagnosis, at_once=broke)

    def _is_time(self) -> bool:
        if self._every is not None:
            return self._recorded - self._looked >= self._every
        if self._recorded == self._looked:
            return False
        grown = self._recorded / self._looked if self._looked else 1.0
        expected = self._last * grown if self.looks else GUESS
        return self.spent + expected <= self._share * self.recorder.seconds

    def _look(self) -> Diagnosis | None:
        """Diagnose the record so far; None where that failed, and then for good."""
        begin = time.perf_counter()
        try:
            return diagnose(Record.of(self.recorder.store), ignore=self._ignore)
        except Exception as error:
            self._off = True
            with contextlib.suppress(Exception):
                self.recorder.store.facts({"live_fault": f"{type(error).__name__}: {error}"})
            text = say(
                "trimtab's looks at the running training have failed ({error}) and are given up; the run is recorded as before",
                error=f"{type(error).__name__}: {error}",
            )
            with contextlib.suppress(RuntimeWarning):  # the user's program makes errors of warnings
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            return None
        finally:
            self._last = time.perf_counter() - begin
            self.spent += self._last
            self.recorder.spent += self._last
            self.looks += 1
            self._looked = self._recorded

    def _tell_new(self, diagnosis: Diagnosis, at_once: bool) -> None:
        now: set[tuple[str, str, str]] = set()
        for finding in diagnosis.at_least(self._severity):
            if finding.code in OF_THE_END:
                continue
            keys = {(finding.code, place, finding.severity) for place in finding.where or ("",)}
            now |= keys
            if self._told & keys or not (at_once or self._before & keys):
                continue
            self._told |= keys | {(code, place, "warning") for code, place, _ in keys}  # what is graver has been told
            self._before = self._before | now
            self._tell(finding)
        self._before = now


def telling(store: Store) -> Callable[[], Iterable[int]]:
    """The steps that a diagnosis of a store rests on, for the store to keep when it thins itself.

    Args:
        store: The open store.

    Returns:
        A function that diagnoses the record so far; where that fails it names no step.
    """

    def steps() -> Iterable[int]:
        try:
            found = diagnose(Record.of(store))
        except Exception:  # the ends are kept all the same
            return ()
        return {e.step for finding in found for e in finding.evidence if e.step is not None}

    return steps


class Halt:
    """The step at which a run stops, the same on all its ranks: one that stopped alone would leave the others waiting for it.

    The first rank calls the halt two steps ahead. Ranks that train together are never further apart than that, so the others have
    heard of it when they get there.

    Args:
        recorder: This rank's recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._at: tuple[int, str] | None = None

    def call(self, step: int, why: str) -> None:
        """Stop soon, for a reason in words; asked again it changes nothing.

        Args:
            step: The step that has just ended.
            why: The reason.
        """
        if self._at is None:
            self._at = self._recorder.call_halt(step, why)

    def due(self, step: int) -> str | None:
        """Why the run stops now, None where it goes on.

        Args:
            step: The step that has just ended.

        Returns:
            The reason.
        """
        if self._at is None:
            self._at = self._recorder.halt()
        return self._at[1] if self._at is not None and step >= self._at[0] else None


class Stopper:
    """Ends a watched loop at the first finding it is told, on all ranks at one step, and at each step that follows."""

    def __init__(self, recorder: Recorder) -> None:
        self._halt = Halt(recorder)
        self._finding: Finding | None = None

    def __call__(self, finding: Finding) -> None:
        """Be told of a finding."""
        self._finding = self._finding or finding

    def check(self, step: int) -> None:
        """End the run if there was a finding.

        Args:
            step: The step that has just ended.

        Raises:
            RunStopped: There was.
        """
        if self._finding is not None:
            self._halt.call(step, reason(self._finding, step))
        why = self._halt.due(step)
        if why is not None:
            raise RunStopped(why)


def reason(finding: Finding, step: int) -> str:
    """Why a run was stopped, in one line."""
    where = ", ".join(finding.where[:3])
    return say(
        "stopped at step {step} for {code} at {where}: {summary}",
        step=step,
        code=finding.code,
        where=where,
        summary=finding.summary,
    )

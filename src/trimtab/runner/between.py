"""What is done between two steps of a script's training: show it, look for findings, and see whether it is to go on."""

from collections.abc import Sequence

from trimtab import _distributed
from trimtab._messages import say
from trimtab.recording import Recorder
from trimtab.report import SEVERITIES, Finding
from trimtab.runner.display import LOOKING, Display
from trimtab.runner.live import SHARE, Halt, Live, reason


class Between:
    """Hears of each step of a script.

    Args:
        recorder: The run's recorder.
        shown: What shows the run, None where nothing does.
        stop_after: Steps after which it ends; None to let it end by itself.
        stop_on: Severity of the finding at which it ends; None for none.
        every: Recorded steps from look to look, as for `Live`.
        ignore: Codes not to report.

    Attributes:
        stop: Why the run is to stop, None as long as it goes on.
        stopped_for: The finding for which it is stopped.
    """

    def __init__(
        self,
        recorder: Recorder,
        shown: Display | None,
        *,
        stop_after: int | None,
        stop_on: str | None,
        every: int | None,
        ignore: Sequence[str],
    ) -> None:
        self.stop: str | None = None
        self.stopped_for: Finding | None = None
        self._shown = shown
        self._stop_after = stop_after
        self._last = None if stop_after is None else recorder.step + stop_after
        self._halt = Halt(recorder) if stop_on is not None else None
        self._grave = () if stop_on is None else SEVERITIES[: SEVERITIES.index(stop_on) + 1]
        self._live = None
        self._step = 0
        if _distributed.rank() == 0 and (shown is not None or stop_on is not None):
            self._live = Live(
                recorder,
                self._found,
                every=every,
                severity="warning" if stop_on is None or shown is not None else stop_on,
                ignore=ignore,
                share=SHARE if shown is None else LOOKING,
            )

    def step_ended(self, step: int) -> None:
        """Show, look, and see whether the run is to go on.

        Args:
            step: The step that has just ended.
        """
        self._step = step
        if self._live is not None and self.stop is None:
            self._live.step_ended(step)
            if self.stopped_for is not None and self._halt is not None:
                self._halt.call(step, reason(self.stopped_for, step))
        if self._shown is not None:
            self._shown.step_ended(step)
        if self._halt is not None and self.stop is None:
            self.stop = self._halt.due(step)
        if self.stop is None and self._last is not None and step + 1 >= self._last:
            self.stop = say("stopped after {steps} steps", steps=self._stop_after)

    def _found(self, finding: Finding) -> None:
        if self._shown is not None:
            self._shown.found(finding, self._step)
        if finding.severity in self._grave:
            self.stopped_for = self.stopped_for or finding

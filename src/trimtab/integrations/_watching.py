"""What the callbacks of training frameworks have in common: one watch a training run, sinks beside it, the diagnosis at its end."""

import inspect
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from trimtab._messages import say
from trimtab.integrations._sink import Sink, all_of
from trimtab.report import Diagnosis
from trimtab.runner import Watch, watch
from trimtab.runner.output import write_report


class Watching:
    """A callback's watch. Every rank of a distributed run watches; the first one writes, tells and diagnoses.

    Attributes:
        watch: The watch of the training run that goes on, or of the last one; None before the first.
    """

    def __init__(
        self,
        *,
        log: bool = False,
        sinks: Sink | Iterable[Sink] = (),
        layers: Sequence[str] | None = None,
        show: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        known = inspect.signature(watch).parameters
        unknown = [name for name in options if name not in known]
        if unknown:
            raise TypeError(f"trimtab.watch takes no {unknown[0]!r}: its options are {', '.join(list(known)[3:])}")
        self.watch: Watch | None = None
        self._log, self._layers, self._show, self._options = log, layers, show, options
        self._given = all_of(sinks)
        self._sinks: list[Sink] = []
        self._running = False
        self._main = True
        self._diagnosis: Diagnosis | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or what another process unpickles, watches nothing."""
        return vars(self) | {"watch": None, "_sinks": [], "_running": False}

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the last training run, of the one that goes on as it stands; None before the first, and on other ranks than the first."""
        if self._running and self.watch is not None and self._main:
            return self.watch.diagnose()
        return self._diagnosis

    def close(self, how: str = "ended") -> None:
        """End the watch, if one goes on, with all that comes at the end: sinks, diagnosis and report.

        Args:
            how: What ended the run, for the record's reader.
        """
        if not self._running or self.watch is None:
            return
        self._running = False
        self.watch.close(how)
        if not self._main:
            return
        try:
            self._diagnosis = self.watch.diagnose()
            for sink in self._sinks:
                self._try(sink, lambda sink: sink.finish(self.watch, self._diagnosis))
            if self._show:
                write_report(self._diagnosis, "text", None, sys.stderr)
        except Exception as error:  # the training is done, and is not to be lost over its diagnosis
            _warn(say("trimtab could not diagnose this run: {error}", error=f"{type(error).__name__}: {error}"))

    def _begin(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        main: bool,
        first_step: int = 0,
        loggers: Sequence[Sink] = (),
    ) -> None:
        """A training run begins.

        Args:
            model: Its model.
            optimizers: Its optimizers, those whose `step` runs.
            main: Whether this process writes and tells.
            first_step: The framework's number of the step that comes first.
            loggers: Sinks of the framework's own loggers.
        """
        self.close("superseded")
        self._diagnosis, self._main = None, main
        self._sinks = [*self._given, *loggers] if main else []
        for sink in self._sinks:
            sink.first_step = first_step
        self.watch = watch(model, optimizers, **self._options)
        self._running = True

    def _step(self) -> None:
        """A step is done."""
        if self._running and self.watch is not None:
            for sink in list(self._sinks):
                self._try(sink, lambda sink: sink.update(self.watch))

    def _try(self, sink: Sink, act: Any) -> None:
        """A tracker that fails is left alone from then on; the training goes on."""
        try:
            act(sink)
        except Exception as error:
            self._sinks.remove(sink)
            name = type(sink).__module__.rpartition(".")[2]
            _warn(
                say("trimtab no longer writes to {name}: {error}", name=name, error=f"{type(error).__name__}: {error}")
            )


def _warn(message: str) -> None:
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=4)
    except RuntimeWarning:  # the user's program makes errors of warnings
        print(message, file=sys.stderr)

"""One bounded run of a script in a process of its own, with changes injected."""

import os
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trimtab.diagnosis import diagnose
from trimtab.errors import RepairError, TrimtabError
from trimtab.prediction.riding import Ride
from trimtab.recording import Record, Recorder, Schedule, Store
from trimtab.repairs.change import Change
from trimtab.report import Diagnosis
from trimtab.runner.discovery import Discovery
from trimtab.runner.injection import FirstPass, Held
from trimtab.runner.reseeding import vary_seeds
from trimtab.runner.script import Script, clean, comes_from
from trimtab.runner.sparing import spare
from trimtab.stats import warm_up

warm_up()  # once, before this process forks for the runs

PERSISTENT = 3
"""How often a script may catch what is to end it before it is ended without being asked."""

SELDOM = 10**9


@dataclass(frozen=True)
class Request:
    """A run to do.

    Attributes:
        script: What is run.
        changes: What is injected at its first training pass.
        seed: By how much its own seeds are raised.
        run_steps: Training steps of a whole run, which changes may ask for.
        steps: Training steps of this run.
        watched: Whether to say what is wrong with it.
        result: Where the answer goes.
        hold: Whether to hand over what the script holds before its first training pass.
    """

    script: Script
    changes: tuple[Change, ...]
    seed: int
    run_steps: int
    steps: int
    watched: bool
    result: str
    hold: bool = False


@dataclass
class Answer:
    """What came of it.

    Attributes:
        losses: The loss of each training step.
        injected: Whether the first training pass came.
        refused: Why a change cannot be made, "" if all could.
        error: The script's own error as Python prints it, "" if it had none.
        why: The same in a line.
        diagnosis: Of a watched run.
        norms: Length of the whole gradient at each recorded step, as the backward pass left it.
        places: Where the script calls its model, backward and step: file and line.
        held: A pickle of what the script holds before its first training pass, if that was asked for.
    """

    losses: list[float] = field(default_factory=list)
    injected: bool = False
    refused: str = ""
    error: str = ""
    why: str = ""
    diagnosis: Diagnosis | None = None
    norms: list[float] = field(default_factory=list)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    held: bytes | None = None


class _Enough(SystemExit):
    """The run has done what it was to do."""


class _Trial:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.answer = Answer()
        self.asked = 0
        self.pid = os.getpid()
        self.store = Store(None)
        self.recorder = Recorder(
            self.store,
            Schedule(None if request.watched else SELDOM),
            request.script.name,
            Ride if request.watched else None,
        )
        self.discovery = Discovery(self.recorder, lambda: None)

    def run(self) -> None:
        try:
            body = self.request.script.prepare()
        except BaseException as error:
            self._note(error)
            return
        self.recorder.on_step = self._stepped
        FirstPass(self._first_pass).start()
        self.recorder.start()
        self.discovery.start()
        try:
            body()
        except BaseException as error:
            if not comes_from(error, _Enough) and not (isinstance(error, SystemExit) and error.code in (None, 0)):
                self._note(error)

    def _first_pass(self, held: Held) -> None:
        self.answer.injected = True
        if self.request.hold:
            self.answer.held = _pickled(held)
        try:
            held.inject(self.request.changes, self.request.run_steps, self.request.seed)
        except RepairError as error:
            self.answer.refused = str(error)
        except Exception as error:
            self.answer.refused = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        if self.answer.refused:
            self._end(_Enough(0))

    def _stepped(self, step: int) -> None:
        if step + 1 >= self.request.steps:
            self._end(_Enough(0))

    def _end(self, enough: _Enough) -> None:
        self.asked += 1
        if self.asked > PERSISTENT:
            self.finish()
        raise enough

    def _note(self, error: BaseException) -> None:
        import traceback

        clean(error)
        self.answer.error = (
            str(error) if isinstance(error, TrimtabError) else "".join(traceback.format_exception(error))
        )
        self.answer.why = f"{type(error).__name__}: {error}".splitlines()[0][:300]

    def finish(self) -> None:
        """Write the answer and end the process, without the script's own exit handlers."""
        if os.getpid() != self.pid:  # a child that the script forked
            os._exit(0)
        self.discovery.close()
        self.recorder.close("ended")
        record = Record.of(self.store)
        self.answer.losses = record.losses[record.loss_seen].tolist()[: self.request.steps]
        self.answer.places = {name: (place[0], place[1]) for name, place in record.facts.get("places", {}).items()}
        self.answer.norms = _gradient_norms(record)
        if self.request.watched and record.step_count:
            self.answer.diagnosis = diagnose(record)
        written = Path(f"{self.request.result}.part")
        written.write_bytes(pickle.dumps(self.answer))
        written.replace(self.request.result)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue
        os._exit(0)


def _gradient_norms(record: Record) -> list[float]:
    squares = np.zeros(len(record.steps))
    for site in record.of_kind("raw-gradient"):
        squares += record.squares(site.index)
    return [float(norm) for norm in np.sqrt(squares) if np.isfinite(norm) and norm > 0]


def _pickled(held: Held) -> bytes | None:
    import cloudpickle

    try:
        return cloudpickle.dumps(held)  # type: ignore[no-any-return]
    except Exception as error:
        print(f"trimtab: what the script holds cannot be copied: {error}", file=sys.stderr)
        return None


def main(path: str) -> None:
    """Do a run.

    Args:
        path: File of its request.
    """
    request: Request = pickle.loads(Path(path).read_bytes())
    vary_seeds(request.seed)
    spare(os.getcwd())
    trial = _Trial(request)
    trial.run()
    trial.finish()


__all__ = ["Answer", "Request", "main"]

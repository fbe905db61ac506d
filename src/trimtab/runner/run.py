"""`trimtab run`: a script under watch, its diagnosis at the end, and the script's own exit status."""

import contextlib
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from trimtab._messages import say
from trimtab.diagnosis import diagnose
from trimtab.errors import RecordError, TrimtabError
from trimtab.recording import Record, Recorder, Schedule, Store
from trimtab.report import Diagnosis
from trimtab.runner.discovery import Discovery
from trimtab.runner.output import write_report
from trimtab.runner.script import Script, clean, show_only_user_frames

FOLDER = ".trimtab"


@dataclass
class RunOptions:
    """How a script is run.

    Attributes:
        every: As for `trimtab.watch`.
        store: File for the record; None for the default place.
        no_store: Keep the record in memory.
        stop_after: End the run after so many training steps; None to let it end by itself.
        format: "text", "json" or "sarif".
        output: File for the report, "-" for standard output, None for standard error.
        fail_on: Exit with 1 at a finding of this severity, where the script itself ended with 0.
        ignore: Codes (or CODE@WHERE) not to report.
    """

    every: int | None = None
    store: Path | None = None
    no_store: bool = False
    stop_after: int | None = None
    format: str = "text"
    output: str | None = None
    fail_on: str | None = None
    ignore: tuple[str, ...] = field(default_factory=tuple)


class _Enough(SystemExit):
    """The run has done the steps it was to do."""


def new_store(name: str) -> Path:
    """A fresh file name in `.trimtab/` of the working directory, which is made with an ignore file of its own."""
    folder = Path(FOLDER).absolute()
    try:
        folder.mkdir(exist_ok=True)
        ignore = folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        raise RecordError(
            f"cannot make {folder} for the record: {error.strerror}; name another place with --store, or use --no-store"
        ) from error
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ["", *(f"-{i}" for i in range(2, 1000))]:
        path = folder / f"{name}-{stamp}{suffix}.db"
        if not path.exists():
            return path
    raise RecordError(f"no free name for a record in {folder}")


class ScriptRun:
    """One run of a script under watch."""

    def __init__(self, script: Script, options: RunOptions) -> None:
        self.script = script
        self.options = options
        self.errors: TextIO = sys.stderr  # the script may put another stream in its place
        self.pid = os.getpid()
        self.folder = Path.cwd()

    def run(self) -> int:
        """Run the script to its end and report.

        Returns:
            The exit status, where the script ended without raising.

        Raises:
            BaseException: Whatever the script raised, its traceback freed of trimtab's frames.
            TrimtabError: The script or the record cannot be opened.
        """
        options = self.options
        schedule = Schedule(options.every)
        body = self.script.prepare()
        path = None if options.no_store else (options.store or new_store(self.script.name))
        store = Store(None if path is None else path.absolute())
        recorder = Recorder(store, schedule, self.script.name)
        recorder.on_step = self._stop_when_done
        discovery = Discovery(recorder, lambda: self._announce(recorder, store))
        recorder.start()
        store.facts({
            "script": os.path.abspath(self.script.target) if not self.script.is_module else self.script.target
        })
        discovery.start()
        show_only_user_frames()
        how, status, raised = "ended", 0, None
        try:
            body()
        except _Enough:
            how = say("stopped after {steps} steps", steps=options.stop_after)
        except BaseException as error:
            raised = error
            how = f"{type(error).__name__}: {error}"
        if os.getpid() != self.pid:  # a child that the script forked and that came to the end of it
            if raised is not None:
                raise raised
            return 0
        discovery.close()
        recorder.close(how)
        diagnosis = self._report(store, recorder)
        if raised is not None and not (isinstance(raised, SystemExit) and raised.code in (None, 0)):
            raise clean(raised)
        if options.fail_on and diagnosis is not None and diagnosis.at_least(options.fail_on):
            status = 1
        return status

    def _stop_when_done(self, step: int) -> None:
        if self.options.stop_after is not None and step + 1 >= self.options.stop_after:
            raise _Enough(0)

    def _announce(self, recorder: Recorder, store: Store) -> None:
        watched = recorder.models[0]
        model = watched.model
        size = sum(p.numel() for p in model.parameters()) if model is not None else 0
        every = recorder.schedule.every
        often = say("every {n}. step", n=every) if every else say("steps 0-9, then ever fewer")
        place = say("in memory") if store.path is None else _short(store.path, self.folder)
        self._say(
            say(
                "trimtab: watching {label} ({cls}, {size} parameters), {often}; record {place}",
                label=watched.label,
                cls=watched.classes,
                size=f"{size:,}",
                often=often,
                place=place,
            )
        )

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(text, file=self.errors, flush=True)

    def _report(self, store: Store, recorder: Recorder) -> Diagnosis | None:
        try:
            if recorder.step == 0:
                self._say(
                    say(
                        "trimtab: no training step was seen: no torch optimizer has stepped, so there is nothing to diagnose"
                    )
                )
            diagnosis = diagnose(Record.of(store), ignore=self.options.ignore)
            if recorder.step or self.options.output:
                write_report(diagnosis, self.options.format, self.options.output, self.errors)
            return diagnosis
        except KeyboardInterrupt:
            self._say(say("trimtab: interrupted; `trimtab diagnose RECORD` reads the record later"))
        except TrimtabError as error:
            self._say(f"trimtab: {error}")
        return None


def _short(path: Path, folder: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(folder))
    return str(path)


def run_script(script: Script, options: RunOptions) -> int:
    """Run a script under watch.

    Args:
        script: What to run.
        options: How.

    Returns:
        The exit status.
    """
    return ScriptRun(script, options).run()


__all__: list[Any] = ["RunOptions", "ScriptRun", "run_script"]

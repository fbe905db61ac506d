"""`trimtab run`: a script under watch, its diagnosis at the end, and the script's own exit status."""

import contextlib
import multiprocessing.process
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from torch.nn.parameter import is_lazy

from trimtab import _distributed
from trimtab._messages import say
from trimtab.diagnosis import check_ignored, diagnose
from trimtab.errors import RecordError, TrimtabError, UsageError
from trimtab.prediction.riding import Ride
from trimtab.recording import BUDGET, Record, Recorder, Schedule, Store, bytes_of
from trimtab.report import Diagnosis
from trimtab.runner.between import Between
from trimtab.runner.discovery import Discovery, is_users
from trimtab.runner.display import Display, display
from trimtab.runner.live import telling
from trimtab.runner.output import write_report
from trimtab.runner.script import Script, comes_from, show_only_user_frames_of_threads
from trimtab.runner.signals import interrupts_wait

FOLDER = ".trimtab"
PERSISTENT = 3
"""How often a script may catch what is to end it before it is ended without being asked."""


@dataclass
class RunOptions:
    """How a script is run.

    Attributes:
        every: As for `trimtab.watch`.
        store: File for the record; None for the default place.
        no_store: Keep the record in memory.
        resume: Go on with the record in `store`, as for `trimtab.watch`.
        budget: As for `trimtab.watch`.
        stop_after: End the run after so many training steps, those before it was resumed not counted; None to let it end by itself.
        stop_on: Diagnose while it trains, and end it at the first finding of this severity or a graver one; None for no looks.
        diagnose_every: As for `trimtab.watch`.
        live: Show the run on standard error while it goes on.
        format: "text", "json", "sarif" or "html".
        output: File for the report, "-" for standard output, None for standard error.
        fail_on: Exit with 1 at a finding of this severity, and where the diagnosis failed, if the script itself ended
            with 0.
        ignore: Codes (or CODE@WHERE) not to report.
    """

    every: int | None = None
    store: Path | None = None
    no_store: bool = False
    resume: bool | int = False
    budget: float | None = BUDGET
    stop_after: int | None = None
    stop_on: str | None = None
    diagnose_every: int | None = None
    live: bool = False
    format: str = "text"
    output: str | None = None
    fail_on: str | None = None
    ignore: tuple[str, ...] = field(default_factory=tuple)


class _Enough(SystemExit):
    """The run has done the steps it was to do, or is stopped for what was found in it."""


class _Refused(SystemExit):
    """The record that was to be gone on with is another model's."""


def own_folder() -> Path:
    """`.trimtab/` of the working directory, which is made with an ignore file of its own.

    Returns:
        Its full path.

    Raises:
        OSError: It cannot be made.
    """
    folder = Path(FOLDER).absolute()
    folder.mkdir(exist_ok=True)
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    return folder


def new_store(name: str) -> Path:
    """A fresh file name in `.trimtab/`.

    Args:
        name: What it begins with.

    Returns:
        The file, which is made, and empty.

    Raises:
        RecordError: It cannot be made.
    """
    try:
        folder = own_folder()
    except OSError as error:
        raise RecordError(
            f"cannot make {Path(FOLDER).absolute()} for the record: {error.strerror}; name another place with --store, or use --no-store"
        ) from error
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ["", *(f"-{i}" for i in range(2, 1000))]:
        path = folder / f"{name}-{stamp}{suffix}.db"
        try:
            path.touch(exist_ok=False)  # the name is taken from now on, whoever else starts in this second
        except FileExistsError:
            continue
        except OSError as error:
            raise RecordError(
                f"cannot write to {folder}: {error.strerror}; name another place with --store, or use --no-store"
            ) from error
        return path
    raise RecordError(f"no free name for a record in {folder}")


class ScriptRun:
    """One run of a script under watch."""

    def __init__(self, script: Script, options: RunOptions) -> None:
        self.script = script
        self.options = options
        self.errors: TextIO = sys.stderr or _nowhere()  # the script may put other streams in their place
        self.out: TextIO = sys.stdout or _nowhere()
        self.pid = os.getpid()
        self.first = _distributed.rank() == 0  # of the ranks of a distributed run, which speaks for all of them
        self.folder = Path.cwd()
        self.asked = 0
        self.between: Between | None = None
        self.shown: Display | None = None

    def run(self) -> int | BaseException:
        """Run the script to its end and report.

        Returns:
            The exit status, or what the script raised.

        Raises:
            TrimtabError: The script, the record or the report's file cannot be opened, or an option makes no sense.
        """
        options = self.options
        check_ignored(options.ignore)
        output = self._output()
        schedule = Schedule(options.every)
        try:
            body = self.script.prepare()
        except TrimtabError:
            raise
        except BaseException as error:  # the script's own: a syntax error, an error in its package
            return error
        bytes_of(options.budget)  # before a file is made
        path = None if options.no_store else (options.store or (new_store(self.script.name) if self.first else None))
        path = None if path is None else path.absolute()
        store = Store.of_this_rank(path, budget=options.budget, resume=options.resume)
        store.telling = telling(store)
        recorder = Recorder(store, schedule, self.script.name, Ride)
        discovery = Discovery(recorder, lambda: self._found(recorder, store))
        recorder.on_step = self._steps(recorder, lambda how: self._end(discovery, how, output))
        recorder.start()
        script = self.script.target if self.script.is_module else os.path.abspath(self.script.target)
        store.facts({"script": script})
        discovery.start()
        show_only_user_frames_of_threads()
        how, raised = "ended", None
        try:
            body()
            _wait_for_threads()
        except BaseException as error:
            raised, how = error, _in_words(error)
        if os.getpid() != self.pid:  # a child that the script forked and that came to the end of it
            return raised or 0
        if raised is not None and comes_from(raised, _Refused):
            self._clear()
            discovery.close()
            recorder.close()
            store.close()
            return 2
        if self.asked and (raised is None or comes_from(raised, _Enough)):
            raised, how = None, (self.between.stop if self.between else None) or how
        status = self._end(discovery, how, output)
        if raised is not None and not (isinstance(raised, SystemExit) and raised.code in (None, 0)):
            return raised
        return status

    def _output(self) -> str | None:
        """Where the report goes, wherever the script moves to.

        Returns:
            A full path, "-" for standard output, or None.

        Raises:
            UsageError: The file could not be written.
        """
        output = self.options.output
        if output is None or output == "-":
            return output
        path = (self.folder / output).absolute()
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UsageError(
                f"cannot write the report to {output}: {'a folder' if path.is_dir() else 'no such place, or not writable'}"
            )
        return str(path)

    def _steps(self, recorder: Recorder, end: Callable[[str], int]) -> Callable[[int], None]:
        """What is done when a step has ended."""
        options = self.options
        if options.live and self.first:
            self.shown = display(recorder, self.errors, self._say)
            recorder.on_fault = self.shown.close
        between = self.between = Between(
            recorder,
            self.shown,
            stop_after=options.stop_after,
            stop_on=options.stop_on,
            every=options.diagnose_every,
            ignore=options.ignore,
        )

        def ended(step: int) -> None:
            between.step_ended(step)
            if between.stop is not None:
                self._stop(end, between.stop)

        return ended

    def _stop(self, end: Callable[[str], int], why: str) -> None:
        self.asked += 1
        if self.asked > PERSISTENT:
            status = end(why)
            for stream in (sys.stdout, sys.stderr, self.out):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            os._exit(status)
        raise _Enough(0)

    def _found(self, recorder: Recorder, store: Store) -> None:
        """The first model has been found."""
        try:
            recorder.check_models()
        except RecordError as error:
            self._say(f"trimtab: {error}")
            raise _Refused(2) from error
        self._announce(recorder, store)

    def _end(self, discovery: Discovery, how: str, output: str | None) -> int:
        """Finish the record and report; the exit status of a script that ended with 0."""
        recorder = discovery.recorder
        diagnosis = None
        stopped_for = None if self.between is None else self.between.stopped_for
        try:
            with interrupts_wait():  # a second Ctrl-C must not leave the record open
                self._clear()
                discovery.close()
                recorder.close(how)
                recorder.store.close()  # all of it is in one file now
            if not self.first:
                return 0
            if stopped_for is not None:
                self._say(say("trimtab: {reason}", reason=how))
            diagnosis = self._report(recorder, output)
        except KeyboardInterrupt:
            self._say(say("trimtab: interrupted; `trimtab diagnose RECORD` reads the record later"))
        fail_on = self.options.fail_on
        # A diagnosis that failed says nothing for the run: who asks to be stopped by an error must not read it as healthy.
        failed = fail_on and (diagnosis is None or diagnosis.at_least(fail_on))
        return 1 if failed or stopped_for is not None else 0

    def _clear(self) -> None:
        """Take what was shown of the run off the terminal."""
        if self.shown is not None:
            self.shown.close()

    def _announce(self, recorder: Recorder, store: Store) -> None:
        if not self.first:
            return
        watched = recorder.models[0]
        parameters = [] if watched.model is None else list(watched.model.parameters())
        size = sum(p.numel() for p in parameters if not is_lazy(p))
        every = recorder.schedule.every
        often = (
            (say("every step") if every == 1 else say("one step in {n}", n=every))
            if every
            else say("steps 0-9, then ever fewer")
        )
        place = say("in memory") if store.path is None else _short(store.path, self.folder)
        self._say(
            say(
                "trimtab: watching {label} ({cls}, {size} parameters), {often}; record {place}",
                label=watched.label,
                cls=watched.classes,
                size=f"{size:,}{'+' if any(map(is_lazy, parameters)) else ''}",
                often=often,
                place=place,
            )
        )

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(text, file=self.errors, flush=True)

    def _report(self, recorder: Recorder, output: str | None) -> Diagnosis | None:
        """Diagnose and report; None where that failed."""
        diagnosis = None
        store = recorder.store
        try:
            if recorder.step == 0 and recorder.fault is None:
                self._say(_nothing_stepped(recorder))
            diagnosis = diagnose(Record.of(store), ignore=self.options.ignore)
            if recorder.step or output:
                write_report(diagnosis, self.options.format, output, self.out if output == "-" else self.errors)
        except TrimtabError as error:
            self._say(f"trimtab: {error}")
        except (OSError, ValueError) as error:  # nobody reads the report any more
            self._say(f"trimtab: {_in_words(error)}")
        except Exception as error:  # never in place of what the script raised
            diagnosis = None
            self._say(
                say(
                    "trimtab: the diagnosis failed ({error}); this is a fault of trimtab's own, the record is {place}",
                    error=_in_words(error),
                    place=store.path or say("in memory"),
                )
            )
        return diagnosis


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _in_words(error: BaseException) -> str:
    """Kind and message of an error, whose message may itself be broken."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _wait_for_threads() -> None:
    """Python ends a process when the last thread that is no daemon has ended; a script may train in one."""
    main = threading.main_thread()
    waiting = True
    while waiting:
        waiting = False
        for thread in threading.enumerate():
            if thread is main or thread.daemon or thread is threading.current_thread():
                continue
            thread.join(0.05)
            frame = sys._current_frames().get(thread.ident or 0)
            while frame is not None and not waiting:  # an idle worker of an executor runs no code of the user's
                waiting = is_users(frame)
                frame = frame.f_back


def _nothing_stepped(recorder: Recorder) -> str:
    """Why there is nothing to diagnose."""
    if recorder.passes:
        return say(
            "trimtab: {passes} backward passes were seen, but no optimizer of torch has stepped: is optimizer.step() missing?",
            passes=recorder.passes,
        )
    if _has_started_processes():
        return say(
            "trimtab: no training step was seen in this process, and the script has started others, which are not watched: start its ranks "
            "with `torchrun -m trimtab run`, or use trimtab.watch in the function that they run"
        )
    return say("trimtab: no training step was seen: no torch optimizer has stepped, so there is nothing to diagnose")


def _has_started_processes() -> bool:
    """Whether a process of Python's was made, such as a rank by `torch.multiprocessing.spawn`; they are counted from 1."""
    return repr(getattr(multiprocessing.process, "_process_counter", "count(1)")) not in ("count(1)", "'count(1)'")


def _short(path: Path, folder: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(folder))
    return str(path)


def run_script(script: Script, options: RunOptions) -> int | BaseException:
    """Run a script under watch.

    Args:
        script: What to run.
        options: How.

    Returns:
        The exit status, or what the script raised, to be raised where nobody takes it for an error of trimtab's own.
    """
    return ScriptRun(script, options).run()


__all__: list[Any] = ["RunOptions", "ScriptRun", "run_script"]

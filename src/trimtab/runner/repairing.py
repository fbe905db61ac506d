"""`trimtab repair train.py`: a script's runs, each in a process of its own, and the repair that is proved on them."""

import hashlib
import math
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np

import trimtab
from trimtab._messages import say
from trimtab._unchanged import unchanged
from trimtab.errors import RepairError, UsageError
from trimtab.repairs.change import Change, answers_to
from trimtab.repairs.patient import Applicable, Patient
from trimtab.repairs.repair import Prescriber, without
from trimtab.repairs.running import Journal, Running
from trimtab.repairs.search import grave
from trimtab.repairs.showing import shown
from trimtab.repairs.trials import Job, Outcome
from trimtab.report import Diagnosis, Finding
from trimtab.report.prescription import Prescription, Trial
from trimtab.runner import trial
from trimtab.runner.elsewhere import ScriptFailedError
from trimtab.runner.injection import Held, InjectionError, ScriptSetup
from trimtab.runner.nursery import close_all, nursery
from trimtab.runner.pasting import Paste
from trimtab.runner.scratch import scratch
from trimtab.runner.script import Script
from trimtab.runner.trial import Answer, Request

STEPS = 200
"""Training steps of a run: enough to see a loss fall, few enough to do 25 times."""


@dataclass(frozen=True)
class ScriptTask:
    """A script to be run for a bounded number of steps, wherever its folder can be seen.

    Attributes:
        script: The script.
        folder: Its working directory.
        steps: Training steps of a run.
        log: Where what it prints goes.
    """

    script: Script
    folder: str
    steps: int
    log: str

    def run(self, job: Job) -> Outcome:
        """Do a run, scored by minus its mean loss.

        Args:
            job: The run.

        Returns:
            Its outcome.

        Raises:
            ScriptFailedError: The script fails before its first training step, with nothing changed.
            UsageError: It ends without a training step.
        """
        steps = max(math.ceil(job.share * self.steps), 1)
        answer = self.answer(job.changes, job.seed, steps, job.watched)
        taken = len(answer.losses) if job.share else 0
        if answer.refused:
            return Outcome(None, 0, answer.refused)
        if not answer.losses:
            if job.changes:
                return Outcome(None, 0, answer.why or "no training step was taken")
            if answer.error:
                raise ScriptFailedError(answer.error)
            raise UsageError(
                f"{self.script.target} took no training step that could be seen: no torch optimizer has stepped on a loss; "
                f"what it printed stands in {os.path.relpath(self.log)}"
            )
        if answer.why:
            return Outcome(None, taken, answer.why, answer.diagnosis)
        if not np.isfinite(answer.losses).all():
            return Outcome(None, taken, "its loss is not a finite number", answer.diagnosis)
        return Outcome(-float(np.mean(answer.losses)), taken, "", answer.diagnosis)

    def answer(
        self, changes: Sequence[Change], seed: int, steps: int, watched: bool = False, hold: bool = False
    ) -> Answer:
        """Run the script in a process of its own.

        Args:
            changes: What is injected.
            seed: By how much its seeds are raised.
            steps: Training steps of this run.
            watched: Whether it is to be diagnosed.
            hold: Whether what it holds before its first training pass is to be handed over.

        Returns:
            What came of it.
        """
        what = ", ".join(change.describe().summary for change in changes) or "unchanged"
        with scratch(self.folder) as place, TemporaryDirectory(prefix="trimtab-") as aside:
            asked, result, printed = (os.path.join(aside, name) for name in ("request", "answer", "printed"))
            request = Request(self.script, tuple(changes), seed, self.steps, steps, watched, result, hold)
            Path(asked).write_bytes(pickle.dumps(request))
            Path(printed).touch()
            nursery(trial.__name__, self.folder).run(asked, place, printed)
            said = Path(printed).read_bytes()
            self._write_log(f"{what}; seeds +{seed}; {steps} steps", said)
            try:
                return cast(Answer, pickle.loads(Path(result).read_bytes()))
            except FileNotFoundError:
                why = say("the script's process ended before it could say what came of it")
                return Answer(error=f"{said[-2000:].decode(errors='replace')}\n{why}", why=why)

    def _write_log(self, title: str, printed: bytes) -> None:
        with _log_lock, open(self.log, "ab") as log:
            log.write(f"--- {title}\n".encode() + printed.rstrip(b"\n") + b"\n")


LOOKED_AT = 10
"""Training steps of the run that tells what the script holds, and how long its gradients are."""

UNBOUNDED = ("exploding-gradient", "loss-spike", "nonfinite-loss", "missing-warmup")
"""Faults that clipping answers: at the median of the norms that were measured, and at a tenth of it."""

_log_lock = threading.Lock()


def run_script_job(payload: bytes) -> Outcome:
    """Do a run of a script.

    Args:
        payload: A pickle by cloudpickle of the task and the job.

    Returns:
        Its outcome.
    """
    import cloudpickle

    task, job = cloudpickle.loads(payload)
    return cast(ScriptTask, task).run(job)


class ScriptRepair:
    """A repair of a script.

    Args:
        script: The script, which stays as it is.
        steps: Training steps of a run; None for `STEPS`. A script that ends earlier is run to its end.

    Raises:
        UsageError: There is no such script.
    """

    def __init__(self, script: Script, steps: int | None) -> None:
        if not script.is_module and not os.path.isfile(script.target):
            raise UsageError(f"no script {script.target}")
        target = script.target if script.is_module else os.path.abspath(script.target)
        self.script = Script(target, script.arguments, script.is_module)
        self.steps = steps or STEPS
        content = b"" if script.is_module else Path(target).read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:16]
        self.key = f"{target} {list(script.arguments)} {self.steps} steps {digest} trimtab {trimtab.__version__}"
        self._notes: list[str] = []

    @property
    def name(self) -> str:
        """A short name for files."""
        return self.script.name

    @property
    def log(self) -> str:
        """Where what the runs print goes."""
        from trimtab.runner.run import FOLDER

        return str(Path(FOLDER).absolute() / f"{self.name}.repair.log")

    @property
    def told(self) -> str:
        """What is done to the user's files, in words."""
        return say(
            "each run is the whole script from its start, in a copy of this folder that is deleted afterwards (files above 1 MB are linked); "
            "what it prints goes to {log}",
            log=os.path.relpath(self.log),
        )

    def prescribe(
        self,
        *,
        executor: Executor,
        seeds: int,
        budget: float,
        ignore: Sequence[str] = (),
        journal: Journal | None = None,
    ) -> Prescription:
        """Diagnose the script, try what can be injected, and prove what mends it.

        Args:
            executor: Where runs are done.
            seeds: Seeds of a proof.
            budget: Training runs that all may take.
            ignore: Findings to leave alone.
            journal: Finished runs.

        Returns:
            The prescription, its code for this script.

        Raises:
            ScriptFailedError: The script fails before its first training step.
            UsageError: It takes no training step, or what it holds cannot be copied.
        """
        journal = Journal(None, self.key) if journal is None else journal
        Path(self.log).unlink(missing_ok=True)
        task = ScriptTask(self.script, os.getcwd(), self.steps, self.log)
        try:
            first = Running(task, executor, journal, do=run_script_job).run([Job((), 0, watched=True)])[0]
            diagnosis = without(Diagnosis() if first.diagnosis is None else first.diagnosis, ignore)
            if not grave(diagnosis):
                notes = (
                    (say("the run broke down at step {n}: {why}", n=first.steps, why=first.why),) if first.why else ()
                )
                return Prescription(
                    diagnosis,
                    measure="loss",
                    run_steps=first.steps,
                    steps=first.steps,
                    notes=notes,
                    broke=bool(first.why),
                )
            if not first.why:  # it ended itself; one that broke down would go on if it were mended
                task = replace(task, steps=first.steps)
            held = self._hold(task)
            allowed = int(budget * task.steps)
            with shown(True, allowed) as told:
                running = Running(task, executor, journal, told, do=run_script_job)
                running.steps = min(LOOKED_AT, task.steps)
                found = Prescriber(_Portrait(held, task.steps), running, task.steps, allowed, self._propose).prescribe(
                    seeds, ignore
                )
        finally:
            close_all()
        return self._finished(found, journal)

    def _hold(self, task: ScriptTask) -> bytes:
        """What the script holds before its first training step, as a pickle."""
        folder = os.getcwd() if self.script.is_module else os.path.dirname(os.path.realpath(self.script.target))
        if folder not in sys.path:
            sys.path.insert(0, folder)  # its classes may come from modules beside it
        answer = task.answer((), 0, min(LOOKED_AT, task.steps), hold=True)
        if answer.held is not None:
            try:
                self._held = cast(Held, pickle.loads(answer.held))
            except Exception as error:
                raise self._uncopied(str(error)) from error
            self._places, self._norms = answer.places, answer.norms
            return answer.held
        raise self._uncopied("" if answer.injected else "it trains nothing that an optimizer of torch has")

    def _uncopied(self, why: str) -> UsageError:
        return UsageError(
            f"the model and optimizer of {self.script.target} cannot be copied out of it{f' ({why})' if why else ''}; "
            f"what it printed stands in {os.path.relpath(self.log)}. Write a function that returns a trimtab.Setup, and repair that"
        )

    def _propose(self, finding: Finding, patient: Patient) -> Iterator[Change]:
        prefix = f"{self._held.prefix}."
        if self._held.prefix:
            finding = replace(finding, where=tuple(place.removeprefix(prefix) for place in finding.where))
        refusing = _Refusing(patient, lambda text: self._note(text))
        if finding.code in UNBOUNDED and self._norms:
            usual = float(np.median(self._norms))
            yield from (Change("clip", {"bound": float(f"{bound:.2g}")}) for bound in (usual, usual / 10))
        yield from answers_to(finding, cast(Patient, refusing), lambda error: self._unanswered(finding.code, error))

    def _unanswered(self, code: str, error: Exception) -> None:
        if isinstance(error, InjectionError):
            self._note(say("{code}: what answers it cannot be injected into a script: {why}", code=code, why=error))

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _finished(self, found: Prescription, journal: Journal) -> Prescription:
        scores = [outcome.score for seed in range(3) if (outcome := journal.get(Job((), seed, watched=seed == 0)))]
        trials = found.trials
        if found.best is not None and len(scores) > 1 and len(set(scores)) == 1 and scores[0] is not None:
            self._note(
                say(
                    "every seed gave the same run, so that nothing is proved: the script draws its numbers from generators of its own"
                )
            )
            trials = tuple(replace(trial, proved=False) for trial in trials)
        file, _ = self._places.get("step") or self._places.get("forward") or (self.script.target, 0)
        paste = Paste(self._held, file, self._places.get("forward", ("", 0))[1], found.run_steps)
        trials = tuple(self._pasted(trial, paste) for trial in trials)
        best = next((trial for trial in trials if trial.proved), None)
        return replace(found, trials=trials, best=best, notes=(*found.notes, *self._notes))

    @staticmethod
    def _pasted(trial: Trial, paste: Paste) -> Trial:
        return replace(trial, repair=paste.told(trial.repair, cast(Sequence[Change], trial.changes)))


@dataclass(frozen=True)
class _Portrait:
    """The script before its first training step, in this process, to look at."""

    held: bytes
    steps: int

    def __call__(self, seed: int) -> ScriptSetup:
        return cast(Held, pickle.loads(self.held)).setup(self.steps)


@dataclass(frozen=True)
class _Refusing:
    """A patient that says which changes cannot be injected."""

    patient: Patient
    note: Callable[[str], None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.patient, name)

    def takes(self, change: Applicable) -> bool:
        """Whether a change can be made."""
        with unchanged():
            try:
                change.apply(self.patient.make())
            except InjectionError as error:
                told = cast(Change, change).describe().summary
                self.note(say("cannot be injected into a script: {change} ({why})", change=told, why=error))
                return False
            except RepairError:
                return False
        return True

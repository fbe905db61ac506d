"""`trimtab.repair`: diagnose a run, try what may mend it on fresh copies, and prove what does."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from trimtab._messages import say
from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.diagnosis.diagnose import check_ignored, without_ignored
from trimtab.errors import UsageError
from trimtab.repairs.change import Change, answers_to
from trimtab.repairs.factory import identity, look_over
from trimtab.repairs.patient import Patient
from trimtab.repairs.proof import MOST_SEEDS
from trimtab.repairs.proving import Prover
from trimtab.repairs.running import Journal, Running, local_executor
from trimtab.repairs.search import Propose, Room, grave, search
from trimtab.repairs.trials import Job, MakeSetup, fresh
from trimtab.report.diagnosis import Diagnosis
from trimtab.report.prescription import Prescription, Trial

BUDGET = 25.0
"""Training runs that a repair may take."""

SEARCH = 0.45
"""Share of the budget that the search may take; the proof needs the rest."""

Told = Callable[[str, int, int], None]
"""Told what is being done, and the training steps of how many at most."""


def repair(
    make_setup: MakeSetup,
    *,
    seeds: int = 3,
    executor: Executor | None = None,
    progress: bool | Told = True,
    budget: float = BUDGET,
    ignore: Sequence[str] = (),
    journal: str | Path | None = None,
    propose: Propose = answers_to,
) -> Prescription:
    """Mend a run, and prove it.

    The run is diagnosed; for each root cause the families of `trimtab.repairs` propose changes; the most promising is run on
    several seeds beside doing nothing and beside random changes of the same families, and is proved where both gains lie above zero.

    Args:
        make_setup: `make_setup(seed)` gives a fresh `Setup`; it must be picklable by cloudpickle. Scores are of its `evaluate`; without
            one, minus the area under the loss of a few batches, in evaluation mode.
        seeds: Seeds of a proof, at least 2. Where three do not decide, up to eight are run, within the budget.
        executor: Where runs are done, any `concurrent.futures.Executor`; None for processes on this machine.
        progress: Whether to show a line of progress on a terminal, or a function to be told.
        budget: What all of it may take, in training runs.
        ignore: Findings to leave alone, as for `diagnose`.
        journal: File of finished runs: what stands in it is not run again, as long as the source of `make_setup` is the same.
        propose: What to try against a root cause; by default what the families answer.

    Returns:
        The diagnosis, what was tried, and the repair to take. The same seeds give the same one on any executor.

    Raises:
        UsageError: An argument is not what it must be.
        RepairError: The factory cannot be sent to another process.
        SetupError: The factory gives no setup, or its batches cannot be used.
        StepError: A loss is not a scalar tensor.
    """
    if not callable(make_setup):
        raise UsageError(
            f"make_setup must be a function of a seed that gives a fresh Setup, but it is a {type(make_setup).__name__}; "
            "a Setup itself can be trained once only"
        )
    refuse_wrong(seeds, budget)
    check_ignored(ignore)
    from trimtab.repairs.showing import shown  # rich is loaded where it is used

    if journal is not None and not Path(journal).absolute().parent.is_dir():
        raise UsageError(f"journal must be a file in a folder that there is, but it is {str(journal)!r}")
    run_steps, varied = look_over(make_setup)
    allowed = int(budget * run_steps)
    with shown(progress, allowed) as told:
        running = Running(make_setup, executor or local_executor(), Journal(journal, identity(make_setup)), told)
        found = Prescriber(make_setup, running, run_steps, allowed, propose).prescribe(seeds, ignore)
    if varied or found.best is None:
        return found
    text = say(
        "make_setup gives the same run for every seed, so that nothing is proved: seed model and data with its argument"
    )
    return unproved(found, text)


class Prescriber:
    """One repair on its way.

    Args:
        make_setup: Gives the run fresh, to look at.
        running: Does the runs.
        run_steps: Training steps of one.
        allowed: Training steps that all may take.
        propose: What to try against a root cause.
    """

    def __init__(self, make_setup: MakeSetup, running: Running, run_steps: int, allowed: int, propose: Propose) -> None:
        self._make, self._running, self._propose = make_setup, running, propose
        self._run_steps, self._allowed = run_steps, allowed
        self._patients: dict[tuple[str, ...], Patient] = {}

    def prescribe(self, seeds: int, ignore: Sequence[str]) -> Prescription:
        """Diagnose, search and prove.

        Args:
            seeds: Of a proof.
            ignore: Findings to leave alone.

        Returns:
            The prescription.
        """
        first = self._running.run([Job((), 0, watched=True)])[0]
        diagnosis = without(Diagnosis() if first.diagnosis is None else first.diagnosis, ignore)
        measure = "loss" if self._patient(()).setup.evaluate is None else "evaluate"
        trials: list[Trial] = []
        cut = False
        if grave(diagnosis):
            found = search(
                diagnosis,
                self._patient,
                self._running,
                MOST_SEEDS + seeds,
                Room(self._run_steps, int(self._allowed * SEARCH), self._before_a_proof(seeds)),
                self._propose,
            )
            prover = Prover(self._running, self._patient(()), self._run_steps, self._allowed)
            trials, cut = prover.prove(found, seeds), prover.cut
        best = next((t for t in trials if t.proved), None)
        notes = []
        if first.why and first.steps < self._run_steps:
            notes.append(say("the run broke down after {n} steps: {why}", n=first.steps, why=first.why))
        if self._scores_nothing([first.score, *(t.score for t in trials)]):
            notes.append(
                say(
                    "no score is a finite number, not even the untrained model's: look at what evaluate, or the loss, gives"
                )
            )
        return Prescription(
            diagnosis,
            tuple(trials),
            best,
            measure,
            self._run_steps,
            self._running.steps,
            best is not None or not cut,
            tuple(notes),
            bool(first.why),
        )

    def _before_a_proof(self, seeds: int) -> int:
        """Training steps that are left beside the first look of a proof, one of whose runs is that of the diagnosis."""
        return self._allowed - self._running.steps - (3 * seeds - 1) * self._run_steps

    def _scores_nothing(self, scores: Sequence[float | None]) -> bool:
        """Whether there is no score at all, the untrained net's neither."""
        if any(score is not None for score in scores):
            return False
        return self._running.run([Job((), 0, share=0)])[0].score is None

    def _patient(self, changes: tuple[Change, ...]) -> Patient:
        """The run with some changes, fresh."""
        key = tuple(change.key for change in changes)

        def make() -> Setup:
            setup = fresh(self._make, 0)
            for change in changes:
                change.apply(setup)
            return setup

        if key not in self._patients:
            with unchanged():
                self._patients[key] = Patient(make)
        return self._patients[key]


def without(diagnosis: Diagnosis, ignore: Sequence[str]) -> Diagnosis:
    """A diagnosis without findings that are to be left alone.

    Args:
        diagnosis: The diagnosis.
        ignore: Their codes.

    Returns:
        What is left, without what depends on the clock: the same on any machine.
    """
    kept = tuple(left for f in diagnosis.findings if (left := without_ignored(f, ignore)) is not None)
    return replace(diagnosis, findings=kept, run=replace(diagnosis.run, watching=None))


def unproved(found: Prescription, why: str) -> Prescription:
    """A prescription whose seeds prove nothing.

    Args:
        found: The prescription.
        why: What is wrong with them, for its notes.

    Returns:
        The same trials, none of them proved.
    """
    trials = tuple(replace(trial, proved=False) for trial in found.trials)
    return replace(found, trials=trials, best=None, notes=(*found.notes, why))


def refuse_wrong(seeds: int, budget: float) -> None:
    """Refuse what no repair could be proved with.

    Args:
        seeds: Seeds of a proof.
        budget: Training runs.

    Raises:
        UsageError: One seed has no spread, or there is no room for a proof, or no end to the room.
    """
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 2:
        raise UsageError(f"seeds must be a whole number of at least 2, but it is {seeds!r}: one seed has no spread")
    least = 1 + 1 + 3 * seeds
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not least <= budget < math.inf:
        raise UsageError(
            f"budget must be at least {least} training runs for {seeds} seeds (a diagnosis, one candidate, and three arms) and finite, but it is {budget!r}"
        )

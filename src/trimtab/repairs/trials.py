"""One training run of a fresh setup with changes made to it: what a worker does, here, in another process or on another machine."""

import itertools
import math
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.diagnosis.diagnose import diagnose
from trimtab.errors import RepairError, SetupError
from trimtab.norms._passes import own, undisturbed
from trimtab.repairs.change import Change
from trimtab.report import Diagnosis

POINTS = 8
"""Moments of a run at which the loss is taken, where there is no `evaluate`; their mean is the area under its curve."""

HELD = 4
"""Batches that the loss is taken on."""

MakeSetup = Callable[[int], Setup]

_one_at_a_time = threading.Lock()
"""Random states and the number of threads are the process's: a Dask worker with several threads does one run after the other."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run to do.

    Attributes:
        changes: What is changed before training.
        seed: Given to the factory.
        share: How much of the run's steps; 0 scores the untrained net.
        watched: Whether to say what is still wrong with it.
    """

    changes: tuple[Change, ...]
    seed: int
    share: float = 1.0
    watched: bool = False

    @property
    def key(self) -> str:
        """The same for the same run."""
        return f"{[change.key for change in self.changes]} {self.seed} {self.share:g} {self.watched}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it.

    Attributes:
        score: Higher is better; None for a run that crashed, or ended in what is no number.
        steps: Training steps it took.
        why: What went wrong, "" if nothing did.
        diagnosis: Of a watched run that could be trained.
    """

    score: float | None
    steps: int
    why: str = ""
    diagnosis: Diagnosis | None = None


def run_job(payload: bytes) -> Outcome:
    """Do a run.

    Args:
        payload: A pickle by cloudpickle of the factory and the job.

    Returns:
        Its outcome. The process's threads and random states are as they were.

    Raises:
        Exception: What the user's own code raises where nothing was changed.
    """
    import cloudpickle

    with _one_at_a_time:
        make_setup, job = cloudpickle.loads(payload)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the order of summation, and so every digit, is the same wherever it runs
        try:
            with unchanged():
                return _run(make_setup, job)
        finally:
            torch.set_num_threads(threads)


def fresh(make_setup: MakeSetup, seed: int) -> Setup:
    """A setup of a seed; a factory that draws without seeding draws the same each time.

    Args:
        make_setup: The factory.
        seed: The seed.

    Returns:
        The setup.

    Raises:
        SetupError: The factory gives something else.
    """
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    setup = make_setup(seed)
    if not isinstance(setup, Setup):
        raise SetupError(f"make_setup must return a trimtab.Setup, but it returned a {type(setup).__name__}")
    return setup


def _run(make_setup: MakeSetup, job: Job) -> Outcome:
    setup = fresh(make_setup, job.seed)
    steps = setup.steps
    score = _Score(setup)
    try:
        for change in job.changes:
            change.apply(setup)
        setup.steps = math.ceil(job.share * steps)
        course = _train(setup, score, job.watched)
        if course.why:
            return Outcome(None, course.steps, course.why, course.diagnosis)
        value = score.of(setup)
    except RepairError as error:
        return Outcome(None, 0, str(error))
    except Exception as error:
        if (
            not job.changes and job.share
        ):  # the user's own code, before the first step or in evaluate: they are to see it
            raise
        return Outcome(None, setup.steps, _told(error))
    if not math.isfinite(value):
        return Outcome(None, setup.steps, "its score is not a finite number", course.diagnosis)
    return Outcome(value, setup.steps, "", course.diagnosis)


class _Course(NamedTuple):
    """How training went: steps that were done, why it ended early, and what is wrong with it, if it was watched."""

    steps: int
    why: str = ""
    diagnosis: Diagnosis | None = None


def _train(setup: Setup, score: "_Score", watched: bool) -> _Course:
    """Train to the end. An error after the first step ends it as a result: a loss that asserts it is a number, say."""
    done = 0

    def note(at: int, _: int = 0) -> None:
        nonlocal done
        done = at
        score.note(setup, at)

    with TemporaryDirectory(prefix="trimtab-") as folder:
        store = Path(folder, "record.db")
        try:
            if watched and setup.steps:
                return _Course(setup.steps, "", _anywhere(diagnose(setup, store=store, progress=note)))
            for at, _ in enumerate(setup.train(), 1):
                note(at)
        except Exception as error:
            if not done:
                raise
            return _Course(done, _told(error), _anywhere(diagnose(store)) if watched else None)
    return _Course(done)


def _anywhere(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis without the place of its record, which is gone."""
    return replace(diagnosis, run=replace(diagnosis.run, record=None))


def _told(error: Exception) -> str:
    return (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:300]


class _Score:
    """How good a run is, by what the untouched setup measures: `evaluate`, or its own loss on its own batches."""

    def __init__(self, setup: Setup) -> None:
        self._evaluate, self._loss, self._batches = setup.evaluate, setup.loss, setup.batches
        self._losses: list[float] = []
        self._held: list[Any] | None = None

    def note(self, setup: Setup, done: int) -> None:
        """Take the loss, where the score is the area under its curve and the time has come."""
        if self._evaluate is None and (done * POINTS) // setup.steps > ((done - 1) * POINTS) // setup.steps:
            self._losses.append(self._held_loss(setup))

    def of(self, setup: Setup) -> float:
        """The score of a run that has ended."""
        if self._evaluate is None:
            return -float(np.mean(self._losses or [self._held_loss(setup)]))
        setup.model.eval()
        given: Any = self._evaluate(setup.model)
        try:
            return float(given.detach() if isinstance(given, torch.Tensor) else given)
        except (TypeError, ValueError, RuntimeError) as error:
            shape = f" of shape {tuple(given.shape)}" if isinstance(given, (torch.Tensor, np.ndarray)) else ""
            raise SetupError(
                f"evaluate must give a number, higher is better, but it gave a {type(given).__name__}{shape}"
            ) from error

    def _held_loss(self, setup: Setup) -> float:
        model = setup.model
        with (
            unchanged(model, *model.parameters(), *model.buffers()),
            undisturbed(model, training=False),
            torch.no_grad(),
        ):
            if self._held is None:
                self._held = list(itertools.islice(iter(self._batches()), HELD))
            return float(np.mean([float(self._loss(model, own(batch))) for batch in self._held]))

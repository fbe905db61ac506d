"""Where runs are done: on any executor, each finished one written down, so that none is done twice."""

import json
import os
import pickle
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

from trimtab.errors import RepairError
from trimtab.repairs.trials import Job, Outcome, run_job

IDLE = 60
"""Seconds after which a worker without work ends: longer than what is done between two rungs, which is in this process."""


class Serial(Executor):
    """Does each call at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Call it now.

        Args:
            fn: What to call.
            *args: Its arguments.
            **kwargs: Its named arguments.

        Returns:
            A future that is done.
        """
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def local_executor(workers: int | None = None) -> Executor:
    """Processes on this machine.

    Args:
        workers: How many; None for as many as there are cores. One is this process.

    Returns:
        The executor.
    """
    workers = workers or cores()
    if workers == 1:
        return Serial()
    from loky import get_reusable_executor

    return get_reusable_executor(max_workers=workers, timeout=IDLE)  # type: ignore[no-any-return]


class Journal:
    """Finished runs, by their key, in a file that a killed process leaves readable."""

    def __init__(self, path: str | Path | None, name: str) -> None:
        self._path, self._name = None if path is None else Path(path), name
        self._known: dict[str, Outcome] = {}
        if self._path is not None and self._path.is_file():
            for line in self._path.read_bytes().splitlines():
                # A line that was cut off, or of other versions: unpickling can raise anything.
                with suppress(Exception):
                    entry = json.loads(line)
                    if entry["name"] == name:
                        outcome = pickle.loads(b64decode(entry["outcome"]))
                        if isinstance(outcome, Outcome):
                            self._known[entry["job"]] = outcome

    def __len__(self) -> int:
        return len(self._known)

    def get(self, job: Job) -> Outcome | None:
        """What came of a run, if it was done."""
        return self._known.get(job.key)

    def add(self, job: Job, outcome: Outcome) -> None:
        """Write down a run that was done."""
        self._known[job.key] = outcome
        if self._path is None:
            return
        entry = {"name": self._name, "job": job.key, "outcome": b64encode(pickle.dumps(outcome)).decode()}
        with self._path.open("ab") as file:
            file.write(b"\n" + json.dumps(entry).encode())  # a line that was cut off ends here
            file.flush()
            os.fsync(file.fileno())


class Running:
    """Does runs of one factory and counts their steps.

    Args:
        make_setup: What is run, a factory for `run_job`; it goes to wherever a run is done by cloudpickle.
        executor: Does them.
        journal: Knows those that are done.
        told: Told of each.
        do: Given a pickle of what is run and of the job.
    """

    def __init__(
        self,
        make_setup: Any,
        executor: Executor,
        journal: Journal,
        told: Callable[[Job, Outcome], None] | None = None,
        do: Callable[[bytes], Outcome] = run_job,
    ) -> None:
        self._make, self._executor, self._journal, self._told, self._do = make_setup, executor, journal, told, do
        self._counted: set[str] = set()
        self.steps = 0
        """Training steps of all runs that were asked for, each counted once."""

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Do several runs, as many at a time as the executor does.

        Args:
            jobs: The runs.

        Returns:
            Their outcomes in the same order.

        Raises:
            RepairError: The factory cannot be sent to another process, or one was killed.
        """
        found: dict[str, Outcome] = {}
        waiting: dict[Future[Outcome], Job] = {}

        def take(job: Job, outcome: Outcome) -> None:
            self._journal.add(job, outcome)
            found[job.key] = outcome
            self._tell(job, outcome)

        try:
            for job in {job.key: job for job in jobs}.values():
                known = self._journal.get(job)
                if known is not None:
                    found[job.key] = known
                    self._tell(job, known)
                    continue
                future = self._executor.submit(self._do, _payload(self._make, job))
                if future.done():  # of an executor that does each call at once: written down before the next begins
                    take(job, future.result())
                else:
                    waiting[future] = job
            for future in as_completed(waiting):
                take(waiting[future], future.result())
        except BaseException as error:
            for future in waiting:
                future.cancel()
            if isinstance(error, BrokenExecutor):
                raise RepairError(
                    "a process that did runs was killed, which often means that memory ran out; do fewer at a time "
                    "(--workers, or an executor of your own)"
                ) from error
            raise
        return [found[job.key] for job in jobs]

    def _tell(self, job: Job, outcome: Outcome) -> None:
        if job.key in self._counted:
            return
        self._counted.add(job.key)
        self.steps += outcome.steps
        if self._told is not None:
            self._told(job, outcome)


def _payload(make_setup: Any, job: Job) -> bytes:
    import cloudpickle

    try:
        return cloudpickle.dumps((make_setup, job))  # type: ignore[no-any-return]
    except Exception as error:
        raise RepairError(
            f"make_setup must be a function that cloudpickle can send to another process, but it cannot ({error}); "
            "let it open files and devices inside, not take them from around it"
        ) from error

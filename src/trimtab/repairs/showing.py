"""What is seen of a repair while it works."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trimtab._messages import say
from trimtab.repairs.change import together
from trimtab.repairs.trials import Job, Outcome

Told = Callable[[str, int, int], None]


@contextmanager
def shown(progress: bool | Told, allowed: int) -> Iterator[Callable[[Job, Outcome], None] | None]:
    """A line that counts training steps and names the best change so far.

    Args:
        progress: Whether to show it, or a function to be told in its place.
        allowed: Training steps at most.

    Yields:
        A function of a job and its outcome; None where nobody looks.
    """
    if callable(progress):
        yield _Count(progress, allowed)
        return
    if not progress or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(say("steps")),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=allowed)
        yield _Count(lambda text, done, steps: bar.update(task, description=text, completed=done, total=steps), allowed)


class _Count:
    """Adds up what is done, and remembers the best of it."""

    def __init__(self, told: Told, allowed: int) -> None:
        self._told, self._allowed = told, allowed
        self._done, self._best, self._text = 0, float("-inf"), say("diagnosing")

    def __call__(self, job: Job, outcome: Outcome) -> None:
        self._done += outcome.steps
        if job.changes and outcome.score is not None and outcome.score > self._best:
            self._best = outcome.score
            self._text = say(
                "best so far {score}: {change}", score=f"{outcome.score:.4g}", change=together(job.changes).summary[:60]
            )
        self._told(self._text, self._done, self._allowed)

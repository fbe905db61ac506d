"""Progress of long work, on standard error and only in a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counter() -> Iterator[Callable[[int, int], None] | None]:
    """A line that counts training steps.

    Yields:
        A function of steps done and all steps, None where nobody looks.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=None)

        def show(done: int, steps: int) -> None:
            bar.update(task, completed=done, total=steps)

        yield show

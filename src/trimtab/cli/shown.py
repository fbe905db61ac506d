"""What a command shows besides its report: progress, in a terminal only, and errors of the user's own."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trimtab.errors import TrimtabError


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


@contextmanager
def step_counter() -> Iterator[Callable[[str, int, int], None] | None]:
    """A line that names what is being done and how far it is.

    Yields:
        A function of a name, what is done and all of it; None where nobody looks.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(name: str, done: int, steps: int) -> None:
            bar.update(task, description=name, completed=done, total=steps)

        yield show


def showing_the_users_errors(action: Callable[[], int]) -> Callable[[], int]:
    """An error of the setup's own is shown whole and ends with 2, as bad input does: 1 would mean a finding."""

    def shown() -> int:
        try:
            return action()
        except TrimtabError:
            raise
        except Exception as error:
            from trimtab.runner.script import clean, is_our_fault

            if is_our_fault(error):
                raise
            sys.excepthook(type(error), clean(error), error.__traceback__)
            return 2

    return shown

"""`trimtab repair`."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from trimtab.cli.shown import showing_the_users_errors

SEEDS = 3
BUDGET = 25.0


class _ScriptOrSetup(click.Command):
    """What follows a script is the script's own; options of ours may also follow a setup."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, once to see what the target is and once more for good."""
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        target = given.get("target")
        if isinstance(target, str) and not given.get("is_module"):
            path, _, factory = target.rpartition(":")
            ctx.allow_interspersed_args = path.endswith(".py") and factory.isidentifier()
        return super().parse_args(ctx, args)


@click.command(
    cls=_ScriptOrSetup,
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  trimtab repair setups.py:make_setup\n  trimtab repair train.py --epochs 3\n"
    "  trimtab repair --steps 100 -m project.train --lr 0.1\n  trimtab repair --dask tcp://scheduler:8786 setups.py:make_setup",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as for `python -m`.")
@click.option("--seeds", type=click.IntRange(min=2), default=SEEDS, help="Seeds of a proof to begin with. [default: 3]")
@click.option(
    "--budget", type=float, default=BUDGET, metavar="RUNS", help="Training runs that may be taken. [default: 25]"
)
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Training steps of a script. [default: 200]")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Runs at a time. [default: one a core]")
@click.option("--dask", metavar="ADDRESS", help="Run on the Dask cluster of this scheduler.")
@click.option("--fresh", is_flag=True, help="Begin anew: forget the runs that an earlier call has finished.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Leave a finding alone; may be given several times.")
@click.option(
    "--format", "form", type=click.Choice(("text", "json", "html")), default="text", help="Form. [default: text]"
)
@click.option("--output", metavar="FILE", help="Write the prescription to FILE; - is standard output.")
@click.argument("target", metavar="FILE.py:FACTORY|SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def repair(target: str, arguments: tuple[str, ...], **options: Any) -> Callable[[], int]:
    """Find a change that mends a run, and prove it on several seeds beside doing nothing and beside random changes.

    Of a setup, everything can be changed. A SCRIPT is run again and again, unmodified, for --steps training steps each; what hooks can
    change from outside is tried, and scored by its training loss.

    A call that was interrupted goes on where it was when it is given again.

    Exit status: 0 healthy, or a repair is proved; 1 a fault, or a run that breaks down, and no proved repair; 2 bad input; 130 after Ctrl-C.
    """
    path, _, factory = target.rpartition(":")
    is_setup = not options["is_module"] and path.endswith(".py") and factory.isidentifier()
    if is_setup and arguments:
        raise click.UsageError(f"{target} is a setup, which takes no arguments, but {' '.join(arguments)} was given")
    if is_setup and options["steps"] is not None:
        raise click.UsageError("--steps is for scripts: a setup says its own steps")
    if options["workers"] is not None and options["dask"] is not None:
        raise click.UsageError("--workers and --dask exclude each other: a cluster has its own workers")

    def action() -> int:
        from trimtab.runner.resuming import Kept

        kept = Kept(_say)
        try:
            with _ended_as_by_ctrl_c():
                found = _of_setup(target, options, kept) if is_setup else _of_script(target, arguments, options, kept)
        except KeyboardInterrupt as error:
            _say(f"trimtab: interrupted; {kept.told}")
            return 128 + (error.number if isinstance(error, _Ended) else signal.SIGINT)
        _write(found, options["form"], options["output"])
        return 0 if found.best is not None or _healthy(found) else 1

    return showing_the_users_errors(_showing_errors_of_workers(action))


class _Ended(KeyboardInterrupt):
    """A signal that is to end this process."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """`kill`, and a terminal that is closed, leave no process and no folder behind either."""

    def end(number: int, _: Any) -> None:
        raise _Ended(number)

    names = ("SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] == signal.SIG_DFL:  # under nohup it goes on
            signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            if before[number] == signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)


def _of_setup(target: str, options: dict[str, Any], kept: Any) -> Any:
    from trimtab._unchanged import unchanged
    from trimtab.cli.setups import SetupFile
    from trimtab.repairs import repair as repair_setup
    from trimtab.repairs.repair import refuse_wrong
    from trimtab.repairs.trials import fresh

    _check(options)
    refuse_wrong(options["seeds"], options["budget"])
    make = SetupFile.of(target)
    with unchanged():
        steps = fresh(make, 0).steps
    kept.open(make.name, repr(make), options["fresh"])
    with _executor(options) as (executor, workers):
        _say(f"trimtab: {_cost(options['budget'], steps, workers)}; {kept.told}")
        return repair_setup(
            make,
            seeds=options["seeds"],
            executor=executor,
            budget=options["budget"],
            ignore=options["ignore"],
            journal=kept.path,
        )


def _of_script(target: str, arguments: tuple[str, ...], options: dict[str, Any], kept: Any) -> Any:
    from trimtab.repairs.repair import refuse_wrong
    from trimtab.runner.repairing import ScriptRepair
    from trimtab.runner.script import Script

    _check(options)
    refuse_wrong(options["seeds"], options["budget"])
    repairing = ScriptRepair(Script(target, arguments, options["is_module"]), options["steps"])
    kept.open(repairing.name, repairing.key, options["fresh"])
    with _executor(options, processes=False) as (executor, workers):
        _say(f"trimtab: {_cost(options['budget'], repairing.steps, workers)}; {kept.told}")
        _say(f"trimtab: {repairing.told}")
        return repairing.prescribe(
            executor=executor,
            seeds=options["seeds"],
            budget=options["budget"],
            ignore=options["ignore"],
            journal=kept.journal,
        )


def _check(options: dict[str, Any]) -> None:
    from trimtab.diagnosis import check_ignored
    from trimtab.errors import UsageError

    check_ignored(options["ignore"])
    output = options["output"]
    if output not in (None, "-") and (Path(output).is_dir() or not Path(output).absolute().parent.is_dir()):
        raise UsageError(f"cannot write to {output}: {'a folder' if Path(output).is_dir() else 'no such folder'}")


def _cost(budget: float, steps: int, workers: int) -> str:
    many = "1 worker" if workers == 1 else f"{workers} workers"
    return f"at most {budget:g} training runs of {steps} steps, {many} (whose start comes on top)"


@contextmanager
def _executor(options: dict[str, Any], processes: bool = True) -> Iterator[tuple[Executor, int]]:
    """Where runs are done, and how many at a time. A script is a process of its own already, so that threads are enough to wait for it."""
    from concurrent.futures import ThreadPoolExecutor

    from trimtab.repairs.running import cores, local_executor

    if options["dask"] is not None:
        with _client(options["dask"]) as client:
            yield client.get_executor(), len(client.nthreads())
        return
    workers = options["workers"] or cores()
    executor = local_executor(workers) if processes else ThreadPoolExecutor(workers)
    try:
        yield executor, workers
    except BaseException:
        if processes and workers > 1:
            executor.shutdown(wait=False, kill_workers=True)  # type: ignore[call-arg]
        else:
            executor.shutdown(wait=False, cancel_futures=True)
        raise


@contextmanager
def _client(address: str) -> Iterator[Any]:
    from trimtab.errors import UsageError

    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError("--dask needs distributed: pip install 'trimtab[dask]'") from error
    try:
        client = Client(address, timeout="15s")  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise UsageError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        if not client.nthreads():  # type: ignore[no-untyped-call]
            raise UsageError(f"the Dask cluster at {address} has no workers")
        yield client


def _healthy(found: Any) -> bool:
    from trimtab.repairs.search import grave

    return not grave(found.diagnosis) and not found.broke


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(found: Any, form: str, output: str | None) -> None:
    from trimtab.errors import UsageError
    from trimtab.report.writing import write

    text = {"json": found.to_json, "html": found.to_html}.get(form, found.__str__)().rstrip("\n")
    if output in (None, "-"):
        write(text, sys.stdout)
        return
    try:
        Path(str(output)).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or output}: {error.strerror}") from error


def _showing_errors_of_workers(action: Callable[[], int]) -> Callable[[], int]:
    """An error of the user's own that came about in another process, or in their script, is shown as it was there."""

    def shown() -> int:
        try:
            return action()
        except Exception as error:
            from trimtab.runner.elsewhere import traceback_elsewhere

            text = traceback_elsewhere(error)
            if not text:
                raise
            print(text.rstrip("\n"), file=sys.stderr)
            return 2

    return shown

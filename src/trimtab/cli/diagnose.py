"""`trimtab diagnose` and `trimtab check`."""

import sys
from collections.abc import Callable
from typing import Any

import click

from trimtab.cli.options import report_options
from trimtab.cli.shown import showing_the_users_errors


@click.command(
    epilog="\b\nExamples:\n  trimtab diagnose .trimtab/train-20260101-120000.db\n  trimtab diagnose setups.py:make_setup --seed 1\n\n"
    "A setup is a function that returns a trimtab.Setup; it is called with the seed if it takes one.",
)
@click.argument("target", metavar="RECORD|FILE.py:FACTORY")
@click.option("--seed", type=int, default=0, help="Seed for the factory. [default: 0]")
@report_options("error")
def diagnose(target: str, seed: int, **options: Any) -> Callable[[], int]:
    """Tell what is wrong with a run: from its RECORD, also while it is written, or by training a setup.

    Exit status: 0 healthy, 1 a finding at the --fail-on level, 2 bad input.
    """

    def action() -> int:
        from trimtab.cli.setups import load_setup, looks_like_setup
        from trimtab.cli.shown import counter
        from trimtab.diagnosis import check_ignored
        from trimtab.diagnosis import diagnose as diagnose_run
        from trimtab.errors import UsageError
        from trimtab.recording import Record

        check_ignored(options["ignore"])
        if looks_like_setup(target):
            with counter() as progress:
                found = diagnose_run(load_setup(target, seed), ignore=options["ignore"], progress=progress)
        elif target.endswith((".py", ".py:")):
            script = target.rstrip(":")
            raise UsageError(
                f"{script} is neither a record nor a setup: `trimtab run {script}` watches a script, {script}:FACTORY is a setup"
            )
        else:
            record = Record.open(target)
            if not record.step_count and not len(record.steps):
                raise UsageError(
                    f"{target} holds no training step, so there is nothing to judge: did its run train at all?"
                )
            found = diagnose_run(record, ignore=options["ignore"])
        return _report(found, options)

    return showing_the_users_errors(action)


@click.command(
    epilog="\b\nExamples:\n  trimtab check setups.py:make_setup\n  trimtab check --fail-on warning --format json setups.py:make_setup",
)
@click.argument("target", metavar="FILE.py:FACTORY")
@click.option("--seed", type=int, default=0, help="Seed for the factory. [default: 0]")
@report_options("error")
def check(target: str, seed: int, **options: Any) -> Callable[[], int]:
    """Look at a setup before training: one batch forward and backward, no step taken.

    Exit status: 0 healthy, 1 a finding at the --fail-on level, 2 bad input.
    """

    def action() -> int:
        from trimtab.cli.setups import load_setup
        from trimtab.diagnosis import check as check_setup
        from trimtab.diagnosis import check_ignored

        check_ignored(options["ignore"])
        return _report(check_setup(load_setup(target, seed), ignore=options["ignore"]), options)

    return showing_the_users_errors(action)


def _report(found: Any, options: dict[str, Any]) -> int:
    from trimtab.runner.output import write_report

    write_report(found, options["form"], options["output"], sys.stdout)
    return 1 if found.at_least(options["fail_on"]) else 0

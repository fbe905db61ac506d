"""`trimtab run`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from trimtab.cli.options import report_options


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  trimtab run train.py --epochs 3\n  trimtab run --stop-after 200 -m project.train --lr 0.1\n"
    "  trimtab run --format sarif --output report.sarif --fail-on error train.py",
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is a module, as for `python -m`.")
@click.option("--every", type=click.IntRange(min=1), metavar="N", help="Record every N-th step. [default: ever fewer]")
@click.option("--stop-after", type=click.IntRange(min=1), metavar="N", help="End the run after N training steps.")
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File for the record. [default: .trimtab/NAME-TIME.db]",
)
@click.option("--no-store", is_flag=True, help="Keep the record in memory only.")
@report_options(None)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(script: str, arguments: tuple[str, ...], **options: Any) -> Callable[[], int | BaseException]:
    """Run SCRIPT under watch, unmodified, and tell why it does not train.

    Standard output and the exit status are the script's own; the diagnosis goes to standard error at the end, at Ctrl-C and at a crash.
    With --fail-on, a script that ended with 0 gives 1 at such a finding, and where the diagnosis failed.
    """
    if options["store"] is not None and options["no_store"]:
        raise click.UsageError("--store and --no-store exclude each other")

    def action() -> int | BaseException:
        from trimtab.runner.run import RunOptions, run_script
        from trimtab.runner.script import Script

        return run_script(
            Script(script, arguments, options["is_module"]),
            RunOptions(
                every=options["every"],
                store=options["store"],
                no_store=options["no_store"],
                stop_after=options["stop_after"],
                format=options["form"],
                output=options["output"],
                fail_on=options["fail_on"],
                ignore=options["ignore"],
            ),
        )

    return action

"""`trimtab run`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from trimtab.cli.options import SEVERITIES, report_options


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="\b\nExamples:\n  trimtab run train.py --epochs 3\n  trimtab run --live --every 10 train.py\n  trimtab run --stop-after 200 -m project.train --lr 0.1\n"
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
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    default=200.0,
    metavar="MB",
    help="Room for the record; then old steps are thinned evenly. 0 for no bound. [default: 200]",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="RECORD",
    help="Go on with the record of a run that ended before.",
)
@click.option(
    "--resume-at",
    type=click.IntRange(min=0),
    metavar="N",
    help="Step of the checkpoint that SCRIPT starts from; what RECORD holds from there on is replaced. [default: its end]",
)
@click.option(
    "--stop-on",
    type=click.Choice(SEVERITIES),
    help="Diagnose while SCRIPT trains, and end it at such a finding; the exit status is then 1.",
)
@click.option(
    "--diagnose-every",
    type=click.IntRange(min=1),
    metavar="N",
    help="Recorded steps from look to look, for --stop-on and --live. [default: as many looks as 1 % of the time pays for, with --live half of it]",
)
@click.option(
    "--live",
    is_flag=True,
    help="Show the run at the bottom of the terminal while SCRIPT trains: loss, flow through the layers, findings.",
)
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
    if options["resume"] is not None and (options["store"] is not None or options["no_store"]):
        raise click.UsageError("--resume names the record itself: leave --store and --no-store out")
    if options["resume_at"] is not None and options["resume"] is None:
        raise click.UsageError("--resume-at says where in a record to go on: name it with --resume")
    if options["diagnose_every"] is not None and options["stop_on"] is None and not options["live"]:
        raise click.UsageError("--diagnose-every says how often --stop-on and --live look: give one of them as well")
    if options["budget"] and not options["budget"] >= 1:
        raise click.UsageError("--budget must be at least 1 megabyte, or 0 for no bound")

    def action() -> int | BaseException:
        from trimtab.runner.run import RunOptions, run_script
        from trimtab.runner.script import Script

        return run_script(
            Script(script, arguments, options["is_module"]),
            RunOptions(
                every=options["every"],
                store=options["resume"] or options["store"],
                no_store=options["no_store"],
                resume=False if options["resume"] is None else _resumed(options["resume_at"]),
                budget=options["budget"],
                stop_after=options["stop_after"],
                stop_on=options["stop_on"],
                diagnose_every=options["diagnose_every"],
                live=options["live"],
                format=options["form"],
                output=options["output"],
                fail_on=options["fail_on"],
                ignore=options["ignore"],
            ),
        )

    return action


def _resumed(step: int | None) -> bool | int:
    return True if step is None else step

"""`trimtab report`."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from trimtab.cli.options import report_options
from trimtab.cli.shown import showing_the_users_errors

if TYPE_CHECKING:
    from trimtab.recording import Record


@click.command(
    epilog="\b\nExamples:\n  trimtab report .trimtab/train-20260101-120000.db\n"
    "  trimtab report .trimtab/train-20260101-120000.db --figures figures\n"
    "  trimtab report .trimtab/train-20260101-120000.db --figures figures --figure-format pdf\n"
    "  trimtab report run.db --figures figures --format html --output page.html\n\n"
    "Each chart becomes one file, named by what it shows: loss.png, gradient.png, signal-by-depth.png.",
)
@click.argument("record", metavar="RECORD")
@click.option("--figures", metavar="DIR", help="Draw every chart into a file in DIR, in place of the report.")
@click.option(
    "--figure-format",
    "figure_formats",
    multiple=True,
    type=click.Choice(("png", "svg", "pdf")),
    help="Form of the figures; may be given several times. [default: png and svg]",
)
@report_options(None)
def report(record: str, figures: str | None, figure_formats: tuple[str, ...], **options: Any) -> Callable[[], int]:
    """Show what a RECORD holds, also while it is written: its diagnosis, or its charts as figures.

    With --figures, standard output names the files, and the report is written where --output says.

    Exit status: 0, with --fail-on 1 a finding at that level, 2 bad input.
    """
    if figure_formats and figures is None:
        raise click.UsageError("--figure-format needs --figures DIR, which says where the figures go.")
    if figures is not None and options["form"] != "text" and options["output"] is None:
        raise click.UsageError(
            f"--format {options['form']} needs --output FILE beside --figures: standard output names the figures."
        )

    def action() -> int:
        from trimtab.diagnosis import check_ignored, diagnose
        from trimtab.errors import UsageError
        from trimtab.recording import Record

        check_ignored(options["ignore"])
        opened = Record.open(record)
        if not opened.step_count and not len(opened.steps):
            raise UsageError(f"{record} holds no training step, so there is nothing to show: did its run train at all?")
        if figures is not None:
            _draw(opened, figures, figure_formats or ("png", "svg"))
            if options["output"] is None and options["fail_on"] is None:
                return 0
        found = diagnose(opened, ignore=options["ignore"])
        if figures is None or options["output"] is not None:
            from trimtab.runner.output import write_report

            write_report(found, options["form"], options["output"], sys.stdout)
        return 1 if options["fail_on"] and found.at_least(options["fail_on"]) else 0

    return showing_the_users_errors(action)


def _draw(record: "Record", folder: str, formats: tuple[str, ...]) -> None:
    from trimtab.diagnosis.charting import charts_of
    from trimtab.report.writing import write

    charts = charts_of(record)
    write("\n".join(map(str, charts.save(folder, formats))), sys.stdout)
    if charts.notes:
        write("\n".join(charts.notes), sys.stderr)

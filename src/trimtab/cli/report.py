"""`trimtab report`: a record as a page, or its charts as figures."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from trimtab.cli.options import report_options
from trimtab.cli.shown import showing_the_users_errors

if TYPE_CHECKING:
    from trimtab.recording import Record


@click.command(
    epilog="\b\nExamples:\n  trimtab report .trimtab/train-20260101-120000.db\n"
    "  trimtab report .trimtab/train-20260101-120000.db --output page.html\n"
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
@report_options(None, "html")
def report(record: str, figures: str | None, figure_formats: tuple[str, ...], **options: Any) -> Callable[[], int]:
    """Show what a RECORD holds, also while it is written: a page with its diagnosis and every chart, or the charts as figures.

    In a terminal the page goes to a file named after the record, which is said; into a pipe or a file it goes as it is. With --figures,
    standard output names the files, and the report is written where --output says.

    Exit status: 0, with --fail-on 1 a finding at that level, 2 bad input.
    """
    if figure_formats and figures is None:
        raise click.UsageError("--figure-format needs --figures DIR, which says where the figures go.")
    given = click.get_current_context().get_parameter_source("form") is ParameterSource.COMMANDLINE
    if figures is not None and given and options["output"] is None:
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
        output = options["output"]
        if figures is None and output is None and options["form"] == "html" and sys.stdout.isatty():
            output = f"{Path(record).stem}.html"
        if figures is None or output is not None:
            from trimtab.runner.output import write_report

            write_report(found, options["form"], output, sys.stdout)
        if output is not None and options["output"] is None:
            print(Path(output).absolute().as_uri())
        return 1 if options["fail_on"] and found.at_least(options["fail_on"]) else 0

    return showing_the_users_errors(action)


def _draw(record: "Record", folder: str, formats: tuple[str, ...]) -> None:
    from trimtab.diagnosis.charting import charts_of
    from trimtab.report.writing import write

    charts = charts_of(record)
    write("\n".join(map(str, charts.save(folder, formats))), sys.stdout)
    if charts.notes:
        write("\n".join(charts.notes), sys.stderr)

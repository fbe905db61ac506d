"""`trimtab compare`."""

import sys
from collections.abc import Callable

import click

from trimtab.cli.shown import showing_the_users_errors

FORMATS = ("text", "json", "html")


@click.command(
    epilog="\b\nExamples:\n  trimtab compare trimtab-demo/before.db trimtab-demo/after.db\n"
    "  trimtab compare --format html --output compare.html batch.db layer.db\n"
    "  trimtab compare --names 'batch norm,layer norm' a.db b.db",
)
@click.argument("a", metavar="RECORD")
@click.argument("b", metavar="RECORD")
@click.option("--names", metavar="A,B", help="What the runs are called. [default: what their files' names differ in]")
@click.option(
    "--ignore", multiple=True, metavar="CODE[@WHERE]", help="Leave a finding out; may be given several times."
)
@click.option("--output", metavar="FILE", help="Write the comparison to FILE; - is standard output.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", help="Form. [default: text]")
def compare(
    a: str, b: str, names: str | None, ignore: tuple[str, ...], output: str | None, form: str
) -> Callable[[], int]:
    """Lay two runs beside each other: before and after a repair, two normalizations, two learning rates.

    What was set differently, which findings are gone, new or still there, and where the layers differ; as HTML, every chart of both on the
    same scales. A record may be given while its run still writes it.

    Exit status: 0, or 2 at bad input.
    """
    called = _names(names)

    def action() -> int:
        from trimtab.diagnosis import compare as compare_runs
        from trimtab.runner.output import write_comparison

        write_comparison(compare_runs(a, b, names=called, ignore=ignore), form, output, sys.stdout)
        return 0

    return showing_the_users_errors(action)


def _names(names: str | None) -> tuple[str, str] | None:
    if names is None:
        return None
    first, comma, second = (part.strip() for part in names.partition(","))
    if not (first and comma and second) or "," in second:
        raise click.UsageError(
            f"--names takes two names with a comma between them, as in before,after; it was {names!r}"
        )
    return first, second

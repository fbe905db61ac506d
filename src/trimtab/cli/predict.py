"""`trimtab predict`."""

import sys
from collections.abc import Callable
from pathlib import Path

import click

from trimtab.cli.shown import showing_the_users_errors


@click.command(
    epilog="\b\nExamples:\n  trimtab predict setups.py:make_setup\n  trimtab predict setups.py:make_setup --figure depth.png\n"
    "  trimtab predict setups.py:make_setup --format json --output prediction.json",
)
@click.argument("target", metavar="FILE.py:FACTORY")
@click.option("--seed", type=int, default=0, help="Seed for the factory. [default: 0]")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Form. [default: text]")
@click.option("--output", metavar="FILE", help="Write the table to FILE; - is standard output.")
@click.option("--figure", metavar="FILE", help="Draw signal and gradient by depth to FILE, a PNG.")
def predict(target: str, seed: int, form: str, output: str | None, figure: str | None) -> Callable[[], int]:
    """Foretell signal and gradient at every site of a setup's model, beside what its first batch measures.

    No step is taken. Exit status: 0, or 2 at bad input.
    """

    def action() -> int:
        from trimtab.cli.setups import load_setup
        from trimtab.errors import UsageError
        from trimtab.prediction import predict_setup
        from trimtab.report.writing import write

        found = predict_setup(load_setup(target, seed))
        text = found.to_json() if form == "json" else str(found).rstrip("\n")
        try:
            if figure is not None:
                found.figure(figure)
            if output not in (None, "-"):
                Path(str(output)).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {error.filename or output or figure}: {error.strerror}") from error
        if output in (None, "-"):
            write(text, sys.stdout)
        return 0

    return showing_the_users_errors(action)

"""`trimtab probe`."""

import sys
from collections.abc import Callable
from pathlib import Path

import click

from trimtab.cli.shown import showing_the_users_errors, step_counter


@click.command(
    epilog="\b\nExamples:\n  trimtab probe setups.py:make_setup\n  trimtab probe --playbook setups.py:make_setup\n"
    "  trimtab probe --format json --output recipe.json setups.py:make_setup",
)
@click.argument("target", metavar="FILE.py:FACTORY")
@click.option("--playbook", is_flag=True, help="The tuning playbook's procedure in place of the recipe.")
@click.option("--seed", type=int, default=0, help="Seed for the factory. [default: 0]")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Form. [default: text]")
@click.option("--output", metavar="FILE", help="Write the list to FILE; - is standard output.")
def probe(target: str, playbook: bool, seed: int, form: str, output: str | None) -> Callable[[], int]:
    """Try a setup out on copies, step by step, as engineers do by hand.

    The recipe: loss at initialization, input-independent baseline, one batch by heart, leaks between samples and from the future.
    The playbook: best rate, loss just above it, norm of the gradient, a run at twice the best rate.

    Exit status: 0 no step is bad, 1 one is, 2 bad input; after Ctrl-C the steps that were done are written, and it is 130.
    """

    def action() -> int:
        from trimtab.cli.setups import load_setup
        from trimtab.diagnosis.playbook import PLAYBOOK
        from trimtab.diagnosis.procedures import follow
        from trimtab.diagnosis.recipe import RECIPE
        from trimtab.errors import UsageError
        from trimtab.report.writing import write

        setup = load_setup(target, seed)
        with step_counter() as progress:
            found = follow(PLAYBOOK if playbook else RECIPE, setup, progress, keep_interrupted=True)
        text = found.to_json() if form == "json" else str(found).rstrip("\n")
        if output in (None, "-"):
            write(text, sys.stdout)
        else:
            try:
                Path(str(output)).write_text(text + "\n", encoding="utf-8")
            except OSError as error:
                raise UsageError(f"cannot write {error.filename or output}: {error.strerror}") from error
        if not found.finished:
            return 130
        return 0 if found.good else 1

    return showing_the_users_errors(action)

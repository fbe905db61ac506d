"""Options that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("text", "json", "sarif", "html")
SEVERITIES = ("error", "warning")


def report_options(default_fail_on: str | None, form: str = "text") -> Callable[[F], F]:
    """`--format`, `--output`, `--fail-on`, `--ignore`.

    Args:
        default_fail_on: Default of `--fail-on`; None for no exit status of its own.
        form: Default of `--format`.

    Returns:
        A decorator.
    """

    def decorate(command: F) -> F:
        shown = f" [default: {default_fail_on}]" if default_fail_on else ""
        for option in (
            click.option(
                "--ignore",
                multiple=True,
                metavar="CODE[@WHERE]",
                help="Leave a finding out, everywhere or at one place; may be given several times.",
            ),
            click.option(
                "--fail-on",
                type=click.Choice(SEVERITIES),
                default=default_fail_on,
                help=f"Exit with 1 at a finding of this severity or a graver one.{shown}",
            ),
            click.option("--output", metavar="FILE", help="Write the report to FILE; - is standard output."),
            click.option(
                "--format",
                "form",
                type=click.Choice(FORMATS),
                default=form,
                help=f"Form of the report. [default: {form}]",
            ),
        ):
            command = option(command)
        return command

    return decorate

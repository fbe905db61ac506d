"""`trimtab explain`."""

import sys
from collections.abc import Callable

import click


@click.command(epilog="\b\nExamples:\n  trimtab explain\n  trimtab explain vanishing-gradient")
@click.argument("code", required=False)
def explain(code: str | None) -> Callable[[], int]:
    """Print the page of a finding's CODE, or the list of all codes.

    A page has the symptom, the mechanism, the formula, how it is measured, the threshold and its reason, the repair and the reference.
    """

    def action() -> int:
        from trimtab.report.pages import codes, page, title
        from trimtab.report.writing import write

        if code is None:
            width = max(len(known) for known in codes())
            write("\n".join(f"{known:<{width}}  {title(known)}" for known in codes()), sys.stdout)
        else:
            write(page(code).text, sys.stdout)
        return 0

    return action

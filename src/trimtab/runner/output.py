"""Where a report goes: a file, standard output, or the terminal."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TextIO

from trimtab.errors import UsageError
from trimtab.report import Comparison, Diagnosis, render
from trimtab.report.comparison_text import render_comparison
from trimtab.report.writing import write


def write_report(diagnosis: Diagnosis, format: str, output: str | None, stream: TextIO) -> None:
    """Write a report.

    Args:
        diagnosis: What to report.
        format: "text", "json", "sarif" or "html".
        output: File; "-" and None for `stream`.
        stream: Where the report goes when no file is named.

    Raises:
        UsageError: The file cannot be written.
    """
    _write(partial(render, diagnosis, format), format, output, stream)


def write_comparison(comparison: Comparison, format: str, output: str | None, stream: TextIO) -> None:
    """Write a comparison.

    Args:
        comparison: Two runs beside each other.
        format: "text", "json" or "html".
        output: As for `write_report`.
        stream: As for `write_report`.

    Raises:
        UsageError: The file cannot be written.
    """
    forms: dict[str, Callable[..., str]] = {
        "text": partial(render_comparison, comparison),
        "json": comparison.to_json,
        "html": comparison.to_html,
    }
    _write(forms[format], format, output, stream)


def _write(make: Callable[..., str], format: str, output: str | None, stream: TextIO) -> None:
    if output is not None and output != "-":
        try:
            Path(output).write_text(make() + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write the report to {output}: {error.strerror}") from error
        return
    write(make(**_terminal(stream)) if format == "text" else make(), stream)


def _terminal(stream: TextIO) -> dict[str, bool | int]:
    """What the stream can show."""
    color = stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    width = 80
    if stream.isatty():
        try:
            width = min(max(os.get_terminal_size(stream.fileno()).columns, 40), 100)
        except OSError:
            width = 80
    encoding = (getattr(stream, "encoding", None) or "ascii").lower()
    return {"color": color, "width": width, "unicode": encoding.startswith("utf")}

"""The figures of a run as files of one folder."""

import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from trimtab._messages import say
from trimtab._style import FORMATS, as_bytes
from trimtab.errors import UsageError
from trimtab.report.charts import Chart
from trimtab.report.drawing.chart import draw

_LONGEST = 120
"""Bytes of a file's name without its ending."""


def save_figures(charts: Iterable[Chart], folder: str | Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draw charts into files, each named by its key.

    The bytes depend on the charts and on the version of matplotlib alone. A file of the same name is replaced.

    Args:
        charts: What to draw.
        folder: Where to; it is made where it is missing.
        formats: "png", "svg", "pdf": one file for each.

    Returns:
        The files, in the order of the charts.

    Raises:
        UsageError: There is no such format, or the folder cannot be written to.
    """
    wanted = list(dict.fromkeys([formats] if isinstance(formats, str) else formats))
    unknown = [form for form in wanted if form not in FORMATS]
    if unknown or not wanted:
        raise UsageError(say("formats is {formats!r}; choose from {all}.", formats=formats, all=", ".join(FORMATS)))
    folder = Path(folder)
    written: list[Path] = []
    taken: set[str] = set()
    path = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart in charts:
            name = _free(_safe(chart.key), taken)
            figure = draw(chart).get_figure(root=True)
            assert figure is not None
            for form in wanted:
                path = folder / f"{name}.{form}"
                content = as_bytes(figure, form)
                if path.is_symlink():
                    path.unlink()  # or the file that it points to would be written, wherever it is
                path.write_bytes(content)
                written.append(path)
    except OSError as error:
        raise UsageError(
            say(
                "cannot write {path}: {reason}; name a folder for the figures that can be written to",
                path=error.filename or path,
                reason=error.strerror,
            )
        ) from error
    return written


def _safe(key: str) -> str:
    """A key as the name of a file on any system: letters, digits, dots, dashes and underscores."""
    text = unicodedata.normalize("NFC", key)
    text = "".join(c if c.isalnum() or c in "._-" else "-" for c in text).strip(".-")
    return text.encode()[:_LONGEST].decode(errors="ignore") or "chart"


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number where another chart has it; systems that know no case must tell them apart too."""
    number, free = 1, name
    while free.casefold() in taken:
        number += 1
        free = f"{name}-{number}"
    taken.add(free.casefold())
    return free

"""One front door to the renderings."""

from typing import Any

from trimtab._messages import say
from trimtab.errors import UsageError
from trimtab.report.diagnosis import Diagnosis

FORMATS = ("text", "json", "sarif", "html")


def render(diagnosis: Diagnosis, format: str = "text", **options: Any) -> str:
    """The diagnosis in one of the formats.

    Args:
        diagnosis: What to render.
        format: "text", "json", "sarif" or "html".
        **options: What the format's own function takes: `color`, `width` and `unicode` for text, `root` for SARIF, `charts` and `prescription` for HTML.

    Returns:
        The report.

    Raises:
        UsageError: If there is no such format.
    """
    if format == "text":
        from trimtab.report.text import render_text

        return render_text(diagnosis, **options)
    if format == "json":
        from trimtab.report.json import render_json

        return render_json(diagnosis, **options)
    if format == "sarif":
        from trimtab.report.sarif import render_sarif

        return render_sarif(diagnosis, **options)
    if format == "html":
        from trimtab.report.html import render_html

        return render_html(diagnosis, **options)
    raise UsageError(say("Unknown format {format!r}; choose one of {all}.", format=format, all=", ".join(FORMATS)))

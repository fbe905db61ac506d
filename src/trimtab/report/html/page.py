"""Put the page together: a template, a style sheet, a script, a charting library, and the numbers."""

import base64
import functools
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import trimtab
from trimtab._messages import say
from trimtab.errors import UsageError
from trimtab.report.charts import SECTIONS, Chart, Charts, HeatMap, LineChart, Section
from trimtab.report.diagnosis import Diagnosis
from trimtab.report.finding import Finding
from trimtab.report.html.code_page import page_html
from trimtab.report.html.packing import as_script, is_named, packed
from trimtab.report.outline import SEVERITY_NAMES, confidence, count, facts, fold, from_here, place
from trimtab.report.pages import title
from trimtab.report.prescription import Prescription
from trimtab.report.words import clean, expectation, in_words, measurement, number, quantity

SCRIPTS = ("uplot-1.6.32.min.js", "page.js")
STYLES = ("uplot-1.6.32.min.css", "page.css")

HEADINGS = {
    "training": lambda: say("How training went"),
    "flow": lambda: say("Every layer at every step"),
    "depth": lambda: say("Measured against predicted, by depth"),
    "normalization": lambda: say("Normalization: batch against running statistics"),
    "curvature": lambda: say("Curvature"),
    "bounds": lambda: say("Bounds"),
}


def render_html(diagnosis: Diagnosis, *, charts: Charts | None = None, prescription: Prescription | None = None) -> str:
    """The diagnosis with its charts as one page that needs nothing else: no file, no network.

    Args:
        diagnosis: What was found.
        charts: What there is to see; the diagnosis' own by default.
        prescription: What was tried against it, which then stands on top.

    Returns:
        HTML. Its policy lets nothing run or load but what it brings along; text of the run's is never markup.
    """
    charts = diagnosis.charts if charts is None else charts
    page = environment().get_template("page.html")
    around = shell(clean(diagnosis.run.name), numbers(diagnosis, charts))
    return page.render(**contents(diagnosis, charts, prescription), **around)


def contents(diagnosis: Diagnosis, charts: Charts, prescription: Prescription | None = None) -> dict[str, Any]:
    """What `assets/page.html` tells.

    Args:
        diagnosis: As for `render_html`.
        charts: As for `render_html`.
        prescription: As for `render_html`.

    Returns:
        Its variables, without those of `shell`.
    """
    groups, notes = fold(diagnosis)
    places = named(groups)
    return {
        "diagnosis": diagnosis,
        "groups": groups,
        "notes": notes,
        "prescription": prescription,
        "sections": sections(charts),
        "remarks": charts.notes,
        "marked": {c.key for c in charts if isinstance(c, HeatMap) and any(is_named(row, places) for row in c.rows)},
        "rows": list(facts(diagnosis.run)),
    }


def numbers(diagnosis: Diagnosis, charts: Charts) -> dict[str, Any]:
    """What `assets/page.js` draws from.

    Args:
        diagnosis: As for `render_html`.
        charts: As for `render_html`.

    Returns:
        "charts", with the rows that a main finding or what follows from it names marked.
    """
    places = named(fold(diagnosis)[0])
    return {"charts": [packed(chart, places) for chart in charts]}


def named(groups: Sequence[tuple[Finding, Sequence[Finding]]]) -> set[str]:
    """The places that findings name."""
    return {place for main, following in groups for found in (main, *following) for place in found.where}


def write_page(page: str, path: str | Path) -> None:
    """Write a page.

    Args:
        page: HTML.
        path: The file.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write the page to {path}: {error.strerror}; name another file") from error


def sections(charts: Charts) -> list[tuple[Section, str, Sequence[Chart]]]:
    """Name, heading and charts of each section that has any."""
    return [(name, HEADINGS[name](), charts.of(name)) for name in SECTIONS if charts.of(name)]


def shell(
    name: str,
    data: dict[str, Any],
    more_styles: Sequence[str] = (),
    more_scripts: Sequence[str] = (),
    directives: str = "",
) -> dict[str, Any]:
    """What every page needs: scripts, styles, a policy that allows just these, and the numbers.

    Args:
        name: The page's name.
        data: What the script draws from.
        more_styles: Style sheets of this kind of page, files of `assets/`.
        more_scripts: Scripts of this kind of page, which run last.
        directives: What its policy says besides.

    Returns:
        Variables of `assets/base.html`.
    """
    scripts = [asset(file) for file in (*SCRIPTS, *more_scripts)]
    styles = [asset(file) for file in (*STYLES, *more_styles)]
    return {
        "name": name,
        "version": trimtab.__version__,
        "scripts": [Markup(text) for text in scripts],
        "styles": [Markup(text) for text in styles],
        "policy": policy(scripts, styles, directives),
        "data": Markup(as_script(data)),
    }


def policy(scripts: Sequence[str], styles: Sequence[str], more: str = "") -> str:
    """A content-security policy under which nothing runs and nothing loads but these.

    Args:
        scripts: Texts of the scripts.
        styles: Texts of the style sheets.
        more: Further directives.

    Returns:
        The policy; scripts and styles by their SHA-256 (Content Security Policy Level 3, section 2.3.1).
    """
    allowed = [" ".join(f"'sha256-{_digest(text)}'" for text in those) for those in (scripts, styles)]
    parts = ["default-src 'none'", f"script-src {allowed[0]}", f"style-src {allowed[1]}", "img-src data:"]
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'", *([more] if more else [])])


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def asset(name: str) -> str:
    """The text of a file that comes with the page."""
    return files("trimtab.report.html").joinpath("assets", name).read_text(encoding="utf-8")


@functools.cache
def environment() -> Environment:
    """The templates, with what they call; every text is escaped."""
    templates = Environment(
        loader=PackageLoader("trimtab.report.html", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals |= {
        "say": say,
        "SEVERITY_NAMES": SEVERITY_NAMES,
        "count": count,
        "place": place,
        "confidence": confidence,
        "title": lambda code: title(code) or in_words(code).capitalize(),
        "page_html": page_html,
        "measurement": measurement,
        "quantity": quantity,
        "expectation": expectation,
        "from_here": from_here,
        "described": described,
        "is_heat": lambda chart: isinstance(chart, HeatMap),
    }
    templates.filters |= {"clean": clean, "code": lambda text: clean(text.strip("\n"), lines=True), "number": _number}
    return templates


def _number(value: float | None) -> str:
    return "" if value is None else number(value)


def described(chart: Chart) -> str:
    """What a chart shows, in words, for those who do not see it."""
    if isinstance(chart, HeatMap):
        return say(
            "{title}: {rows} rows by {columns} columns, {unit}",
            title=chart.title,
            rows=len(chart.rows),
            columns=len(chart.columns),
            unit=chart.unit,
        )
    return (
        f"{chart.title}: {'; '.join(filter(None, map(_told, [chart] * len(chart.curves), range(len(chart.curves)))))}"
    )


def _told(chart: LineChart, i: int) -> str:
    curve = chart.curves[i]
    seen = [float(y) for y in curve.y if y == y]
    if not seen:
        return ""
    if len(set(seen)) == 1:
        return say("{name} {value}", name=curve.name, value=number(seen[0]))
    return say(
        "{name} from {first} to {last}, lowest {low}, highest {high}",
        name=curve.name,
        first=number(seen[0]),
        last=number(seen[-1]),
        low=number(min(seen)),
        high=number(max(seen)),
    )

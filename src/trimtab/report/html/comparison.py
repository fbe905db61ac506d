"""Put the page of a comparison together: verdicts and findings of both runs, and their charts on common scales."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trimtab._messages import say
from trimtab.report.charts import SECTIONS, Chart, HeatMap
from trimtab.report.comparison import Comparison
from trimtab.report.comparison_outline import (
    WHAT,
    WHERE,
    by_step,
    counted,
    course,
    layer_name,
    shown_ratio,
    shown_value,
    steps,
    verdict,
)
from trimtab.report.diagnosis import Diagnosis
from trimtab.report.html.packing import colour_range, is_named, packed
from trimtab.report.html.page import HEADINGS, environment, shell
from trimtab.report.outline import facts, fold, place
from trimtab.report.panels import Fitted, PairedCharts, Panel
from trimtab.report.words import clean

STYLES = ("compare.css",)

LAYERS = 8
"""Layers that are told in the table, of each signal and gradient."""


def render_comparison_html(comparison: Comparison) -> str:
    """The comparison with the charts of both runs as one page that needs nothing else: no file, no network.

    Args:
        comparison: What to render.

    Returns:
        HTML. Its policy lets nothing run or load but what it brings along; text of the runs' is never markup.
    """
    charts = comparison.charts
    named = [_named(run) for run in (comparison.a, comparison.b)]
    sections = [(name, HEADINGS[name](), charts.of(name)) for name in SECTIONS if charts.of(name)]
    return (
        environment()
        .get_template("compare.html")
        .render(
            comparison=comparison,
            counted=counted(comparison),
            runs=[
                {
                    "name": name,
                    "diagnosis": run,
                    "verdict": verdict(run),
                    "loss": course(run),
                    "steps": steps(run),
                    "rows": list(facts(run.run)),
                }
                for name, run in zip(comparison.names, (comparison.a, comparison.b), strict=True)
            ],
            groups=WHERE,
            layers=_layers(comparison),
            sections=[
                (key, heading, [_shown(panel, comparison.names, named) for panel in panels])
                for key, heading, panels in sections
            ],
            remarks=[*comparison.notes, *charts.notes],
            was=_was,
            **shell(clean(" / ".join(comparison.names)), {"charts": _data(charts, named)}, STYLES),
        )
    )


def _was(old: Any, new: Any) -> str:
    """Where a finding was before, "" where that is the same."""
    return "" if old.where == new.where else place(old.where) or say("nowhere in particular")


def _layers(comparison: Comparison) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Rows of the table of layers for each step."""
    return [
        (
            head,
            [
                (WHAT[layer.what](), layer_name(layer), *map(shown_value, layer.values), shown_ratio(layer))
                for layer in layers
            ],
        )
        for head, layers in by_step(comparison, LAYERS)
    ]


def _titled(chart: Chart, name: str) -> Chart:
    return replace(chart, title=say("{title}: {run}", title=chart.title, run=name), caption="")


def _named(diagnosis: Diagnosis) -> set[str]:
    """The places of a run's errors and warnings, and of what follows from them."""
    groups, _ = fold(diagnosis)
    return {place for main, following in groups for found in (main, *following) for place in found.where}


def _shown(panel: Panel, names: tuple[str, str], named: Sequence[set[str]]) -> dict[str, Any]:
    """What the template makes of a panel: its charts with their ids, None where there is none."""
    if len(panel.runs) == 1:
        (fitted,) = panel.runs
        assert fitted is not None
        return {"both": replace(fitted.chart, caption=panel.caption), "id": panel.key}
    title = next(fitted.chart.title for fitted in panel.runs if fitted is not None)
    sides = [
        {"id": f"{panel.key}-{side}", "name": name, "chart": None if fitted is None else _titled(fitted.chart, name)}
        for side, name, fitted in zip("ab", names, panel.runs, strict=True)
    ]
    maps = [(f.chart.rows, p) for f, p in zip(panel.runs, named, strict=True) if f and isinstance(f.chart, HeatMap)]
    marked = any(is_named(row, places) for rows, places in maps for row in rows)
    mark = [say("▸ marks what a finding of the run names.")] if marked else []
    return {"both": None, "title": title, "sides": sides, "caption": " ".join([panel.caption, *mark]).strip()}


def _data(charts: PairedCharts, named: Sequence[set[str]]) -> list[dict[str, Any]]:
    found = []
    for panel in charts:
        maps = [f.chart for f in panel.runs if f is not None and isinstance(f.chart, HeatMap)]
        colours = colour_range(maps) if maps else None
        drawn = []
        for side, places, fitted in zip("ab", named, panel.runs, strict=False):
            if fitted is not None:
                key = panel.key if len(panel.runs) == 1 else f"{panel.key}-{side}"
                drawn.append(_fitted(fitted, places, colours) | {"key": key} | _ranges(panel))
        if maps:  # names of one length, so that the maps are of one width
            longest = max((len(row) for chart in drawn for row in chart["rows"]), default=0)
            drawn = [chart | {"longest": longest} for chart in drawn]
        found += drawn
    return found


def _ranges(panel: Panel) -> dict[str, Any]:
    ranges = {"xRange": panel.x_range, "yRange": panel.y_range}
    return {key: [float(f"{end:.9g}") for end in ends] for key, ends in ranges.items() if ends is not None}


def _fitted(fitted: Fitted, named: set[str], colours: tuple[float, float] | None) -> dict[str, Any]:
    data = packed(fitted.chart, named, colours)
    for curve, places in zip(data.get("curves", ()), fitted.places, strict=False):
        if len(places) < len(data["x"]):
            own = [int(place) for place in places]
            curve |= {part: [curve[part][i] for i in own] for part in ("y", "low", "high") if part in curve}
            curve["at"] = own
    return data

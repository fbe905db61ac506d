"""Put the page of a comparison together: verdicts and findings of both runs, and their charts on common scales."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trimtab._messages import say
from trimtab.report.charts import SECTIONS, Chart, HeatMap
from trimtab.report.comparison import Comparison
from trimtab.report.comparison_text import (
    WHERE,
    counted,
    course,
    layer_name,
    shown_ratio,
    shown_value,
    steps,
    verdict,
    when,
)
from trimtab.report.html.packing import colour_range, packed
from trimtab.report.html.page import HEADINGS, environment, shell
from trimtab.report.outline import facts, place
from trimtab.report.side_by_side import Fitted, PairedCharts, Panel
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
                (key, heading, [_shown(panel, comparison.names) for panel in panels])
                for key, heading, panels in sections
            ],
            remarks=[*comparison.notes, *charts.notes],
            was=_was,
            **shell(clean(" / ".join(comparison.names)), {"charts": _data(charts, comparison.names)}, STYLES),
        )
    )


def _was(old: Any, new: Any) -> str:
    """Where a finding was before, "" where that is the same."""
    return "" if old.where == new.where else place(old.where) or say("nowhere in particular")


def _layers(comparison: Comparison) -> list[tuple[str, list[tuple[str, str, str, str, str]]]]:
    """Rows of the table of layers for each step."""
    tables = []
    for at, layers in comparison.layers_at().items():
        rows = []
        for what, label in (("signal", say("signal")), ("gradient", say("gradient"))):
            for layer in [layer for layer in layers if layer.what == what][:LAYERS]:
                a, b = (shown_value(value) for value in layer.values)
                rows.append((label, layer_name(layer), a, b, shown_ratio(layer)))
        tables.append((when(at), rows))
    return tables


def _titled(chart: Chart, name: str) -> Chart:
    return replace(chart, title=say("{title}: {run}", title=chart.title, run=name), caption="")


def _shown(panel: Panel, names: tuple[str, str]) -> dict[str, Any]:
    """What the template makes of a panel: its charts with their ids, None where there is none."""
    if len(panel.runs) == 1:
        (fitted,) = panel.runs
        assert fitted is not None
        return {"both": replace(fitted.chart, caption=panel.caption), "id": panel.key, "panel": panel}
    title = next(fitted.chart.title for fitted in panel.runs if fitted is not None)
    sides = [
        {"id": f"{panel.key}-{side}", "name": name, "chart": None if fitted is None else _titled(fitted.chart, name)}
        for side, name, fitted in zip("ab", names, panel.runs, strict=True)
    ]
    return {"both": None, "title": title, "sides": sides, "panel": panel}


def _data(charts: PairedCharts, names: tuple[str, str]) -> list[dict[str, Any]]:
    found = []
    for panel in charts:
        maps = [f.chart for f in panel.runs if f is not None and isinstance(f.chart, HeatMap)]
        colours = colour_range(maps) if maps else None
        for side, fitted in zip(("a", "b"), panel.runs, strict=False):
            if fitted is not None:
                key = panel.key if len(panel.runs) == 1 else f"{panel.key}-{side}"
                found.append(_fitted(fitted, colours) | {"key": key} | _ranges(panel))
    return found


def _ranges(panel: Panel) -> dict[str, Any]:
    ranges = {"xRange": panel.x_range, "yRange": panel.y_range}
    return {key: [float(f"{end:.9g}") for end in ends] for key, ends in ranges.items() if ends is not None}


def _fitted(fitted: Fitted, colours: tuple[float, float] | None) -> dict[str, Any]:
    data = packed(fitted.chart, colours)
    for curve, places in zip(data.get("curves", ()), fitted.places, strict=False):
        if len(places) < len(data["x"]):
            own: Sequence[int] = places.tolist()
            curve |= {part: [curve[part][i] for i in own] for part in ("y", "low", "high") if part in curve}
            curve["at"] = own
    return data

"""Charts of two runs on common scales: curves of training in one chart, all else side by side, layer beside layer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from trimtab._messages import say
from trimtab.report.alignment import Rows
from trimtab.report.charts import Chart, Charts, Curve, HeatMap, LineChart, Numbers, is_wide
from trimtab.report.panels import Fitted, PairedCharts, Panel, Places

Align: TypeAlias = Callable[[Sequence[str], Sequence[str]], Rows]
"""Which layer of the first list is which of the second, as `alignment.aligned` tells it."""


def paired(a: Charts, b: Charts, names: tuple[str, str], align: Align) -> PairedCharts:
    """Every chart that one of the runs has, in the order of reading.

    Args:
        a: Charts of the first run.
        b: Charts of the second run.
        names: What the runs are called.
        align: Tells which layer of the first run is which of the second.

    Returns:
        The charts. Curves over training steps are drawn into one chart; what is measured at single places, by layer or as a heat map
        stands side by side on one range of steps, numbers and, by layer, of names.
    """
    keys = list(dict.fromkeys([chart.key for chart in a] + [chart.key for chart in b]))
    order = {chart.key: i for charts in (b, a) for i, chart in enumerate(charts)}
    panels = (_panel(key, (a.get(key), b.get(key)), names, align) for key in sorted(keys, key=order.__getitem__))
    return PairedCharts(tuple(panels), _remarks(a, b, names))


def _remarks(a: Charts, b: Charts, names: tuple[str, str]) -> tuple[str, ...]:
    """What the charts' notes say, once where it is the same of both runs."""
    if a.notes == b.notes:
        return a.notes
    return tuple(
        say("{run}: {text}", run=name, text=note)
        for name, charts in zip(names, (a, b), strict=True)
        for note in charts.notes
    )


def _panel(key: str, pair: tuple[Chart | None, Chart | None], names: tuple[str, str], align: Align) -> Panel:
    a, b = pair
    seen = next(chart for chart in pair if chart is not None)
    caption = _caption(pair, names)
    if all(chart is None or _is_course(chart) for chart in pair):
        return _overlaid(key, [chart if isinstance(chart, LineChart) else None for chart in pair], names, caption)
    if isinstance(a, HeatMap) and isinstance(b, HeatMap):
        one, other, remark = _maps(a, b, align)
        return Panel(key, seen.section, (Fitted(one), Fitted(other)), " ".join(filter(None, (caption, remark))))
    if isinstance(a, LineChart) and isinstance(b, LineChart):
        log = _both_log([a, b])
        fitted = _by_layer(a, b, align) if a.names and b.names else (Fitted(a), Fitted(b))
        shown = tuple(Fitted(replace(f.chart, log=log), f.places) for f in fitted)
        every = np.concatenate([a.x, b.x])
        common = len(every) == 0 or bool(a.names and b.names)
        x_range = None if common else (float(every.min()), float(every.max()))
        return Panel(key, seen.section, shown, caption, x_range, _span([a, b], log))
    return Panel(key, seen.section, tuple(None if c is None else Fitted(c) for c in pair), caption)


def _is_course(chart: Chart) -> bool:
    """Whether it is the course of something over the steps: lines, with or without limits."""
    return isinstance(chart, LineChart) and not chart.names and all(curve.look != "points" for curve in chart.curves)


def _caption(pair: Sequence[Chart | None], names: tuple[str, str]) -> str:
    told = [(name, chart.caption) for name, chart in zip(names, pair, strict=True) if chart is not None]
    if len({caption for _, caption in told}) == 1:
        return told[0][1]
    return " ".join(say("{run}: {text}", run=name, text=caption) for name, caption in told)


# ---- one chart for both


def _overlaid(key: str, pair: list[LineChart | None], names: tuple[str, str], caption: str) -> Panel:
    known = [chart for chart in pair if chart is not None]
    x = np.unique(np.concatenate([chart.x for chart in known]))
    own = [None if chart is None else np.searchsorted(x, chart.x) for chart in pair]
    drawn: list[tuple[int, Curve, Places]] = []  # (how far down its run's own list, curve, places)
    for name, chart, places in zip(names, pair, own, strict=True):
        if chart is None or places is None:
            continue
        several = sum(curve.look == "line" for curve in chart.curves) > 1
        for rank, curve in enumerate(chart.curves):
            alone = curve.look == "line" and not several
            label = name if alone else say("{run}: {text}", run=name, text=curve.name)
            drawn.append((rank, _spread(replace(curve, name=label), places, len(x)), places))
    limits = _common_limits(known, len(x))
    if limits:
        drawn = [entry for entry in drawn if entry[1].look != "limit"]
        drawn += [(len(drawn), limit, np.arange(len(x))) for limit in limits]
    drawn.sort(
        key=lambda entry: entry[0]
    )  # the first curve of either run before the second of any: runs keep their colours
    chart = replace(
        known[-1], key=key, x=x, curves=tuple(curve for _, curve, _ in drawn), log=_both_log(known), caption=""
    )
    for name, one in zip(names, pair, strict=True):
        if one is None:
            caption = f"{caption} {say('“{run}” has none of it.', run=name)}".strip()
    return Panel(key, chart.section, (Fitted(chart, tuple(places for _, _, places in drawn)),), caption)


def _common_limits(charts: Sequence[LineChart], count: int) -> list[Curve]:
    """The limits of the charts over all places, where they are constant and the same in each; else none."""
    of_each = [{c.name: c.y for c in chart.curves if c.look == "limit"} for chart in charts]
    first = of_each[0]
    for limits in of_each:
        if limits.keys() != first.keys():
            return []
        for name, y in limits.items():
            if not len(y) or not np.allclose(y, first[name][0], rtol=1e-6):
                return []
    return [Curve(name, np.full(count, y[0]), "limit") for name, y in first.items()]


def _spread(curve: Curve, places: Places, count: int) -> Curve:
    def over(y: Numbers | None) -> Numbers | None:
        if y is None:
            return None
        wide = np.full(count, np.nan)
        wide[places] = y
        return wide

    y = over(curve.y)
    assert y is not None
    return replace(curve, y=y, low=over(curve.low), high=over(curve.high))


# ---- side by side


def _both_log(charts: Sequence[LineChart]) -> bool:
    """Logarithmic where all are, where one is and the others have nothing that would be lost, or where only both together are wide."""
    every = [np.concatenate([curve.y for curve in chart.curves]) for chart in charts]
    if any(chart.log for chart in charts):
        return not any((y <= 0).any() for chart, y in zip(charts, every, strict=True) if not chart.log)
    return is_wide(np.concatenate(every))


def _span(charts: Sequence[LineChart], log: bool) -> tuple[float, float] | None:
    """Lowest and highest number of all curves and their bands that an axis can show."""
    every = [y for c in charts for curve in c.curves for y in (curve.y, curve.low, curve.high) if y is not None]
    seen = np.concatenate(every)
    seen = seen[np.isfinite(seen) & ((seen > 0) | (not log))]
    return (float(seen.min()), float(seen.max())) if len(seen) else None


def _by_layer(a: LineChart, b: LineChart, align: Align) -> tuple[Fitted, Fitted]:
    """Charts by layer, a layer of the one above the same layer of the other."""
    rows = align(a.names, b.names)
    x = np.arange(1.0, len(rows) + 1)
    fitted = []
    for side, chart in enumerate((a, b)):
        places = np.array([i for i, row in enumerate(rows) if row[side] is not None], dtype=np.int64)
        curves = tuple(_spread(curve, places, len(rows)) for curve in chart.curves)
        drawn = replace(chart, x=x, names=_labels(rows, a.names, b.names, side), curves=curves)
        fitted.append(Fitted(drawn, (places,) * len(curves)))
    return fitted[0], fitted[1]


def _labels(rows: Rows, a: Sequence[str], b: Sequence[str], side: int) -> tuple[str, ...]:
    """Each row's name in its own run; in the other's where it has none."""
    found = []
    for i, k in rows:
        mine, other = (i, k) if side == 0 else (k, i)
        names, others = (a, b) if side == 0 else (b, a)
        found.append(names[mine] if mine is not None else others[other] if other is not None else "")
    return tuple(found)


def _maps(a: HeatMap, b: HeatMap, align: Align) -> tuple[HeatMap, HeatMap, str]:
    """Heat maps with common rows and columns, and a remark on what was done for that."""
    rows = align(a.rows, b.rows)
    columns = np.union1d(a.columns, b.columns)
    shown = []
    for side, chart in enumerate((a, b)):
        index = np.array([-1 if row[side] is None else row[side] for row in rows], dtype=np.int64)
        values = np.full((len(rows), len(columns)), np.nan, dtype=np.float32)
        values[index >= 0] = _held(chart, columns)[index[index >= 0]]
        shown.append(
            replace(chart, rows=_labels(rows, a.rows, b.rows, side), columns=columns, values=values, caption="")
        )
    remarks = []
    if any(i is None or k is None for i, k in rows):
        remarks.append(say("A layer that one of the runs lacks has an empty row there."))
    if _differ_inside(a, b) or _differ_inside(b, a):
        remarks.append(say("At steps that only the other run has recorded, the last step before is shown."))
    return shown[0], shown[1], " ".join(remarks)


def _held(chart: HeatMap, columns: Numbers) -> NDArray[np.float32]:
    """The values at other steps: of each, those of the last step before it; none before the first and after the last."""
    last = np.searchsorted(chart.columns, columns, side="right") - 1
    values = chart.values[:, last.clip(0)].copy()
    values[:, (last < 0) | (columns > chart.columns[-1])] = np.nan
    return values


def _differ_inside(a: HeatMap, b: HeatMap) -> bool:
    """Whether `b` has steps between the first and the last of `a` that `a` has not."""
    inside = b.columns[(b.columns > a.columns[0]) & (b.columns < a.columns[-1])]
    return bool((~np.isin(inside, a.columns)).any())

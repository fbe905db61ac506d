"""`trimtab.compare`: two runs beside each other."""

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.charting import charts_of
from trimtab.diagnosis.diagnose import check_ignored, diagnose_record
from trimtab.diagnosis.settings import differences, kinds
from trimtab.diagnosis.view import View
from trimtab.errors import UsageError
from trimtab.recording import Record
from trimtab.report import Comparison, Diagnosis
from trimtab.report.alignment import aligned
from trimtab.report.charts import Charts, HeatMap
from trimtab.report.comparison import LayerChange, Setting, sorted_out
from trimtab.report.side_by_side import Align, paired
from trimtab.report.words import clean, shortened

LONGEST = 40
"""Characters of a run's name."""


def compare(
    a: Record | Diagnosis | str | Path,
    b: Record | Diagnosis | str | Path,
    *,
    names: tuple[str, str] | None = None,
    ignore: Sequence[str] = (),
) -> Comparison:
    """Two runs beside each other: before and after a repair, two normalizations.

    Args:
        a: The first run: its record or the path of one, which may still be written, or its diagnosis.
        b: The second run.
        names: What the runs are called; by default what their files' names differ in.
        ignore: Findings to leave out, as for `diagnose`; a diagnosis that is given stands as it is.

    Returns:
        The comparison: print it, or write `to_html` or `to_json`. Of a diagnosis without its record (a pickled one), what a record alone
        knows is left out, and a note says so.

    Raises:
        UsageError: A run is something else or holds no training step, `names` are not two, or `ignore` names a code that does not exist.
        RecordError: A record cannot be read.
    """
    check_ignored(ignore)
    if names is not None and (isinstance(names, str) or len(names) != 2 or not all(isinstance(n, str) for n in names)):
        raise UsageError(f"names must be two strings, one for each run, but {names!r} was given")
    records, found = zip(*(_judged(run, ignore) for run in (a, b)), strict=True)
    one, other = names if names is not None else _names(found[0], found[1])
    called = (shortened(clean(one), LONGEST), shortened(clean(other), LONGEST))
    charts = (found[0].charts, found[1].charts)
    align: Align = aligned
    settings: tuple[Setting, ...] = ()
    notes = []
    if records[0] is not None and records[1] is not None:
        views = View(records[0]), View(records[1])
        align = partial(aligned, kinds_a=kinds(views[0]), kinds_b=kinds(views[1]))
        settings = differences(*views)
    else:
        notes.append(say("Without both records, it is not known what was set differently."))
    gone, new, stay = sorted_out(found[0].findings, found[1].findings)
    return Comparison(
        names=called,
        a=found[0],
        b=found[1],
        gone=gone,
        new=new,
        stay=stay,
        settings=settings,
        layers=layer_changes(charts[0], charts[1], align),
        notes=tuple(notes),
        draw=partial(paired, charts[0], charts[1], called, align),
    )


def _judged(run: Record | Diagnosis | str | Path, ignore: Sequence[str]) -> tuple[Record | None, Diagnosis]:
    """The record of a run, where it is at hand, and its diagnosis."""
    if isinstance(run, Diagnosis):
        draw = run.draw
        return (draw.args[0] if isinstance(draw, partial) and draw.func is charts_of else None), run
    if isinstance(run, (str, Path)):
        run = Record.open(run)
    if not isinstance(run, Record):
        raise UsageError(
            f"compare takes two runs, each a Record, the path of one, or a Diagnosis, but it was given a {type(run).__name__}"
        )
    if not run.step_count and not len(run.steps):
        name = run.path or say("a record in memory")
        raise UsageError(f"{name} holds no training step, so there is nothing to compare: did its run train at all?")
    return run, diagnose_record(run, ignore)


# ---- names


def _names(a: Diagnosis, b: Diagnosis) -> tuple[str, str]:
    """What the runs' files are called, shortened to where they differ; the folders' names where the files' are the same."""
    one, other = (Path(run.record).absolute() if run.record else Path(run.name) for run in (a.run, b.run))
    for x, y in ((one.stem, other.stem), (one.parent.name, other.parent.name), (str(one.parent), str(other.parent))):
        if x != y and x and y:
            return _shortened(x, y)
    return say("first"), say("second")


def _shortened(x: str, y: str) -> tuple[str, str]:
    one, other = (re.split(r"([-_. /\\]+)", name) for name in (x, y))
    head = tail = 0
    while head < min(len(one), len(other)) and one[head] == other[head]:
        head += 1
    while tail < min(len(one), len(other)) - head and one[-1 - tail] == other[-1 - tail]:
        tail += 1
    left = ["".join(name[head : len(name) - tail]) for name in (one, other)]
    return (left[0], left[1]) if all(re.search(r"\w", name) for name in left) else (x, y)


# ---- layers


def layer_changes(a: Charts, b: Charts, align: Align) -> tuple[LayerChange, ...]:
    """Signal and gradient of every layer that both runs have, at the first and the last step at which both have seen it.

    Args:
        a: Charts of the first run.
        b: Charts of the second run.
        align: Tells which layer of the first run is which of the second.

    Returns:
        Those at their first step, then those at their last; of each, those that differ most first, by the logarithm of their ratio: zero,
        or not finite, in one run alone comes before all. Where the runs have no step in common, each run's own first and last.
    """
    found: list[LayerChange] = []
    for what in ("signal", "gradient"):
        one, other = a.get(what), b.get(what)
        if isinstance(one, HeatMap) and isinstance(other, HeatMap):
            for i, k in align(one.rows, other.rows):
                if i is not None and k is not None:
                    found += _of_layer(one, other, i, k, what)
    return tuple(sorted(found, key=lambda layer: (layer.when, -_apart(layer))))


def _of_layer(a: HeatMap, b: HeatMap, i: int, k: int, what: Literal["signal", "gradient"]) -> Iterator[LayerChange]:
    mine, others = (np.flatnonzero(~np.isnan(chart.values[row])) for chart, row in ((a, i), (b, k)))
    if not len(mine) or not len(others):
        return
    _, in_mine, in_others = np.intersect1d(a.columns[mine], b.columns[others], return_indices=True)
    if len(in_mine):
        mine, others = mine[in_mine], others[in_others]
    ends: tuple[tuple[Literal["first", "last"], int], ...] = (("first", 0), ("last", -1))
    for when, end in ends:
        x, y = mine[end], others[end]
        steps = int(a.columns[x]), int(b.columns[y])
        if when == "first" or (x, y) != (mine[0], others[0]):
            values = float(a.values[i, x]), float(b.values[k, y])
            yield LayerChange(a.rows[i], b.rows[k], what, when, steps, values)


def _apart(layer: LayerChange) -> float:
    a, b = layer.values
    if a == b:
        return 0.0
    if not (0 < a < math.inf and 0 < b < math.inf):
        return math.inf
    return abs(math.log(b / a))

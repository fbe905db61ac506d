"""Charts as data for the page's script: numbers to six digits, heat maps in two bytes a cell."""

import base64
import json
import math
import zlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.report.charts import Chart, Curve, HeatMap
from trimtab.report.words import clean

UNSEEN, ZERO, NONFINITE, FIRST = 0, 1, 2, 3
"""Codes of a cell; from `FIRST` to `LAST` they lie evenly between the lowest and the highest number."""

LAST = 65535

DECADES = 2.0
"""What a logarithmic colour scale spans at least, so that noise looks like noise."""


MARK = "▸ "
"""In front of a row that a finding names."""


def packed(chart: Chart, places: Collection[str] = (), colours: tuple[float, float] | None = None) -> dict[str, Any]:
    """A chart as plain data.

    Args:
        chart: What to draw.
        places: Modules and parameters that findings name: their rows of a heat map get a mark.
        colours: Ends of the colour scale of a heat map, as `colour_range` gives them; its own by default.

    Returns:
        What `assets/page.js` draws from.
    """
    common = {
        "key": chart.key,
        "title": clean(chart.title),
        "xLabel": clean(chart.x_label),
        "yLabel": clean(chart.y_label),
        "log": chart.log,
    }
    if isinstance(chart, HeatMap):
        return common | _heat(chart, places, colours or colour_range([chart]))
    return common | {
        "x": _numbers(chart.x),
        "names": [clean(name) for name in chart.names],
        "curves": [_curve(curve) for curve in chart.curves],
    }


def is_named(row: str, places: Collection[str]) -> bool:
    """Whether a row is a module that is one of the places, or that one of them lies in."""
    names = {row, row.rpartition(" ")[0] or row}  # a class may stand behind the name, and a name may have spaces
    return any(place == name or place.startswith(f"{name}.") for place in places for name in names)


def _curve(curve: Curve) -> dict[str, Any]:
    found: dict[str, Any] = {"name": clean(curve.name), "look": curve.look, "y": _numbers(curve.y)}
    if curve.low is not None and curve.high is not None:
        found |= {"low": _numbers(curve.low), "high": _numbers(curve.high)}
    return found


def _numbers(values: Iterable[float]) -> list[float | int | None]:
    return [_number(float(value)) for value in values]


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.6g}")


def _heat(chart: HeatMap, places: Collection[str], colours: tuple[float, float]) -> dict[str, Any]:
    low, high = colours
    codes = encoded(chart.values, low, high, chart.log)
    return {
        "columns": _numbers(chart.columns),
        "rows": [MARK * is_named(row, places) + clean(row) for row in chart.rows],
        "unit": clean(chart.unit),
        "low": low,
        "high": high,
        "cells": squeezed(codes),
    }


def colour_range(maps: Sequence[HeatMap]) -> tuple[float, float]:
    """The ends of the colour scale that heat maps share, in powers of ten where it is logarithmic.

    Args:
        maps: Heat maps of one kind.

    Returns:
        Lowest and highest; a logarithmic scale spans at least two powers of ten.
    """
    seen = np.concatenate([m.values[np.isfinite(m.values)].astype(np.float64) for m in maps])
    if not maps[0].log:
        return (float(seen.min()), float(seen.max())) if len(seen) else (0.0, 1.0)
    seen = np.log10(seen[seen > 0])
    if not len(seen):
        return -1.0, 1.0
    low, high = float(seen.min()), float(seen.max())
    missing = max(DECADES - (high - low), 0.0)
    return low - missing / 2, high + missing / 2


def encoded(values: NDArray[np.float32], low: float, high: float, log: bool) -> NDArray[np.uint16]:
    """Each cell as its code.

    Args:
        values: Shape (rows, columns).
        low: What the first code of a number stands for, a power of ten where `log`.
        high: What the last one stands for.
        log: Whether codes are even in the logarithm.

    Returns:
        Codes of the same shape.
    """
    numbers = values.astype(np.float64)
    with np.errstate(all="ignore"):
        level = np.log10(numbers) if log else numbers
        place = FIRST + (level - low) / max(high - low, 1e-12) * (LAST - FIRST)
    codes = np.nan_to_num(place, nan=0.0, posinf=0.0, neginf=0.0).round().clip(FIRST, LAST).astype(np.uint16)
    if log:
        codes[numbers <= 0] = ZERO
    codes[np.isinf(numbers)] = NONFINITE
    codes[np.isnan(numbers)] = UNSEEN
    return codes


def squeezed(codes: NDArray[np.uint16]) -> str:
    """Codes as text: differences along a row, low bytes after high bytes, deflated, in base 64."""
    steps = codes.copy()
    steps[:, 1:] -= codes[:, :-1]
    planes = np.concatenate([(steps >> 8).astype(np.uint8).ravel(), (steps & 255).astype(np.uint8).ravel()])
    return base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode("ascii")


def as_script(data: Any) -> str:
    """Data as JSON that may stand inside a script element of HTML."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text

"""Words and numbers around the axes: as many as there is room for."""

import math
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from trimtab._style import INK, LABEL, SMALL, TICK, TITLE, number, shortened, verbatim

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 20
"""Letters of a module's name."""

Key: TypeAlias = list[tuple[Any, str]]
"""Artists of a legend and their names."""

_EM = 0.58
"""Mean width of a letter over its height."""


def inches(axes: "Axes") -> tuple[float, float]:
    """Width and height of the axes."""
    size = axes.get_window_extent()
    dpi = axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    return float(size.width / dpi), float(size.height / dpi)


def wrapped(text: str, points: float, room: float, lines: int = 2) -> str:
    """Text on as many lines as it needs to fit into so many inches; a very long one ends in an ellipsis.

    Args:
        text: The text.
        points: Size of its letters.
        room: Inches of a line.
        lines: Lines, at most.

    Returns:
        The text with line breaks, ready for matplotlib.
    """
    letters = max(int(room * 72 / (points * _EM)), 8)
    folded = _folded(text, letters, lines)
    while letters > 8 and len(even := _folded(text, letters - 1, lines + 1)) == len(folded):  # no last word on its own
        letters, folded = letters - 1, even
    return "\n".join(map(verbatim, folded))


def _folded(text: str, letters: int, lines: int) -> list[str]:
    """Lines of so many letters; a word that is longer goes over several."""
    words = " ".join(text.split())
    if max(map(len, words.split()), default=0) > letters:
        words = re.sub(r"(?<=[/._-])(?=\w)", "\v", words)  # a long name may be broken at its joints
    folded = textwrap.wrap(words, letters, break_on_hyphens=False, replace_whitespace=False, expand_tabs=False)
    found = [line.replace("\v", "") for line in folded]
    return found if len(found) <= lines else [*found[: lines - 1], f"{found[lines - 1][: letters - 1]}…"]


def head(axes: "Axes", title: str, below: float) -> None:
    """The title, with room below it for a legend of so many points."""
    text = wrapped(title, TITLE, inches(axes)[0], lines=3)
    axes.set_title(text, fontsize=TITLE, color=INK, loc="left", pad=5 + below, usetex=False)


def label(axes: "Axes", x: str, y: str) -> None:
    """Name both axes."""
    width, height = inches(axes)
    axes.set_xlabel(wrapped(x, LABEL, width), fontsize=LABEL, color=INK, usetex=False)
    axes.set_ylabel(wrapped(y, LABEL, height), fontsize=LABEL, color=INK, usetex=False)


def name_all(axes: "Axes", key: Key) -> float:
    """Name what is drawn, above the axes and clear of it.

    Args:
        axes: Where.
        key: Artists and their names.

    Returns:
        Height of the legend in points.
    """
    if not key:
        return 0.0
    from matplotlib.transforms import ScaledTranslation

    width = inches(axes)[0]
    figure = axes.get_figure(root=True)
    assert figure is not None
    texts = [verbatim(shortened(name, max(int(width * 72 / (SMALL * _EM)) - 5, 8))) for _, name in key]
    columns = next((n for n in range(len(texts), 1, -1) if _breadth(texts, n) <= width), 1)
    drawn = axes.legend(
        [handle for handle, _ in key],
        ["-"] * len(texts),  # a label that begins with an underscore would be left out
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        bbox_transform=axes.transAxes + ScaledTranslation(0.0, 3 / 72, figure.dpi_scale_trans),
        ncols=columns,
        fontsize=SMALL,
        frameon=False,
        borderpad=0.0,
        borderaxespad=0.0,
        labelspacing=0.3,
        columnspacing=1.2,
        handlelength=2.0,
        handletextpad=0.5,
        labelcolor=INK,
    )
    for written, text in zip(drawn.get_texts(), texts, strict=True):
        written.set(text=text, usetex=False)
    return math.ceil(len(texts) / columns) * SMALL * 1.35 + 2


def _breadth(texts: Sequence[str], columns: int) -> float:
    """Inches that a legend of so many columns takes; matplotlib fills it column by column."""
    rows = math.ceil(len(texts) / columns)
    widest = [max(map(len, texts[i : i + rows])) for i in range(0, len(texts), rows)]
    return sum(widest) * SMALL * _EM / 72 + 0.36 * len(widest)


def some(count: int, room: float) -> list[int]:
    """Evenly spaced places, as many as have a line of ticks' letters each within so many inches."""
    fit = max(int(room * 72 / (TICK * 1.2)), 1)
    return list(range(0, count, max(math.ceil(count / fit), 1)))


def names_along_x(axes: "Axes", places: Sequence[float], names: Sequence[str]) -> None:
    """Layers by name: side by side where they fit, upright otherwise, some of them where they are many."""
    width = inches(axes)[0]
    shown = some(len(names), width)
    texts = [verbatim(shortened(names[i], LONGEST)) for i in shown]
    upright = max(map(len, texts)) * len(texts) * TICK * _EM / 72 > 0.9 * width
    axes.set_xticks([places[i] for i in shown], texts, rotation=90 if upright else 0, usetex=False)


def names_along_y(axes: "Axes", names: Sequence[str]) -> None:
    """Modules by name, some of them where they are many."""
    shown = some(len(names), 0.97 * inches(axes)[1])
    axes.set_yticks(shown, [verbatim(shortened(names[i], LONGEST)) for i in shown], usetex=False)


def steps_along_x(axes: "Axes", steps: Sequence[float]) -> None:
    """A few columns by their steps, round numbers where there are some nearby."""
    if not len(steps):
        axes.set_xticks([])
        return
    longest = max(len(number(steps[0])), len(number(steps[-1])))
    fit = max(int(inches(axes)[0] * 72 / ((longest + 3) * TICK * _EM)), 1)
    count = min(fit, len(steps), 6)
    wish = np.linspace(0, len(steps) - 1, count) if count > 1 else np.zeros(1)
    reach = (len(steps) - 1) / (count - 1) / 4 if count > 1 else 0.0
    shown = sorted({_roundest(steps, at, reach if 0 < i < count - 1 else 0.0) for i, at in enumerate(wish)})
    axes.set_xticks(shown, [number(steps[i]) for i in shown])


def _roundest(steps: Sequence[float], at: float, reach: float) -> int:
    """The column near a place whose step ends in the most zeros."""
    first, last = math.ceil(at - reach), math.floor(at + reach)
    near = range(first, last + 1) if last >= first else [round(at)]

    def zeros(i: int) -> int:
        text = f"{steps[i]:.0f}"
        return len(text) - len(text.rstrip("0"))

    return max(near, key=lambda i: (zeros(i), -abs(i - at)))

"""What the live view shows: loss, flow by depth and findings, as lines that fit the terminal."""

import itertools
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from trimtab._messages import say
from trimtab.report import Finding
from trimtab.report.words import clean, number, places, plain, share, short, shortened
from trimtab.runner.gauges import QUANTITIES, Flow, Reading, odd

LEAST = 20, 4
"""Columns and lines of a terminal that has room for a panel."""

BARS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
"""Heights, in Unicode and in ASCII."""

HEAT = tuple(f"color({c})" for c in (33, 38, 37, 72, 107, 143, 179, 208))
"""A colour for each height, from blue to orange, which a colour-blind reader tells apart and any background bears."""

BROKEN = "×"
LABEL = 10
RIGHT = 23
"""Cells of the column of numbers, which a narrow terminal lacks."""

WIDE = 64
CELL = 8
NAME = 18
FINDINGS = 4
STILL = 0.1
"""Share by which a loss must move for its course to be drawn as one."""

PER_DECADE = 2.0
"""Heights to a factor of ten."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line, and how soon it is left out where there is no room: the largest first."""

    rank: float
    text: Text


class Panel:
    """Lays a run's numbers out.

    Args:
        name: The run's.
        unicode: Whether the terminal can show more than ASCII.
    """

    def __init__(self, name: str, *, unicode: bool = True) -> None:
        self._name = clean(name, unicode=unicode)
        self._unicode = unicode
        self._bars = BARS[not unicode]
        self._marked = False
        self._console = Console(
            file=StringIO(), force_terminal=True, width=1000, highlight=False, markup=False, emoji=False,
            legacy_windows=False, no_color="NO_COLOR" in os.environ,
        )  # fmt: skip

    def lines(self, reading: Reading, findings: Sequence[Finding], columns: int, rows: int) -> list[str]:
        """The panel for a terminal of this size.

        Args:
            reading: What the run says.
            findings: What was found so far, in order.
            columns: The terminal's width.
            rows: Its height, of which the panel takes half at most.

        Returns:
            Lines with their colours, each narrower than the terminal; none where there is no room.
        """
        if columns < LEAST[0] or rows < LEAST[1]:
            return []
        width = columns - 1
        found = [
            Line(1, self._title(reading, width)),
            *self._measured(reading, findings, width),
            *self._findings(findings),
        ]
        ranks = sorted(line.rank for line in found)[: rows // 2]
        shown = [line.text for line in found if line.rank <= ranks[-1]]
        for text in shown:
            text.truncate(width, overflow="ellipsis" if self._unicode else "crop")
        with self._console.capture() as captured:
            self._console.print(*shown, sep="\n", soft_wrap=True)
        return captured.get().splitlines()

    # ------------------------------------------------------------------------------------------------ parts

    def _title(self, reading: Reading, width: int) -> Text:
        """The upper edge, and in it the run in words: as many of them as there is room for."""
        rule, dot = ("─", " · ") if self._unicode else ("-", " - ")
        parts = [
            say("step {step}", step=f"{reading.steps:,}"),
            say("{speed} steps/s", speed=number(reading.speed)) if reading.speed is not None else "",
            say("rate {rate}", rate=short(reading.rate)) if reading.rate is not None else "",
            say("watching {share}", share=_percent(reading.watching)),
            say("{count} recorded", count=f"{reading.recorded:,}"),
            _duration(reading.seconds),
        ]
        head, told = f"{rule}{rule} trimtab", ""
        for part in filter(None, parts):
            longer = f"{told}{dot}{part}" if told else part
            if cell_len(longer) + 5 + (cell_len(head) + 1 if told else 0) > width:
                break
            told = longer
        room = width - cell_len(told) - 5
        text = Text(end="")
        if room >= cell_len(head) + 1:
            text.append(f"{rule}{rule} ", "dim").append("trimtab", "bold")
            if self._name and room - cell_len(head) > 10:
                text.append(dot, "dim").append(self._cut(self._name, room - cell_len(head) - 5))
            text.append(" ")
        text.append(rule * max(width - text.cell_len - cell_len(told) - 4, 1), "dim")
        return text.append(f" {told} ").append(rule * 2, "dim")

    def _measured(self, reading: Reading, findings: Sequence[Finding], width: int) -> list[Line]:
        """Loss and flow, in one column of charts."""
        wide = width >= WIDE
        room = width - LABEL - 1 - (RIGHT if wide else 0)
        loss, broken = self._loss(reading)
        label = say("loss")
        if not wide:
            label = f"{label} {loss.plain}"
        room_of_loss = room if wide else width - cell_len(label) - 3
        spark = self._sparkline(reading.losses, room_of_loss)
        head = Text(f" {label}" if not wide else f" {label:<{LABEL}}", style="bold red" if broken else "", end="")
        lines = [
            Line(0, head.append(" " * (not wide)).append_text(_padded(spark, room_of_loss, loss if wide else None)))
        ]
        flow = reading.flow
        if flow is None or not flow.names:
            return lines
        strips = _Strips(flow, findings, room)
        ranks = dict(zip(QUANTITIES, (4, 2, 5), strict=True))
        labels = dict(zip(QUANTITIES, (say("signal"), say("gradient"), say("update")), strict=True))
        for quantity in QUANTITIES:
            sizes = strips.sizes(quantity)
            right = Text(_span(flow.sizes[quantity], self._unicode), "dim") if wide else None
            row = Text(f" {labels[quantity]:<{LABEL}}"[: LABEL + 1], end="")
            lines.append(Line(ranks[quantity], row.append_text(_padded(self._strip(sizes, strips.cell), room, right))))
        lines.append(Line(6, self._names(strips, room, wide)))
        self._marked |= bool(strips.odd)
        if self._marked:  # once there, it stays: a panel that changes its height moves what stands above it
            lines.append(Line(7, self._marks(strips, room, wide)))
        return lines

    def _loss(self, reading: Reading) -> tuple[Text, bool]:
        """The loss in words, and whether it is no finite number."""
        if reading.loss is None:
            return Text(say("not seen"), "dim"), False
        broken = not math.isfinite(reading.loss)
        return Text(number(reading.loss), "bold red" if broken else "bold"), broken

    def _sparkline(self, losses: Sequence[float], width: int) -> Text:
        """The course of the loss, one character a stretch, on a log scale where all losses are above zero."""
        text = Text(end="")
        points = _thinned(losses, width)
        finite = [p for p in points if math.isfinite(p)]
        logs = bool(finite) and min(finite) > 0
        largest = max(map(abs, finite), default=0.0) or 1.0
        scaled = [math.log(p) if logs else p / largest for p in finite]
        low, high = (min(scaled), max(scaled)) if scaled else (0.0, 0.0)
        span = high - low
        if span < STILL:  # noise at rest is not to look like a course: it is drawn flat, at half height
            low, span = (low + high) / 2 - STILL * 9 / 16, STILL
        heights = iter(scaled)
        for point in points:
            if math.isfinite(point):
                text.append(self._bars[min(int(8 * (next(heights) - low) / span), 7)], "cyan")
            else:
                text.append(self._sign(BROKEN), "bold red")
        return text

    def _strip(self, sizes: Sequence[float | None], cell: int) -> Text:
        """One character, or several alike, a layer: its height and colour say how far it is below the largest."""
        known = [size for size in sizes if size and math.isfinite(size)]
        largest = max(known, default=1.0)
        text = Text(end="")
        gap = " " * (cell > 1)
        for size in sizes:
            if size is None:
                sign, style = " ", ""
            elif not math.isfinite(size):
                sign, style = self._sign(BROKEN), "bold red"
            elif size == 0:
                sign, style = "0", "bold red"
            else:
                level = max(7 - round(PER_DECADE * (math.log10(largest) - math.log10(size))), 0)
                sign, style = self._bars[level], HEAT[level]
            text.append(sign * max(cell - 1, 1), style).append(gap)
        return text

    def _names(self, strips: "_Strips", room: int, wide: bool) -> Text:
        """Below each layer its name, where the one before leaves room for it."""
        row = [" "] * room
        free = 0
        names = _without_common_part([self._clean(name) for name in strips.names])
        for i, name in enumerate(names):
            name = self._cut(name, NAME)
            at = i // strips.each * strips.cell
            if i % strips.each == 0 and at >= free and at + cell_len(name) <= room:
                row[at : at + cell_len(name)] = [name, *[""] * (cell_len(name) - 1)]
                free = at + cell_len(name) + 1
        text = Text(f" {say('layer'):<{LABEL}}", "dim", end="").append("".join(row))
        return text.append(_fitted(say("at step {step}", step=f"{strips.step:,}"), RIGHT)) if wide else text

    def _marks(self, strips: "_Strips", room: int, wide: bool) -> Text:
        """Which layers stand out, and their names."""
        row = [" "] * room
        for i in strips.odd:
            row[i // strips.each * strips.cell] = "^"
        text = Text(f" {say('odd'):<{LABEL}}", end="").append("".join(row), "bold red")
        if not wide or not strips.odd:
            return text
        names = _without_common_part([self._clean(name) for name in strips.names])
        return text.append(_fitted(_list([self._cut(names[i], NAME - 4) for i in strips.odd], RIGHT), RIGHT), "red")

    def _findings(self, findings: Sequence[Finding]) -> Iterable[Line]:
        if not findings:
            yield Line(3, Text(f" {say('nothing found so far')}", "dim", end=""))
        for i, finding in enumerate(findings[-FINDINGS:]):
            behind = min(len(findings), FINDINGS) - i - 1
            grave = finding.severity == "error"
            sign, style = (self._sign(BROKEN), "bold red") if grave else ("!", "bold yellow")
            text = Text(" ", end="").append(sign, style).append(f" {self._clean(finding.code)}", "bold")
            where = self._clean(places([self._cut(self._clean(name), NAME) for name in finding.where]))
            summary = self._clean(finding.summary)
            yield Line(3 if behind == 0 else 7 + behind, text.append(f"  {where}", "cyan").append(f"  {summary}"))

    def _clean(self, text: str) -> str:
        return clean(text, unicode=self._unicode) or "."

    def _cut(self, name: str, most: int) -> str:
        return shortened(name, most) if self._unicode else name[:most]

    def _sign(self, sign: str) -> str:
        return sign if self._unicode else plain(sign)


class _Strips:
    """Layers as columns: so many cells a layer, or so many layers a cell.

    Attributes:
        step: Of the flow.
        names: The layers.
        cell: Cells of each column.
        each: Layers of each column.
        odd: Numbers of the layers that stand out in any quantity, or at which something was found; of most layers the first alone.
    """

    def __init__(self, flow: Flow, findings: Sequence[Finding], room: int) -> None:
        count = len(flow.names)
        self.step, self.names, self._flow = flow.step, flow.names, flow
        self.each = -(-count // max(room, 1))
        self.cell = max(min(CELL, room // count), 1)
        self._odd = {quantity: odd(flow.sizes[quantity]) for quantity in QUANTITIES}
        where = {
            name for finding in findings for name in finding.where[: 1 if 2 * len(finding.where) > count else None]
        }
        ill = [name in where or any(place.startswith(f"{name}.") for place in where) for name in flow.names]
        self.odd = [i for i in range(count) if ill[i] or any(marks[i] for marks in self._odd.values())]

    def sizes(self, quantity: str) -> list[float | None]:
        """One size a column; of several layers that of the first one which stands out, else of the one in their middle."""
        sizes, marks = self._flow.sizes[quantity], self._odd[quantity]
        found: list[float | None] = []
        for first in range(0, len(sizes), self.each):
            few = range(first, min(first + self.each, len(sizes)))
            found.append(sizes[next((i for i in few if marks[i]), few[len(few) // 2])])
        return found


def _padded(text: Text, room: int, right: Text | None) -> Text:
    text.append(" " * (room - text.cell_len))
    return text if right is None else text.append("  ").append_text(right)


def _fitted(text: str, width: int) -> str:
    return f"  {text}" if cell_len(text) <= width - 2 else f"  {set_cell_size(text, width - 2)}"


def _span(sizes: Sequence[float | None], unicode: bool) -> str:
    known = [size for size in sizes if size is not None and math.isfinite(size)]
    if not known:
        return ""
    low, high = number(min(known)), number(max(known))
    return low if low == high else f"{low} {'…' if unicode else '..'} {high}"


def _list(names: Sequence[str], width: int) -> str:
    """As many of the names as fit, and how many there are besides."""
    for count in range(len(names), 0, -1):
        more = f" +{len(names) - count}" if count < len(names) else ""
        text = ", ".join(names[:count]) + more
        if cell_len(text) <= width - 2 or count == 1:
            return text
    return ""


def _without_common_part(names: Sequence[str]) -> list[str]:
    """The names without the part before a dot that all of them begin with."""
    split = [name.split(".") for name in names]
    common = 0
    if len(names) > 1:
        levels = zip(*(parts[:-1] for parts in split), strict=False)
        common = sum(1 for _ in itertools.takewhile(lambda level: len(set(level)) == 1, levels))
    return [".".join(parts[common:]) for parts in split]


def _thinned(points: Sequence[float], width: int) -> list[float]:
    """At most so many points, each the mean of those it stands for; what is not finite stays."""
    if len(points) <= width:
        return list(points)
    found = []
    for i in range(width):
        few = points[i * len(points) // width : (i + 1) * len(points) // width]
        found.append(sum(few) / len(few))
    return found


def _percent(value: float) -> str:
    return share(value) if value < 0.995 else "100 %"


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"

"""A comparison as text for a terminal: both verdicts, what was changed, what became of the findings, where the layers differ."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from trimtab._messages import say
from trimtab.report.comparison import Comparison, Setting
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
from trimtab.report.finding import Finding
from trimtab.report.outline import SEVERITY_NAMES, place
from trimtab.report.terminal import Parts, printed

_MOST = {"settings": 10, "findings": 6, "layers": 2}


def render_comparison(comparison: Comparison, *, color: bool = False, width: int = 80, unicode: bool = True) -> str:
    """The comparison as text.

    Args:
        comparison: What to render.
        color: Whether to write ANSI colours; nothing is said by colour alone.
        width: Columns of the reader's window; no line is wider.
        unicode: False keeps to ASCII.

    Returns:
        The text, ending in one line end.
    """
    return printed(_Writer(width, unicode).report(comparison), width, color)


class _Writer(Parts):
    """Builds the parts of the comparison."""

    def report(self, comparison: Comparison) -> Iterator[RenderableType]:
        yield self.head(f"{comparison.names[0]} → {comparison.names[1]}", counted(comparison), "trimtab compare")
        yield ""
        yield self.runs(comparison)
        yield ""
        yield self.rule(say("What was set differently"))
        yield from self.settings(comparison)
        yield ""
        yield self.rule(say("Findings"))
        yield from self.findings(comparison)
        if by_step(comparison, _MOST["layers"]):
            yield ""
            yield from self.layers(comparison)
        if comparison.notes:
            yield ""
            for note in comparison.notes:
                yield self.text(note, "dim")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Text | str]], labels: int) -> Table:
        """Rows whose first cell is at most `labels` columns wide."""
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(overflow="fold", max_width=labels)
        rest = max((self.width - labels - 2 * len(head)) // max(len(head) - 1, 1), 8)
        for _ in head[1:]:
            grid.add_column(overflow="fold", max_width=rest)
        for cells in ([self.text(cell, "dim") for cell in head], *rows):
            grid.add_row(*(self.text(cell) if isinstance(cell, str) else cell for cell in cells))
        return grid

    def runs(self, comparison: Comparison) -> Table:
        both = (comparison.a, comparison.b)
        rows: list[list[Text | str]] = []
        for label, tell in ((say("verdict"), verdict), (say("loss, first → last"), course), (say("steps"), steps)):
            cells = [self.text(tell(run), "bold" if tell is verdict else "") for run in both]
            rows.append([self.text(label, "dim"), *cells])
        return self.table(["", *comparison.names], rows, 19)

    def settings(self, comparison: Comparison) -> Iterator[RenderableType]:
        settings = comparison.settings
        if not settings:
            known = say("Nothing that the records know of.")
            yield self.text(known if not comparison.notes else say("Not known."), "dim")
            return
        shown = settings[: _MOST["settings"]]
        rows: list[list[Text | str]] = [
            [self.setting(setting), setting.a or "–", setting.b or "–"] for setting in shown
        ]
        yield self.table(["", *comparison.names], rows, self.width * 2 // 5)
        if len(settings) > len(shown):
            yield self.text(say("and {n} more", n=len(settings) - len(shown)), "dim")

    def setting(self, setting: Setting) -> Text:
        return self.text(f"{WHERE[setting.where]()}: {setting.what}")

    def findings(self, comparison: Comparison) -> Iterator[RenderableType]:
        if not (comparison.gone or comparison.new or comparison.stay):
            yield self.text(say("Neither run has any."), "dim")
            return
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for label, style, those in (
            (say("gone"), "green", [self.named(finding) for finding in comparison.gone]),
            (say("new"), "bold red", [self.named(finding) for finding in comparison.new]),
            (say("still there"), "yellow", [self.named(new, old) for old, new in comparison.stay]),
        ):
            for line in those[: _MOST["findings"]]:
                grid.add_row(self.text(label, style), line)
            if len(those) > _MOST["findings"]:
                grid.add_row(self.text(label, style), self.text(say("and {n} more", n=len(those) - _MOST["findings"])))
        yield grid

    def named(self, finding: Finding, old: Finding | None = None) -> Text:
        """Severity, code and place; what it was before where that differs."""
        line = self.text(SEVERITY_NAMES[finding.severity]()).append(" ").append(self.code(finding))
        if finding.where:
            line.append(" ").append(self.text(place(finding.where)))
        if old is not None and old.severity != finding.severity:
            line.append(" ").append(self.text(say("(was: {severity})", severity=SEVERITY_NAMES[old.severity]())))
        if old is not None and old.where != finding.where:
            where = place(old.where) or say("nowhere in particular")
            line.append(" ").append(self.text(say("(was {places})", places=where)))
        return line

    def layers(self, comparison: Comparison) -> Iterator[RenderableType]:
        yield self.rule(say("Layers that differ most"))
        rows: list[list[Text | str]] = []
        for head, layers in by_step(comparison, _MOST["layers"]):
            rows.append([self.text(head, "dim"), "", "", ""])
            for layer in layers:
                values = [shown_value(value) for value in layer.values]
                rows.append([f"{WHAT[layer.what]()} {layer_name(layer)}", *values, shown_ratio(layer)])
        yield self.table([say("root mean square"), *comparison.names, ""], rows, self.width * 2 // 5)

"""A diagnosis as text for a terminal or a log file: words carry the meaning, colours only help."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from trimtab._messages import say
from trimtab.report.diagnosis import Diagnosis, RunFacts
from trimtab.report.finding import Evidence, Finding, Repair
from trimtab.report.outline import SEVERITY_NAMES, confidence, count, facts, fold, from_here, place
from trimtab.report.pages import codes, title
from trimtab.report.terminal import COLOURS, Parts, printed
from trimtab.report.words import clean, expectation, in_words, measurement, quantity

_MOST = {"evidence": 5, "symptoms": 6, "repairs": 3, "notes": 6, "facts": 4, "roots": 9}


def render_text(diagnosis: Diagnosis, *, color: bool = False, width: int = 80, unicode: bool = True) -> str:
    """The diagnosis as text: the verdict, the numbers, the repair; then what follows from it, notes and the run.

    Args:
        diagnosis: What to render.
        color: Whether to write ANSI colours; nothing is said by colour alone.
        width: Columns of the reader's window; no line is wider.
        unicode: False keeps to ASCII, for streams that cannot take more.

    Returns:
        The report, ending in one line end.
    """
    return printed(_Writer(width, unicode).report(diagnosis), width, color)


class _Writer(Parts):
    """Builds the parts of the report."""

    def report(self, diagnosis: Diagnosis) -> Iterator[RenderableType]:
        groups, notes = fold(diagnosis)
        yield self.header(diagnosis.run.name, groups, notes)
        yield ""
        if not diagnosis.run.finished:
            seen = count(diagnosis.run.steps, "step")
            yield self.text(say("The run had not ended; this is what its first {seen} showed.", seen=seen), "italic")
            yield ""
        if not groups:
            yield self.calm(diagnosis.run)
            yield ""
        several = len(groups) > 1
        if several:
            yield from self.contents([main for main, _ in groups])
            yield ""
        for i, (main, following) in enumerate(groups, start=1):
            if several:
                yield self.rule(say("{i} of {n}", i=i, n=len(groups)))
            yield from self.main(main, confidence(main) if several else "")
            yield from self.following(main, following)
            yield from self.pointers(main)
            yield ""
        if notes:
            yield self.rule(say("Notes: true and harmless"))
            yield from self.notes(notes)
            yield ""
        yield from self.run(diagnosis.run)

    def header(self, run: str, groups: Sequence[tuple[Finding, list[Finding]]], notes: Sequence[Finding]) -> Text:
        found: list[str] = [main.severity for main, _ in groups]
        found += ["consequence" for _, following in groups for _ in following]
        found += ["note" for _ in notes]
        counts = [count(n, what) for what in ("error", "warning", "consequence", "note") if (n := found.count(what))]
        return self.head(run, ", ".join(counts) or say("nothing found"))

    def calm(self, run: RunFacts) -> Text:
        mark = Text().append("✓ " if self.unicode else "OK ", "bold green")
        if run.steps == 0:
            return mark.append(self.text(say("Nothing found; no training step was seen, though.")))
        return mark.append(self.text(say("Nothing found that would keep this network from training.")))

    def main(self, finding: Finding, remark: str = "") -> Iterator[RenderableType]:
        severity = SEVERITY_NAMES[finding.severity]().upper()
        head = title(finding.code) or in_words(finding.code).capitalize()
        at = place(finding.where)
        verdict = Table.grid(padding=(0, 2, 0, 0))
        verdict.add_column(no_wrap=True)
        verdict.add_column(overflow="fold")
        verdict.add_row(self.text(severity, COLOURS[finding.severity]), self.text(head, "bold"))
        where = self.code(finding)
        if at:
            where.append(" ").append(self.text(at, "bold"))
        if remark:
            where.append(" ").append(self.text(remark))
        verdict.add_row("", where)
        yield verdict
        yield ""
        yield self.indented(self.text(finding.summary))
        if finding.evidence:
            yield ""
            yield self.indented(self.evidence(finding.evidence))
        if finding.repairs:
            yield ""
            yield from self.repairs(finding.repairs)

    def named(self, finding: Finding, remark: str = "") -> Text:
        """Return code, place and summary in a row."""
        rest = " ".join(part for part in (remark, place(finding.where)) if part)
        text = self.code(finding)
        if rest:
            text.append(" ").append(self.text(rest))
        return text.append(": ").append(self.text(finding.summary))

    def contents(self, mains: Sequence[Finding]) -> Iterator[Text]:
        yield self.text(say("{roots}:", roots=count(len(mains), "root")), "bold")
        for i, main in enumerate(mains[: _MOST["roots"]], start=1):
            yield self.cut(Text(f"  {i}  ").append(self.named(main, confidence(main))), self.width)
        if len(mains) > _MOST["roots"]:
            yield self.text(say("and {n} more", n=len(mains) - _MOST["roots"]), "dim")

    def evidence(self, evidence: Sequence[Evidence]) -> Table:
        shown = evidence[: _MOST["evidence"]]
        expected = any(expectation(e) for e in shown)
        table = Table.grid(padding=(0, 3, 0, 0))
        table.add_column(overflow="fold")
        table.add_column(overflow="fold", max_width=24)
        table.add_column(overflow="fold", max_width=30)
        heads = [self.text(say("measured"), "dim"), self.text(say("expected") if expected else "", "dim")]
        table.add_row("", *heads)
        for e in shown:
            measured = self.text(quantity(e.measured, e.unit), "bold")
            table.add_row(self.text(measurement(e)), measured, self.text(expectation(e)))
        if len(evidence) > len(shown):
            table.add_row(self.text(say("and {n} more", n=len(evidence) - len(shown)), "dim"))
        return table

    def repairs(self, repairs: Sequence[Repair]) -> Iterator[RenderableType]:
        labels = [say("Repair"), *[say("or")] * (len(repairs) - 1)]
        for label, repair in list(zip(labels, repairs, strict=True))[: _MOST["repairs"]]:
            row = Table.grid(padding=(0, 2, 0, 0))
            row.add_column(no_wrap=True, min_width=max(cell_len(x) for x in labels))
            row.add_column(overflow="fold")
            row.add_row(self.text(label, "bold green"), self.text(repair.summary))
            yield self.indented(row)
            if repair.code:
                code = clean(repair.code.strip("\n"), unicode=self.unicode, lines=True)
                yield ""
                yield self.indented(Text(code, style="cyan", overflow="fold"), 6)
                if repair is not repairs[-1]:
                    yield ""

    def following(self, main: Finding, findings: Sequence[Finding]) -> Iterator[RenderableType]:
        if not findings:
            return
        yield ""
        for finding in findings[: _MOST["symptoms"]]:
            line = Text().append(self.text(say("follows from it:"), "dim")).append(" ")
            line.append(self.named(finding, f"({SEVERITY_NAMES[finding.severity]()})"))
            yield self.indented(self.cut(line, self.width - 2))
        if len(findings) > _MOST["symptoms"]:
            more = say("follows from it: {n} more findings", n=len(findings) - _MOST["symptoms"])
            yield self.indented(self.text(more, "dim"))

    def pointers(self, finding: Finding) -> Iterator[RenderableType]:
        lines = []
        if finding.location is not None:
            lines.append(
                say("Look at {file}:{line}", file=from_here(finding.location.file), line=finding.location.line)
            )
        if finding.code in codes():
            lines.append(say("Why: trimtab explain {code}", code=finding.code))
        elif finding.reference:
            lines.append(say("Why: {reference}", reference=finding.reference))
        if lines:
            yield ""
        gap = "  ·  " if self.unicode else "  -  "
        joined = gap.join(clean(line, unicode=self.unicode) for line in lines)
        for line in [joined] if lines and cell_len(joined) <= self.width - 2 else lines:
            yield self.indented(Text(line if line is joined else clean(line, unicode=self.unicode), "dim"))

    def notes(self, notes: Sequence[Finding]) -> Iterator[RenderableType]:
        for note in notes[: _MOST["notes"]]:
            row = Table.grid(padding=(0, 1, 0, 0))
            row.add_column(no_wrap=True)
            row.add_column(overflow="fold")
            row.add_row("·" if self.unicode else "-", self.named(note))
            yield row
        if len(notes) > _MOST["notes"]:
            yield self.text(say("and {n} more", n=len(notes) - _MOST["notes"]), "dim")

    def run(self, run: RunFacts) -> Iterator[RenderableType]:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        for label, lines in facts(run):
            shown = lines[: _MOST["facts"]]
            if len(lines) > len(shown):
                shown = [*shown, say("and {n} more", n=len(lines) - len(shown))]
            for name, line in zip([label, *[""] * len(shown)], shown, strict=False):
                table.add_row(self.text(name), self.text(line))
        yield self.rule(say("Run"))
        yield table

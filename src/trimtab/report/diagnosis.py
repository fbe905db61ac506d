"""The diagnosis: findings, roots first, and the facts of the run they were made on."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trimtab.report.charts import Charts
from trimtab.report.finding import SEVERITIES, Finding


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a reader wants to know of the run before its findings.

    Attributes:
        name: The script, factory or model the run belongs to.
        models: One line of words for each watched model (its class and number of parameters).
        optimizers: One line of words for each optimizer (class, learning rate and so on).
        steps: Training steps seen.
        recorded: Steps recorded in full.
        first_loss: Loss of the first step, None when no loss was seen.
        last_loss: Mean loss of the last steps, None when no loss was seen.
        watching: Share of the run's time that watching took, None when it was not measured.
        record: Path of the record, None when it was kept in memory.
        unseen: What could not be seen and matters, in words: one line a reason.
        unseen_sites: Every place that could not be seen: "model" (its index), "name", "what" and "reason".
        finished: Whether the run had ended when it was diagnosed.
        history: What has happened to its record: thinned, resumed, left behind by a process that was killed.
    """

    name: str = ""
    models: tuple[str, ...] = ()
    optimizers: tuple[str, ...] = ()
    steps: int = 0
    recorded: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    watching: float | None = None
    record: str | None = None
    unseen: tuple[str, ...] = ()
    unseen_sites: tuple[dict[str, Any], ...] = ()
    finished: bool = True
    history: tuple[str, ...] = ()


def _drawn(charts: Charts) -> Charts:
    return charts


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings of one run, root causes first, each followed by what follows from it.

    Attributes:
        findings: All findings in the order of reading.
        run: Facts of the run.
        draw: Makes the charts of the run when they are asked for; None where there is no record to make them of. A pickled copy has
            the charts in place of the record; JSON and comparison leave them out.
    """

    findings: tuple[Finding, ...] = ()
    run: RunFacts = field(default_factory=RunFacts)
    draw: Callable[[], Charts] | None = field(default=None, repr=False, compare=False)

    @property
    def roots(self) -> tuple[Finding, ...]:
        """The findings that no other finding explains."""
        return tuple(f for f in self.findings if not f.causes)

    @property
    def healthy(self) -> bool:
        """Whether nothing above a note was found."""
        return all(f.severity == "note" for f in self.findings)

    def symptoms(self, root: Finding) -> tuple[Finding, ...]:
        """Return the findings that name `root` among their causes."""
        return tuple(f for f in self.findings if root.code in f.causes)

    def at_least(self, severity: str) -> tuple[Finding, ...]:
        """Return the findings of this severity or a graver one."""
        grave = SEVERITIES[: SEVERITIES.index(severity) + 1]
        return tuple(f for f in self.findings if f.severity in grave)

    def __getitem__(self, code: str) -> Finding:
        for finding in self.findings:
            if finding.code == code:
                return finding
        raise KeyError(code)

    def __contains__(self, code: object) -> bool:
        return any(finding.code == code for finding in self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        from trimtab.report.text import render_text

        return render_text(self)

    def __reduce__(self) -> tuple[type["Diagnosis"], tuple[Any, ...]]:
        return Diagnosis, (self.findings, self.run, None if self.draw is None else partial(_drawn, self.draw()))

    @property
    def charts(self) -> Charts:
        """What there is to see of the run: none where its record is not at hand."""
        return self.draw() if self.draw is not None else Charts()

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain data."""
        return {"healthy": self.healthy, "run": asdict(self.run), "findings": [f.to_dict() for f in self.findings]}

    def to_json(self) -> str:
        """Return the diagnosis as JSON (numbers that JSON has no word for are written as strings)."""
        from trimtab.report.json import render_json

        return render_json(self)

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the diagnosis with its charts as one page of HTML that needs nothing else, no network either.

        Args:
            path: File to write it to; None writes none.

        Returns:
            The page.

        Raises:
            UsageError: The file cannot be written.
        """
        from trimtab.report.html import render_html, write_page

        page = render_html(self)
        if path is not None:
            write_page(page, path)
        return page

    def _repr_html_(self) -> str:
        from trimtab.report.html import notebook_html

        return notebook_html(self)

"""Two runs beside each other: what is gone, new and still there, what their settings differ in, and which layers changed most."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from trimtab.report.diagnosis import Diagnosis
from trimtab.report.finding import Finding
from trimtab.report.panels import PairedCharts

Where: TypeAlias = Literal["model", "start", "data", "loss", "optimizer", "loop"]
"""What of a run a setting belongs to."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Something that was set differently in the two runs.

    Attributes:
        where: What of the run it belongs to.
        what: Its name, in words.
        a: What it is in the first run, in words; "" where the run has no such thing.
        b: What it is in the second run.
    """

    where: Where
    what: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class LayerChange:
    """One layer at the first, or the last, step of both runs.

    Attributes:
        a: Its name in the first run.
        b: Its name in the second run.
        what: "signal" (root mean square of its output) or "gradient" (of the gradient at its output).
        when: Whether it is the first or the last step at which both runs have seen the layer.
        steps: The step in either run; each run's own where they have none in common.
        values: The numbers: infinite where they were not finite.
    """

    a: str
    b: str
    what: Literal["signal", "gradient"]
    when: Literal["first", "last"]
    steps: tuple[int, int]
    values: tuple[float, float]

    @property
    def ratio(self) -> float:
        """The second over the first; infinite where the first alone is zero, NaN where either was not finite."""
        a, b = self.values
        if not (abs(a) < float("inf") and abs(b) < float("inf")):
            return float("nan")
        return b / a if a else float("inf") if b else 1.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs beside each other.

    Attributes:
        names: What the runs are called.
        a: Diagnosis of the first run.
        b: Diagnosis of the second run.
        gone: Findings of the first run that the second has not.
        new: Findings of the second run that the first had not.
        stay: Findings that both have, as they were and as they are: by code, those of equal places first.
        settings: What was set differently.
        layers: Layers that both have, at their first and at their last common step, at each those whose numbers differ most first.
        notes: What a reader must know of the comparison.
        draw: Makes the charts when they are asked for; JSON and comparison leave them out.
    """

    names: tuple[str, str]
    a: Diagnosis
    b: Diagnosis
    gone: tuple[Finding, ...] = ()
    new: tuple[Finding, ...] = ()
    stay: tuple[tuple[Finding, Finding], ...] = ()
    settings: tuple[Setting, ...] = ()
    layers: tuple[LayerChange, ...] = ()
    notes: tuple[str, ...] = ()
    draw: Callable[[], PairedCharts] | None = field(default=None, repr=False, compare=False)

    @property
    def charts(self) -> PairedCharts:
        """The charts of both runs on common scales: none where the records are not at hand."""
        return self.draw() if self.draw is not None else PairedCharts()

    def __str__(self) -> str:
        from trimtab.report.comparison_text import render_comparison

        return render_comparison(self)

    def __reduce__(self) -> tuple[type["Comparison"], tuple[Any, ...]]:
        draw = None if self.draw is None else partial(_drawn, self.draw())
        told = (self.gone, self.new, self.stay, self.settings, self.layers, self.notes)
        return Comparison, (self.names, self.a, self.b, *told, draw)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data: findings by code and places, whole within their run's diagnosis."""
        return {
            "names": list(self.names),
            "gone": [_named(finding) for finding in self.gone],
            "new": [_named(finding) for finding in self.new],
            "stay": [{"a": _named(old), "b": _named(new)} for old, new in self.stay],
            "settings": [asdict(setting) for setting in self.settings],
            "layers": [asdict(layer) | {"ratio": layer.ratio} for layer in self.layers],
            "notes": list(self.notes),
            "runs": [self.a.to_dict(), self.b.to_dict()],
        }

    def to_json(self) -> str:
        """Return the comparison as JSON (numbers that JSON has no word for are written as strings)."""
        from trimtab.report.json import document

        return document(self.to_dict())

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the comparison with the charts of both runs as one page of HTML that needs nothing else.

        Args:
            path: File to write it to; None writes none.

        Returns:
            The page.

        Raises:
            UsageError: The file cannot be written.
        """
        from trimtab.report.html import write_page
        from trimtab.report.html.comparison import render_comparison_html

        page = render_comparison_html(self)
        if path is not None:
            write_page(page, path)
        return page


def _drawn(charts: PairedCharts) -> PairedCharts:
    return charts


def _named(finding: Finding) -> dict[str, Any]:
    return {"code": finding.code, "severity": finding.severity, "where": list(finding.where)}


def sorted_out(
    a: Sequence[Finding], b: Sequence[Finding]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...], tuple[tuple[Finding, Finding], ...]]:
    """What is gone, new, and still there.

    A finding of the one run and one of the other are the same where their codes are; of several with one code, those at the same
    places belong together, and the rest in their order.

    Args:
        a: Findings of the first run.
        b: Findings of the second run.

    Returns:
        Those of `a` alone, those of `b` alone, and the pairs, each in the order of its run.
    """
    partner: dict[int, int] = {}
    for alike in (lambda x, y: (x.code, set(x.where)) == (y.code, set(y.where)), lambda x, y: x.code == y.code):
        for i, old in enumerate(a):
            if i not in partner:
                free = (k for k, new in enumerate(b) if k not in partner.values() and alike(old, new))
                if (k := next(free, None)) is not None:
                    partner[i] = k
    gone = tuple(old for i, old in enumerate(a) if i not in partner)
    new = tuple(finding for k, finding in enumerate(b) if k not in partner.values())
    return gone, new, tuple((a[i], b[k]) for i, k in sorted(partner.items()))

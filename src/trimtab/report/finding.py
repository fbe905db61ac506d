"""What a diagnosis is made of: evidence, repairs, findings."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured number beside the expected one.

    Attributes:
        name: What was measured, in words.
        measured: The measured value.
        expected: What theory, or the run's own noise, lets expect; None where there is no number to expect.
        tolerance: How far `measured` may lie from `expected`, in the same unit; a factor where `unit` is "x".
        unit: Unit of the three numbers, "" for a pure number, "x" for a ratio.
        step: Training step of the measurement; None when it covers the run.
        site: Where it was measured; "" when that is the finding's own place.
    """

    name: str
    measured: float | str
    expected: float | str | None = None
    tolerance: float | None = None
    unit: str = ""
    step: int | None = None
    site: str = ""


@dataclass(frozen=True, slots=True)
class Repair:
    """One change that answers a finding.

    Attributes:
        summary: The change in one sentence.
        code: What the user would write, "" where no code says it better.
    """

    summary: str
    code: str = ""

    def __str__(self) -> str:
        return self.summary


@dataclass(frozen=True, slots=True)
class Location:
    """A line of the user's code."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault or remark.

    Attributes:
        code: The stable code, such as "vanishing-gradient".
        severity: "error": the run is broken; "warning": it costs the run something; "note": true and harmless.
        where: Module or parameter names, or "data", "loss", "optimizer", "loop"; where the fault starts comes first.
        summary: One or two sentences: what is wrong and by how much.
        evidence: The numbers it rests on.
        causes: Codes of the findings that explain this one; empty for a root cause.
        repairs: What mends it, the best first.
        reference: Paper or report that describes the fault.
        location: The line of the user's code to look at, where it is known.
        confidence: How often a root that stands as this one does was the true cause, 0 to 1 (`diagnosis.confidence`); None for notes and
            for what others explain.
    """

    code: str
    severity: Severity
    where: tuple[str, ...]
    summary: str
    evidence: tuple[Evidence, ...] = ()
    causes: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = ()
    reference: str = ""
    location: Location | None = None
    confidence: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data, for JSON."""
        return asdict(self)

"""A procedure that engineers follow by hand, as a list of steps with verdicts."""

import json
import textwrap
from dataclasses import asdict, dataclass
from typing import Literal

import trimtab
from trimtab._messages import say
from trimtab.report.json import strict
from trimtab.report.words import clean

SCHEMA = 1
WIDTH = 80

Verdict = Literal["good", "bad", "open"]


@dataclass(frozen=True, slots=True)
class ProcedureStep:
    """One step.

    Attributes:
        name: What is looked at.
        verdict: "good", "bad", or "open" where nothing can be said, or nothing is wrong with either outcome.
        measured: The number, in words; "" where there is none.
        expected: What it should be, in words; "" where nothing is expected.
        advice: What it means and what to do.
    """

    name: str
    verdict: Verdict
    measured: str
    expected: str
    advice: str


@dataclass(frozen=True, slots=True)
class Procedure:
    """What a procedure found.

    Attributes:
        title: Its name.
        reference: Where it is described.
        steps: The steps in their order.
        finished: Whether all of them were done.
    """

    title: str
    reference: str
    steps: tuple[ProcedureStep, ...]
    finished: bool = True

    @property
    def good(self) -> bool:
        """Whether no step is bad."""
        return all(step.verdict != "bad" for step in self.steps)

    def to_json(self) -> str:
        """Strict JSON: an object with `schema`, `trimtab`, `good` and the fields of this class."""
        document = {"schema": SCHEMA, "trimtab": trimtab.__version__, "good": self.good, **strict(asdict(self))}
        return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        bad = sum(step.verdict == "bad" for step in self.steps)
        right = say("{bad} of {n} steps bad", bad=bad, n=len(self.steps)) if bad else say("no step is bad")
        left = f"trimtab probe {self.title} "
        lines = [f"{left}{'─' * max(WIDTH - len(left) - len(right) - 1, 3)} {right}", ""]
        for number, step in enumerate(self.steps, 1):
            lines += _step(number, step)
        if not self.finished:
            lines += [say("Interrupted: the other steps were not done."), ""]
        lines += textwrap.wrap(say("After {reference}", reference=self.reference), WIDTH)
        return "\n".join(lines) + "\n"


def _step(number: int, step: ProcedureStep) -> list[str]:
    mark = {"good": say("good"), "bad": say("BAD"), "open": say("open")}[step.verdict]
    numbers = step.measured
    if step.expected:
        numbers = say("{measured}; expected {expected}", measured=numbers, expected=step.expected) if numbers else ""
    lines = [f"{number}  {mark:<5} {clean(step.name)}"]
    for text in filter(None, (numbers, step.advice)):
        lines += textwrap.wrap(clean(text), WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 9)
    return [*lines, ""]

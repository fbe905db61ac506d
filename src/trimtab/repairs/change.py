"""A change of a setup as data: its kind and its settings, so that it can be tried anywhere, written down and repeated."""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.repairs.patient import Patient
from trimtab.report import Finding, Repair

Apply = Callable[..., None]
"""`apply(setup, **settings)` changes a fresh setup in place; it raises `RepairError` where the setup has nothing to change."""

Describe = Callable[..., Repair]
"""`describe(**settings)` says the change in one sentence and as the code that the user would write."""

Sample = Callable[[Patient, random.Random], Mapping[str, Any] | None]
"""Settings drawn at random for a patient; None where this kind can change nothing of it."""

Answer = Callable[[Finding, Patient], Iterable["Change"]]
"""Changes that may mend what a finding names, the best first."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of change.

    Attributes:
        apply: Does it to a fresh setup.
        describe: Tells it.
        sample: Draws its settings at random.
    """

    apply: Apply
    describe: Describe
    sample: Sample


@dataclass(frozen=True, slots=True)
class Family:
    """Kinds of change that turn the same screw.

    Attributes:
        name: In words, for the table of trials.
        kinds: Its kinds by name.
        answers: For each code it can answer, which changes to try.
    """

    name: str
    kinds: Mapping[str, Kind]
    answers: Mapping[str, tuple[Answer, ...]]

    def draw(self, patient: Patient, rng: random.Random) -> "Change":
        """A random change of the family: a kind by lot among those that apply, then its settings.

        Args:
            patient: What it is for.
            rng: The lot.

        Returns:
            The change.

        Raises:
            RepairError: None applies.
        """
        names = list(self.kinds)
        rng.shuffle(names)
        for name in names:
            try:
                settings = self.kinds[name].sample(patient, rng)
            except Exception:  # it had not thought of this net: the others can still be drawn
                continue
            if settings is not None:
                return Change(name, dict(settings))
        raise RepairError(f"no change of the family {self.name} applies")


@dataclass(frozen=True, slots=True)
class Change:
    """One change.

    Attributes:
        kind: Which kind.
        settings: Its numbers and names, as JSON has them.
    """

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)

    def apply(self, setup: Setup) -> Setup:
        """Change a fresh setup in place.

        Args:
            setup: The setup, not trained yet.

        Returns:
            The same setup.

        Raises:
            RepairError: It has nothing that this could change.
        """
        _kind(self.kind).apply(setup, **self.settings)
        return setup

    def describe(self) -> Repair:
        """The change as a sentence and code."""
        return _kind(self.kind).describe(**self.settings)

    @property
    def family(self) -> Family:
        """The family it is of."""
        return _home(self.kind)

    @property
    def key(self) -> str:
        """The same for the same change."""
        return json.dumps([self.kind, self.settings], sort_keys=True)


def _home(kind: str) -> Family:
    from trimtab.repairs.families import FAMILIES  # the families are made of changes

    for family in FAMILIES:
        if kind in family.kinds:
            return family
    raise RepairError(f"there is no kind of change {kind!r}")


def _kind(name: str) -> Kind:
    return _home(name).kinds[name]


def together(changes: Iterable[Change]) -> Repair:
    """Several changes told as one repair.

    Args:
        changes: At least one.

    Returns:
        Their sentences and code, one after the other.
    """
    told = [change.describe() for change in changes]
    return Repair("; ".join(r.summary for r in told), "\n".join(r.code for r in told if r.code))


def answers_to(
    finding: Finding, patient: Patient, failed: Callable[[Exception], None] = lambda error: None
) -> Iterator[Change]:
    """Every change that a family has against a finding, the first of each file first.

    Args:
        finding: A root cause.
        patient: The run it was found in.
        failed: Given what a family raises, which proposes nothing more then; the others go on.

    Yields:
        Changes that apply to the patient.
    """
    from trimtab.repairs.families import FAMILIES

    answers = [answer for family in FAMILIES for answer in family.answers.get(finding.code, ())]
    streams = [_guarded(answer, finding, patient, failed) for answer in answers]
    told: set[str] = set()
    while streams:
        for stream in list(streams):
            change = next((c for c in stream if c.key not in told), None)
            if change is None:
                streams.remove(stream)
                continue
            told.add(change.key)
            if patient.takes(change):
                yield change


def _guarded(
    answer: Answer, finding: Finding, patient: Patient, failed: Callable[[Exception], None]
) -> Iterator[Change]:
    """What a family answers, up to an error of its own."""
    try:
        yield from answer(finding, patient)
    except Exception as error:
        failed(error)

"""Which changes are worth proving? Successive halving over what the families propose, one root cause after the other."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from trimtab.repairs.change import Change, answers_to
from trimtab.repairs.patient import Patient
from trimtab.repairs.running import Running
from trimtab.repairs.trials import Job, Outcome
from trimtab.report import Diagnosis, Finding

MOST = 8
"""Candidates a round."""

SHARE = 1 / 3
"""Of a run's steps, for the first rung."""

FINALISTS = 2
"""Candidates a round that are run to the end."""

ROUNDS = 3
"""Root causes that are answered one on top of the other."""

Propose = Callable[[Finding, Patient], Iterable[Change]]
"""Gives changes against a root cause, the best first."""

PatientWith = Callable[[tuple[Change, ...]], Patient]
"""The patient after some changes."""


@dataclass(frozen=True, slots=True)
class Room:
    """Training steps that the search may take.

    Attributes:
        run: Of a whole run.
        begin: No further runs are begun after so many.
        most: No run is begun that would take more: what lies behind is the proof's.
    """

    run: int
    begin: int
    most: int

    def after(self, taken: int) -> "Room":
        """What is left."""
        return Room(self.run, self.begin - taken, self.most - taken)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Changes and what came of them.

    Attributes:
        changes: The changes.
        outcome: Of the longest run that was made of them.
        share: How long that was.
    """

    changes: tuple[Change, ...]
    outcome: Outcome
    share: float

    @property
    def worth(self) -> tuple[bool, float]:
        """To sort by: a run that broke is worth less than any."""
        score = self.outcome.score
        return score is not None, 0.0 if score is None else score


def grave(diagnosis: Diagnosis | None) -> list[Finding]:
    """The root causes that are more than a note.

    Args:
        diagnosis: Of a run; None of one that could not be trained.

    Returns:
        The roots, the gravest first.
    """
    return [] if diagnosis is None else [f for f in diagnosis.roots if f.severity != "note"]


def search(
    diagnosis: Diagnosis,
    patient_with: PatientWith,
    running: Running,
    seed: int,
    room: Room,
    propose: Propose = answers_to,
) -> list[Candidate]:
    """Try what the families propose.

    Args:
        diagnosis: What is wrong.
        patient_with: Gives the patient after some changes.
        running: Does the runs.
        seed: Their seed, which the proof does not use.
        room: Training steps that this may take in all.
        propose: What to try against a root.

    Returns:
        All that was tried, the best first; those run to the end come before the others.
    """
    tried: list[Candidate] = []
    chosen: tuple[Change, ...] = ()
    roots = grave(diagnosis)
    best: Candidate | None = None
    answered: set[str] = set()
    start = running.steps
    for _ in range(ROUNDS):
        open_roots = [root for root in roots if root.code not in answered]
        left = room.after(running.steps - start)
        if not open_roots or left.begin <= 0:
            break
        patient = patient_with(chosen)
        ways = _proposals(open_roots, patient, propose, [change.key for change in chosen])
        answered.update(root.code for root in open_roots)
        found = _halving([(*chosen, way) for way in ways], running, seed, left)
        tried += found
        ahead = [c for c in found if c.share == 1.0 and c.outcome.score is not None]
        if not ahead or (best is not None and ahead[0].worth <= best.worth):
            continue
        best = ahead[0]
        chosen, roots = best.changes, grave(best.outcome.diagnosis)
    return sorted(tried, key=lambda c: (c.share, c.worth), reverse=True)


def _proposals(roots: Sequence[Finding], patient: Patient, propose: Propose, done: Sequence[str]) -> list[Change]:
    """What is proposed against the first root, and beside it the first answers to the others."""
    found: dict[str, Change] = {}
    for place, root in enumerate(roots):
        room = MOST if place == 0 and len(roots) == 1 else MOST - len(roots) + 1 if place == 0 else 1
        for change in islice((c for c in propose(root, patient) if c.key not in done), room):
            found.setdefault(change.key, change)
    return list(found.values())[:MOST]


def _halving(ways: Sequence[tuple[Change, ...]], running: Running, seed: int, room: Room) -> list[Candidate]:
    """A short run of each, then a whole and watched one of the best; few are run whole at once. Those that there is no room for are left out."""
    first: list[Candidate] = []
    start = running.steps
    if len(ways) > FINALISTS:
        many = max(room.most - room.run, 0) // math.ceil(SHARE * room.run)  # and one of them whole
        jobs = [Job(way, seed, SHARE) for way in ways[:many]] if many > 1 else []
        first = [Candidate(job.changes, outcome, SHARE) for job, outcome in zip(jobs, running.run(jobs), strict=True)]
        first.sort(key=lambda c: c.worth, reverse=True)
        ways = [c.changes for c in first if c.outcome.score is not None] if jobs else ways
    left = room.after(running.steps - start)
    ways = ways[: min(FINALISTS, max(left.most // room.run, 0))]
    if not ways or left.begin <= 0:
        return first
    jobs = [Job(way, seed, watched=True) for way in ways]
    last = [Candidate(job.changes, outcome, 1.0) for job, outcome in zip(jobs, running.run(jobs), strict=True)]
    last.sort(key=lambda c: c.worth, reverse=True)
    told = {id(c.changes) for c in last}
    return last + [c for c in first if id(c.changes) not in told]

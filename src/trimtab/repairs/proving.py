"""The proof of a candidate: its runs on paired seeds, beside doing nothing and beside random changes of the same families."""

import math
import random
from collections.abc import Sequence
from contextlib import suppress
from statistics import fmean
from typing import TypeAlias

from trimtab.errors import RepairError
from trimtab.repairs.change import Change, together
from trimtab.repairs.patient import Patient
from trimtab.repairs.proof import as_numbers, gain, level, looks, no_worse
from trimtab.repairs.running import Running
from trimtab.repairs.search import Candidate
from trimtab.repairs.trials import Job, Outcome
from trimtab.report.prescription import Trial

HARM = 0.1
"""Mean harm of random changes, over the gain of the repair, from which on it widens the interval by much."""

DRAWS = 8
"""Random changes that are drawn until one can be made."""

_Arms: TypeAlias = dict[str, dict[int, Outcome]]
"""Outcomes with the repair, without it and of random changes, by seed."""


class Prover:
    """Proves candidates within a budget.

    Args:
        running: Does the runs.
        patient: The run without changes, for which random ones are drawn.
        run_steps: Training steps of one run.
        allowed: Training steps that all runs may take, those before the proof among them.
    """

    def __init__(self, running: Running, patient: Patient, run_steps: int, allowed: int) -> None:
        self._running, self._patient, self._run_steps, self._allowed = running, patient, run_steps, allowed
        self.cut = False
        """Whether the budget ended a proof before it was decided."""

    def prove(self, found: Sequence[Candidate], seeds: int) -> list[Trial]:
        """Prove the best candidate that was run whole, or the next where it is not to be proved; the others are told as they are.

        Args:
            found: Candidates, the best first.
            seeds: Seeds at the first look.

        Returns:
            All of them as trials, the proved one first.
        """
        trials: list[Trial] = []
        rest = list(found)
        while rest and rest[0].share == 1.0 and rest[0].outcome.score is not None:
            proof = self._proof(rest[0], seeds)
            if proof is None:
                break
            trials.append(proof)
            rest.pop(0)
            if proof.proved:
                break
        return sorted(trials, key=lambda t: not t.proved) + [_told(candidate) for candidate in rest]

    def _proof(self, candidate: Candidate, first: int) -> Trial | None:
        """The candidate on paired seeds beside doing nothing and beside random changes; None where the budget has no room for it."""
        arms: _Arms = {"with": {}, "without": {}, "random": {}}
        trial: Trial | None = None
        cut = False
        for count in looks(first):
            wanted = list(arms) if trial is None or _needs_baseline(trial, arms) else ["with", "random"]
            new = range(len(arms["with"]), count)
            while new and self._running.steps + self._cost(wanted, new) > self._allowed:
                new, cut = new[:-1], True
            if not new or (trial is None and len(new) < 2):
                break
            places = [(arm, seed) for arm in wanted for seed in new]
            outcomes = self._running.run([self._job(arm, candidate, seed) for arm, seed in places])
            for (arm, seed), outcome in zip(places, outcomes, strict=True):
                arms[arm][seed] = outcome
            trial = self._judged(candidate, arms, last=count == looks(first)[-1])
            if trial.proved or _hopeless(trial):
                return trial
        self.cut = self.cut or cut
        return trial

    def _cost(self, arms: Sequence[str], seeds: Sequence[int]) -> int:
        """Training steps of the runs, without that of the diagnosis, which is done."""
        done = "without" in arms and 0 in seeds
        return (len(arms) * len(seeds) - done) * self._run_steps

    def _job(self, arm: str, candidate: Candidate, seed: int) -> Job:
        if arm == "without":
            return Job((), seed, watched=seed == 0)  # the diagnosis was made on the first of them
        return Job(candidate.changes if arm == "with" else self._random_changes(candidate, seed), seed)

    def _random_changes(self, candidate: Candidate, seed: int) -> tuple[Change, ...]:
        """A random change of each family that the candidate is of."""
        rng = random.Random(f"{[change.key for change in candidate.changes]} {seed}")
        patient = self._patient
        drawn = []
        for change in candidate.changes:
            for _ in range(DRAWS):  # one that cannot be made is drawn anew
                with suppress(RepairError):  # the family has nothing else for this net: then nothing is changed
                    other = change.family.draw(patient, rng)
                    if patient.takes(other):
                        drawn.append(other)
                        break
        return tuple(drawn)

    def _judged(self, candidate: Candidate, arms: _Arms, last: bool) -> Trial:
        seeds = sorted(arms["with"])
        untrained = dict(zip(seeds, self._running.run([Job((), seed, share=0) for seed in seeds]), strict=True))
        seen = [o.score for arm in (*arms.values(), untrained) for o in arm.values() if o.score is not None]
        floor = min(seen, default=0.0)
        with_it, without, chance, start = (
            as_numbers({seed: o.score for seed, o in arm.items()}, floor)
            for arm in (arms["with"], arms["without"], arms["random"], untrained)
        )
        over_nothing = gain(with_it, no_worse(without, start), last)
        over_random = gain(with_it, no_worse(chance, start, without), last)
        return Trial(
            together(candidate.changes),
            tuple(change.family.name for change in candidate.changes),
            fmean(with_it.values()),
            fmean(without.values()),
            fmean(chance.values()),
            (over_nothing.low, over_nothing.high),
            (over_random.low, over_random.high),
            level(last),
            len(with_it),
            over_nothing.proved and over_random.proved,
            why=next((o.why for o in arms["with"].values() if o.why), ""),
            changes=candidate.changes,
        )


def _needs_baseline(trial: Trial, arms: _Arms) -> bool:
    """Whether doing nothing on further seeds is worth its runs: the gain over it is open, or random changes do harm that it bounds."""
    if trial.interval is None or trial.interval[0] <= 0:
        return True
    pairs = [
        (arms["without"][seed].score, outcome.score)
        for seed, outcome in arms["random"].items()
        if seed in arms["without"]
    ]
    harm = [
        max(nothing - (chance if chance is not None else -math.inf), 0.0)
        for nothing, chance in pairs
        if nothing is not None
    ]
    return bool(harm) and fmean(harm) > HARM * sum(trial.interval) / 2


def _hopeless(trial: Trial) -> bool:
    """Whether no number of seeds can prove it: it is no better than one of the two on average."""
    return any(
        interval is not None and interval[0] + interval[1] <= 0 for interval in (trial.interval, trial.interval_random)
    )


def _told(candidate: Candidate) -> Trial:
    """A candidate that did not come to a proof."""
    return Trial(
        together(candidate.changes),
        tuple(change.family.name for change in candidate.changes),
        candidate.outcome.score if candidate.share == 1.0 else None,
        share=candidate.share,
        why=candidate.outcome.why,
        changes=candidate.changes,
    )

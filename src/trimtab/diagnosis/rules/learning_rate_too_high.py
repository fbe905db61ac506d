"""`learning-rate-too-high`: the steps are longer than the loss surface allows."""

from collections.abc import Iterator

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.rules.dead_units import died_in_training
from trimtab.diagnosis.view import View, relative_updates
from trimtab.report import Evidence, Finding, Repair

GROWTH = 10.0
"""Loss over the first loss: a step within the stable range (eta * lambda_max < 2) lowers the loss; noise does not raise it tenfold."""

SIGNED = 1e4
"""The same for losses that may be negative, over the first loss or 1: they pass through zero, so only a flight counts."""

LARGE = 0.3
"""Relative update of a weight, at any step of a run whose loss has grown, or in the median of one that does not settle: a rate that
trains moves weights by about a thousandth, and a loss that jumps without such a step has got another batch."""

KILLS = 0.03
"""The same over the first steps, where whole layers of rectifiers died in training: thirty times a rate that trains."""

EARLY = 20


def find(view: View) -> Iterator[Found]:
    """The loss grew manifold from a sound start, while the updates were a large share of the weights."""
    record = view.record
    seen = record.loss_seen
    losses, steps = record.losses[seen], record.loss_steps[seen]
    if len(losses) < 3 or not np.isfinite(losses[0]) or view.learned:
        return
    first = float(losses[0])
    finite = losses[np.isfinite(losses)]
    signed = bool(
        (finite < 0).any()
    )  # a critic's score or a likelihood: its size at the start says nothing of its scale
    scale, limit = (max(abs(first), 1.0), SIGNED) if signed else (max(abs(first), 1e-12), GROWTH)
    grown = np.flatnonzero(np.abs(finite) > limit * scale)
    rate = _rate(view)
    jumps = _jumps(view)
    large = float(np.nanmax(jumps)) if len(jumps) and np.isfinite(jumps).any() else 0.0
    diverged = len(grown) > 0 and not (large < LARGE and view.progress.nonfinite is None)
    restless = view.progress.gained < 0.2 and len(jumps) > 0 and float(np.nanmedian(jumps)) > LARGE
    died = died_in_training(view) if early_jump(view) > KILLS else None
    if not diverged and not restless and died is None:
        return
    begins = int(steps[np.isfinite(losses)][grown[0]]) if diverged else 1
    starts = _first_large(view)  # what such steps broke on the way follows from them
    if diverged or died is not None:
        starts = max(min(begins - 1, starts), 0)
    largest = float(np.abs(finite).max())
    nonfinite = view.progress.nonfinite
    evidence = [
        Evidence(say("largest loss over the first"), largest / scale, 1.0, limit, "x", begins),
        Evidence(say("learning rate"), rate) if rate is not None else None,
        Evidence(say("largest update over its weight, a step"), large, 1e-3, LARGE),
    ]
    what = (
        say(
            "The loss went from {first:.3g} to {largest:.3g} within {steps} steps",
            first=first,
            largest=largest,
            steps=begins + 1,
        )
        if diverged
        else say("The loss does not settle")
        if died is None
        else say("Large steps have switched whole layers of units off for good by step {step}", step=died)
    )
    if nonfinite is not None:
        what += say(" and was no number from step {step} on", step=nonfinite)
    yield Found(
        Finding(
            code="learning-rate-too-high",
            severity="error",
            where=("optimizer",),
            summary=say(
                "{what}: one step changes a weight by up to {large:.2g} of its size, more than the loss surface allows.",
                what=what,
                large=large,
            ),
            evidence=tuple(e for e in evidence if e is not None),
            repairs=(
                Repair(
                    say("Lower the learning rate tenfold, and again until the loss falls from the first steps on"),
                    f"optimizer = {view.optimizer}(model.parameters(), lr={(rate or 0.1) / 10:g})",
                ),
                Repair(say("Warm the rate up over the first steps, or clip rare large gradients")),
            ),
            location=view.place("step"),
        ),
        starts,
    )


def early_jump(view: View) -> float:
    """Median relative update of the weights over the first steps.

    Args:
        view: The record.

    Returns:
        The number, 0 where no update was seen.
    """
    found = [relative_updates(layer)[:EARLY] for layer in view.layers if len(layer.updates)]
    values = np.concatenate(found) if found else np.zeros(0)
    values = values[np.isfinite(values) & (values > 0)]
    return float(np.median(values)) if len(values) else 0.0


def _first_large(view: View) -> int:
    """The first recorded step that changed a weight by more than `LARGE` of its size, the number of steps when none did."""
    found = []
    for layer in view.layers:
        if len(layer.updates):
            steps = np.intersect1d(layer.values.steps, layer.updates.steps)
            found += steps[relative_updates(layer) > LARGE].tolist()[:1]
    return min(found, default=view.record.step_count)


def _jumps(view: View) -> np.ndarray:
    """Relative updates of all weight layers at all recorded steps with numbers in them."""
    found = [relative_updates(layer) for layer in view.layers if len(layer.updates)]
    values = np.concatenate(found) if found else np.zeros(0)
    return values[np.isfinite(values)]


def _rate(view: View) -> float | None:
    rates = view.record.rates[np.isfinite(view.record.rates)]
    return float(rates.max()) if len(rates) else None

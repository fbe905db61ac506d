"""`learning-rate-too-low`: the run moves in the right direction and hardly moves."""

import math
from collections.abc import Iterator

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.flow import flows
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair

PATH = 0.05
"""Path of the best moving weight over the whole run, relative to the weight. The features of a network change when weights move by
a sizeable share of themselves; a twentieth is still the linear regime of the start."""

GAINED = 0.15
"""Share of the first loss that may be gone at the end for the run to count as one that did not get going."""

LONG = 100
"""Steps before a run can be called slow: shorter ones are trials, or fine-tunings under a warm-up."""

STEADY = 0.5
"""Gradient norm at the end over that at the start: still as steep as at the start, so not at a minimum."""

OVER = 1e-3
"""Learning rate over its largest value: below this a schedule has ended the training."""

SPENT = 0.3
"""Share of the run that a schedule spends there while the loss is still high."""


def find(view: View) -> Iterator[Found]:
    """Too short a path for the run, or a schedule that ended it early."""
    progress = view.progress
    if (
        progress.steps < 20
        or progress.nonfinite is not None
        or progress.rose
        or progress.worst > 10 * abs(progress.first)
    ):
        return
    found = _scheduled(view)
    if found is None:
        found = _short(view)
    if found is not None:
        yield found


def _scheduled(view: View) -> Found | None:
    ends = [_end(steps, rates) for steps, rates in _rates_by_optimizer(view)]
    steps = view.record.step_count
    if view.learned or not ends or None in ends:  # as long as one optimizer goes on, the run is not over
        return None
    ended, last, first = max(end for end in ends if end is not None)
    share = (steps - ended) / steps
    if share < SPENT:
        return None
    return Found(
        Finding(
            code="learning-rate-too-low",
            severity="error",
            where=("optimizer", "loop"),
            summary=say(
                "The schedule has taken the learning rate from {first:.3g} to {last:.3g} by step {step} of {steps}: {share:.0%} of the run trains nothing, "
                "with {left:.0%} of the loss still there.",
                first=first,
                last=last,
                step=ended,
                steps=steps,
                share=share,
                left=1 - max(view.progress.gained, 0.0),
            ),
            evidence=(
                Evidence(
                    say("share of the steps with a rate under a thousandth of its largest"),
                    share,
                    0.0,
                    SPENT,
                ),
                Evidence(say("learning rate from there on"), last, first),
            ),
            repairs=(
                Repair(
                    say("Step the scheduler once per epoch, not once per batch, or give it its lengths in steps"),
                    "for epoch in range(epochs):\n    for batch in loader:\n        ...\n    scheduler.step()",
                ),
            ),
            location=view.place("step"),
        ),
        ended,
    )


def _rates_by_optimizer(view: View) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Steps and learning rates of each optimizer, or set of optimizers, that stepped."""
    record = view.record
    seen = np.isfinite(record.rates) & (record.stepped > 0)
    for who in np.unique(record.stepped[seen]):
        own = seen & (record.stepped == who)
        yield record.loss_steps[own], record.rates[own]


def _end(steps: np.ndarray, rates: np.ndarray) -> tuple[int, float, float] | None:
    """The step from which a rate stays under a thousandth of its largest, the rate then, and the largest."""
    alive = np.flatnonzero(rates >= OVER * rates.max())
    after = alive[-1] + 1
    if rates.max() <= 0 or after == len(rates):
        return None
    return int(steps[after]), float(rates[after]), float(rates.max())


def _short(view: View) -> Found | None:
    moved = [view.movement(layer) for layer in view.layers if len(layer.updates)]
    gained = (view.progress.first - view.progress.last) / abs(view.progress.first or 1.0)
    if not moved or view.progress.steps < LONG or gained > GAINED or _is_fitted(view):
        return None
    path = max(moved)
    steepness = _steepness(view)
    if path > PATH or path == 0 or steepness is None or steepness < STEADY or not _downhill(view):
        return None
    rate = float(np.nanmax(view.record.rates)) if np.isfinite(view.record.rates).any() else 0.0
    return Found(
        Finding(
            code="learning-rate-too-low",
            severity="error" if view.progress.gained < GAINED / 2 else "warning",
            where=("optimizer",),
            summary=say(
                "Over {steps} steps no weight has moved by more than {path:.2g} of its size, and the gradient is as steep as at the start ({steepness:.2g} times): "
                "the run goes downhill and hardly moves.",
                steps=view.record.step_count,
                path=path,
                steepness=steepness,
            ),
            evidence=(
                Evidence(say("path of the best moving weight over its size"), path, 1.0, PATH),
                Evidence(say("gradient norm at the end over that at the start"), steepness, 0.0, STEADY, "x"),
                Evidence(say("learning rate"), rate),
                Evidence(say("share of the first loss that is gone"), view.progress.gained, 1.0),
            ),
            repairs=(
                Repair(
                    say("Raise the learning rate tenfold, and again until the loss falls at once"),
                    f"lr = {rate * 10:.3g}",
                ),
            ),
            location=view.place("step"),
        )
    )


def _is_fitted(view: View) -> bool:
    """Whether the run began with a loss far below that of a constant answer: weights that were trained before."""
    return bool(view.progress.first < 0.5 * view.constant_answer) and math.isfinite(view.constant_answer)


def _steepness(view: View) -> float | None:
    """Norm of the gradient before any clipping, late over early."""
    squares = np.zeros(len(view.record.steps))
    for site in view.sites("raw-gradient"):
        squares += view.record.squares(site.index)
    there = squares[squares > 0]
    if len(there) < 4:
        return None
    few = max(2, len(there) // 4)
    return float(np.sqrt(np.median(there[-few:]) / np.median(there[:few])))


def _downhill(view: View) -> bool:
    """Whether no layer's gradient is missing: a vanished gradient moves nothing at any rate."""
    return all(flow.log_total > -(flow.tolerance + 2) for flow in flows(view))

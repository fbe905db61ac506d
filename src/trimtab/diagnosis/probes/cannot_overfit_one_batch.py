"""Can a copy of the model learn a handful of samples by heart?

Karpathy's third step. The optimizer is not the setup's own: whether model, data and loss are wired so that they can be fitted at all is
asked apart from the rates. What then remains of a run that does not learn is its optimizer and its loop.
"""

import copy
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trimtab._setup import Setup
from trimtab.diagnosis.probes.calls import Declined, Drawn, facts_of, seeded, without_dropout
from trimtab.diagnosis.probes.copies import Course, copied, descend, samples_of, trained
from trimtab.recording.graph import loss_target
from trimtab.recording.walk import tensors

SAMPLES = 12
"""Samples that are learnt by heart: Karpathy's "only a few"; more than the classes of most batches, fewer than any net holds."""

RATES = (1e-3, 1e-2)
"""Rates of Adam that are tried in turn, the usual one first."""

STEPS = 120
"""Steps with each rate."""

SECONDS = 20.0
"""Time after which a trial of a large model is given up, without a verdict."""

FITS = 0.1
"""Share of what a constant answer gets, down to which the loss counts as near its floor."""

STUCK = 0.25
"""Share that must be left at each rate for the batch to count as one that cannot be learnt."""

STILL = 0.05
"""Share of the loss that the last third of the best trial may take off for it to have come to an end."""

STANDS = 0.9
"""Share that must be left of the first loss, where it is not known what a constant answer gets; and of the latter while it still falls."""


def probe(
    setup: Setup, drawn: Drawn, seconds: float = SECONDS, told: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Train a copy on a few samples: dropout off, no weight decay, the parameters that the setup's optimizers hold.

    Args:
        setup: The setup; everything is as it was afterwards.
        drawn: Its first batches.
        seconds: Time for all of it.
        told: Told steps done and all steps.

    Returns:
        "first", "lowest", "rate" (that of the lowest), "steps", "samples" (None for the whole batch), "constant": the loss of the best
        constant answer on these samples, None where it is not known; and "verdict": "fits", "stuck" (no rate brings the loss down) or
        "open" (the time was over, or the loss came down and not to its floor). Or "declined".
    """
    return facts_of(lambda: _probe(setup, drawn, seconds, told))


def _probe(setup: Setup, drawn: Drawn, seconds: float, told: Callable[[int, int], None] | None) -> dict[str, Any]:
    with copied(setup) as trial:
        batch, samples = _few(trial, drawn.batches[0])
        parameters = trained(trial)
        if not parameters:
            raise Declined("no optimizer holds a parameter that needs a gradient")
        constant = _constant_answer(trial, batch)
        weights = copy.deepcopy(trial.model.state_dict())
        until, first, rate, steps = time.perf_counter() + seconds, math.nan, RATES[0], 0
        best, course = Course([], ""), Course([], "")
        for tried, lr in enumerate(RATES):
            trial.model.load_state_dict(weights)
            trial.model.train()
            without_dropout(trial.model)
            seeded()
            goal = -math.inf if constant is None else FITS * constant
            optimizer = torch.optim.Adam(parameters, lr=lr)
            tell = (
                None
                if told is None
                else (lambda done, _, before=tried: told(before * STEPS + done, len(RATES) * STEPS))
            )
            course = descend(trial, batch, optimizer, STEPS, goal=goal, until=until, told=tell)
            first = course.losses[0] if math.isnan(first) else first
            steps += len(course.losses)
            if course.lowest < best.lowest:
                best, rate = course, lr
            if course.ended in ("fits", "time") or best.lowest < FITS * abs(first):
                break
        return {
            "first": first,
            "lowest": best.lowest,
            "constant": constant,
            "rate": rate,
            "steps": steps,
            "samples": samples,
            "verdict": _verdict(first, best, constant, course.ended),
        }


def _verdict(first: float, best: Course, constant: float | None, ended: str) -> str:
    lowest = best.lowest
    if not math.isfinite(lowest):
        return "stuck"
    if ended == "fits" or (constant is not None and lowest <= FITS * constant):
        return "fits"
    if constant is None and 0 <= lowest < FITS * first:
        return "fits"
    if ended != "time" and constant is not None and lowest > STANDS * constant:
        return "stuck"  # coming down still, to what a constant answer gets
    before = min(best.losses[: -(len(best.losses) // 3) or None])
    if ended == "time" or before - lowest > STILL * abs(before):
        return "open"
    left = lowest > STUCK * constant if constant is not None else lowest > first - (1 - STANDS) * abs(first)
    return "stuck" if left else "open"


def _few(setup: Setup, batch: Any) -> tuple[Any, int | None]:
    """A few samples of the batch where it can be had without the others, and is not the same sample over and over."""
    few = samples_of(batch, SAMPLES)
    if few is None:
        return batch, None
    try:
        with torch.no_grad():
            setup.loss(setup.model, few)
    except Exception:  # a size that is written down in the model
        return batch, None
    return few, SAMPLES


def _constant_answer(setup: Setup, batch: Any) -> float | None:
    """What the best answer gets that does not look at the input: the entropy of the labels, the variance of the targets."""
    seeded()
    setup.model.train()
    without_dropout(setup.model)
    try:
        with torch.enable_grad():
            loss = setup.loss(setup.model, batch)
    except Exception as error:
        raise Declined(f"the loss of a copy cannot be computed ({type(error).__name__})") from error
    target = loss_target(loss)
    known = loss.grad_fn is not None and loss.grad_fn.name().startswith(("NllLoss", "MseLoss"))
    if target is None or not known:
        return None
    if target.is_floating_point():
        return float((target - target.mean(0)).square().mean()) or None
    return _entropy(target[target >= 0]) if not _repeats(batch) else None


def _entropy(labels: Tensor) -> float | None:
    shares = torch.unique(labels, return_counts=True)[1].double() / max(labels.numel(), 1)
    return float(-(shares * shares.log()).sum()) or None


def _repeats(batch: Any) -> bool:
    """Whether samples are given more than once, which may ask for more than one answer."""
    main = next(tensors(batch))
    return main.ndim > 0 and len(torch.unique(main.reshape(main.shape[0], -1), dim=0)) < main.shape[0]

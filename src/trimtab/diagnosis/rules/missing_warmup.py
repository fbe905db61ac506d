"""`missing-warmup`: the first steps of a transformer under Adam, taken at the full rate, break it for good."""

from collections.abc import Iterator

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.rules.attention_logit_growth import has_closed
from trimtab.diagnosis.rules.learning_rate_too_high import LARGE
from trimtab.diagnosis.rules.norm_placement import WARM, post_norms
from trimtab.diagnosis.view import View, relative_updates
from trimtab.report import Evidence, Finding, Repair

BIG = 0.1
"""Update over its weight in the first three steps, in the median over the layers: a hundred times a step that trains. Adam's first step
is the rate itself in every entry, whatever the gradient."""

WHOLE = 1.0
"""The same from which on the rate is too high for any step."""

SETTLES = 3.0
"""How many times the later updates that has to be. A rate that is too high for good moves the weights as far later on."""

EARLY = 0.1
"""Share of the run that counts as its beginning, as in the tuning playbook."""

JUMPS = 0.05
"""Share of the first loss by which it is above it at its highest in that beginning: three times what batches make of a first loss."""

LEFT = 0.2
"""Share of the loss that the run takes off at its best: what was broken in the beginning stays so. A run that learns and breaks later has
another fault."""

RISES_ON = 3.0
"""How many times what it was in the beginning the largest logit of an attention that closes may become: one that grows on does so at every
step, and not for those at the start."""

STARTS_SLOWLY = {"RAdam"}
"""Adaptive optimizers that warm up by themselves."""


def find(view: View) -> Iterator[Found]:
    """A run that jumps up in its first steps and stays there, with updates that were large in the beginning only."""
    progress, steps = view.progress, view.record.step_count
    if view.learned or view.before_training or progress.nonfinite is not None or steps < 1 / EARLY:
        return
    best = (progress.baseline - progress.best) / abs(progress.baseline) if progress.baseline else 0.0
    if best >= LEFT or not _is_open_to_it(view):
        return
    early = max(int(EARLY * steps), 3)
    jump = _jump(view, early)
    first, later = _updates(view, early)
    if (
        jump < JUMPS
        or not BIG <= first <= WHOLE
        or later > LARGE
        or first < SETTLES * later
        or _closes_later(view, early)
    ):
        return
    yield Found(_finding(view, first, later, jump), 1)


def _is_open_to_it(view: View) -> bool:
    """Whether it is a transformer, or norms stand behind residual sums, under an Adam whose rate is full from the first step on."""
    rates = view.record.rates[np.isfinite(view.record.rates)]
    slow = any(STARTS_SLOWLY & set(facts.get("bases", ())) for facts in view.record.optimizers)
    if not view.adaptive or slow or not len(rates) or rates[0] < WARM * rates.max():
        return False
    return bool(view.attentions) or any(post_norms(view, model) for model in view.active)


def _jump(view: View, early: int) -> float:
    """How far the loss rises above its first within the first steps, as a share of it."""
    seen = view.record.loss_seen
    losses, steps = view.record.losses[seen], view.record.loss_steps[seen]
    first, beginning = abs(view.first_loss), losses[(steps > 0) & (steps <= early)]
    return (float(beginning.max()) - view.first_loss) / first if len(beginning) and first else 0.0


def _updates(view: View, early: int) -> tuple[float, float]:
    """Update over its weight, in the median over the layers: over the first three steps, and over those behind the beginning."""
    first: list[float] = []
    later: list[float] = []
    for layer in view.layers:
        if len(layer.updates) and len(layer.values):
            steps = np.intersect1d(layer.values.steps, layer.updates.steps)
            sizes = relative_updates(layer)
            for found, when in ((first, steps < 3), (later, steps > early)):
                chosen = sizes[when & np.isfinite(sizes)]
                found += [float(np.median(chosen))] if len(chosen) else []
    return (float(np.median(first)), float(np.median(later))) if first and later else (0.0, 0.0)


def _closes_later(view: View, early: int) -> bool:
    """Whether an attention closes whose logits go on growing long after the first steps: then these are not the reason."""
    for course in view.attentions:
        begun = course.largest[course.steps <= early]
        if len(begun) and has_closed(course) and course.largest[-1] > RISES_ON * begun.max():
            return True
    return False


def _finding(view: View, first: float, later: float, jump: float) -> Finding:
    rates = view.record.rates[np.isfinite(view.record.rates)]
    rate, steps = float(rates.max()), view.record.step_count
    return Finding(
        code="missing-warmup",
        severity="error",
        where=("optimizer",),
        summary=say(
            "The first steps change a weight by {first:.2g} of its size, {times:.0f} times as far as later ones, at the full rate of {rate:.2g}: the loss jumps "
            "{jump:.0%} above its start within them and stays at {last:.3g}.",
            first=first,
            times=first / later if later else float("inf"),
            rate=rate,
            jump=jump,
            last=view.progress.last,
        ),
        evidence=(
            Evidence(say("update over its weight in the first three steps"), first, 1e-3, BIG, "x"),
            Evidence(say("the same behind the first tenth of the run"), later, first, first / SETTLES, "x"),
            Evidence(say("first learning rate over the largest"), float(rates[0] / rate), 0.0, WARM),
            Evidence(say("rise of the loss above its first within the first tenth"), jump, 0.0, JUMPS),
            Evidence(say("share of the loss that is gone"), view.progress.gained, 1.0),
        ),
        repairs=(
            Repair(
                say("Warm the rate up linearly over the first steps, and step the schedule after each step"),
                f"scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / {max(steps // 10, 10)}))",
            ),
            Repair(say("Or lower the learning rate, and put each norm inside its branch (pre-norm)")),
        ),
        reference="Xiong et al. 2020, arXiv:2002.04745; Liu et al. 2020, arXiv:1908.03265; Deep Learning Tuning Playbook, optimization failures",
        location=view.place("step"),
    )

"""`stale-running-stats`: the statistics that batch normalization keeps for evaluation are not those of the data."""

from collections.abc import Iterator, Sequence

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.batch_norms import BatchNorm
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.modes import evidence_by_mode
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair, Severity

OFFSET = 0.5
"""Distance of the running mean from the batches' mean, in standard deviations and beyond chance: half of what a norm brings every
channel to. Runs whose statistics follow stay below 0.15."""

STRETCH = 2.0
"""Running variance over that of the batches, or the other way round. Runs whose statistics follow stay within 1.15."""

LEFT = 0.1
"""Share of the initial mean 0 and variance 1 that is still in the running statistics, above which the momentum is too small."""


def find(view: View) -> Iterator[Found]:
    """Running statistics far from the batches' own, in a run that trains with them or evaluates worse by them."""
    off = [norm for norm in view.batch_norms if is_off(norm)]
    if not off:
        return
    ignoring = [norm for norm in off if not norm.normalizes_by_batch]
    if ignoring and (not view.learned or any(norm.left_training for norm in ignoring)):
        yield Found(_finding(view, ignoring, "warning" if view.learned else "error"), _first_ignoring(ignoring))
        return
    off = [norm for norm in off if norm.normalizes_by_batch]
    if not off or (view.evaluation and not view.healed):
        return
    never = any(_never_follows(view, norm) for norm in off)  # else they lag behind weights that move too fast
    severity: Severity = "error" if not view.learned or (never and view.healed) else "warning"
    yield Found(_finding(view, off, severity), 0 if never else int(off[0].steps[off[0].late[0]]))


def _never_follows(view: View, norm: BatchNorm) -> bool:
    """Whether its momentum is zero, or too small for the steps of the run."""
    return norm.momentum is not None and _left(view, norm.momentum) > LEFT


def _left(view: View, momentum: float) -> float:
    """Share of the initial statistics that the updates of the run leave."""
    return float((1 - momentum) ** view.record.step_count)


def is_off(norm: BatchNorm) -> bool:
    """Whether running statistics are far from the batches' own.

    Args:
        norm: The normalization.

    Returns:
        True where either of them is; False where there are none, or too few late looks.
    """
    return norm.offset > OFFSET or norm.stretch > STRETCH or norm.stretch < 1 / STRETCH


def _first_ignoring(norms: Sequence[BatchNorm]) -> int:
    return min(int(norm.steps[~norm.training][0]) for norm in norms)


def _finding(view: View, off: list[BatchNorm], severity: Severity) -> Finding:
    worst = max(off, key=lambda norm: max(norm.offset, abs(np.log(norm.stretch))))
    names = tuple(view.name(norm.model, norm.name) for norm in off)
    why, repair, places = _why(view, off, worst)
    name = view.name(worst.model, worst.name)
    step = int(worst.steps[-1])
    return Finding(
        code="stale-running-stats",
        severity=severity,
        where=(*places, *names),
        summary=say(
            "The running statistics of {name} are not those of its input: the means lie {offset:.2g} standard deviations apart, the "
            "variance is {stretch:.3g} times that of the batches. {why}",
            name=name,
            offset=worst.offset,
            stretch=worst.stretch,
            why=why,
        ),
        evidence=(
            Evidence(
                say("running mean from the batches' mean, in standard deviations"),
                worst.offset,
                0.0,
                OFFSET,
                "",
                step,
                name,
            ),
            Evidence(say("running variance over that of the batches"), worst.stretch, 1.0, STRETCH, "x", step, name),
            *evidence_by_mode(view),
        ),
        repairs=(
            repair,
            Repair(
                say("Compute the running statistics anew from the training data before you evaluate"),
                "trimtab.norms.recalibrate(model, loader)",
            ),
        ),
        reference="Ioffe & Szegedy 2015, arXiv:1502.03167, section 3.1; Wu & Johnson 2021, arXiv:2105.07576",
        location=view.place("forward"),
    )


def _why(view: View, off: list[BatchNorm], worst: BatchNorm) -> tuple[str, Repair, tuple[str, ...]]:
    """What keeps them from following, what mends that, and where it lies."""
    if not worst.normalizes_by_batch:
        whole = not any(info["training"] for info in view.record.info[-len(view.record.info) // 3 :])
        why = say(
            "Training normalizes by them: from step {step} on the layer was in evaluation mode, while the weights in front of it changed.",
            step=_first_ignoring(off),
        )
        repair = Repair(
            say("Put the model back into training mode after each evaluation, at the start of each epoch at least"),
            "model.train()",
        )
        return why, repair, ("loop",) if whole else ()
    momentum = worst.momentum
    follow = Repair(
        say("Let them follow: the usual momentum, which is the weight of the newest batch"),
        "norm.momentum = 0.1",
    )
    if momentum == 0:
        return say("With momentum 0 they never move, while training normalizes by each batch's own."), follow, ()
    if momentum is not None and _never_follows(view, worst):
        why = say(
            "With momentum {momentum:g} the {updates} steps leave {left:.0%} of the initial mean 0 and variance 1 in them.",
            momentum=momentum,
            updates=view.record.step_count,
            left=_left(view, momentum),
        )
        return why, follow, ()
    return say("Training normalizes by each batch's own, evaluation by these."), follow, ()

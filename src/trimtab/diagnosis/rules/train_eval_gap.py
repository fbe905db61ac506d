"""`train-eval-gap`: the net answers otherwise in evaluation mode than in training, though its statistics are up to date."""

from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.batch_norms import BatchNorm
from trimtab.diagnosis.batches_alike import ALIKE, scatter_of_means
from trimtab.diagnosis.dropout_shift import Shift, dropout_shifts
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.modes import evidence_by_mode
from trimtab.diagnosis.rules.small_batch_batchnorm import HARDLY, values
from trimtab.diagnosis.rules.stale_running_stats import is_off
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair, Severity

FORGETS = 0.5
"""Momentum from which on the running statistics are those of the last batch or two."""

JITTER = 0.1
"""Variance of the running mean over that within a batch, a/(2-a)/m for momentum a and m values: a third of a standard deviation."""

SHIFT = 1.3
"""Variance in training over that in evaluation, from which on dropout counts as the reason of a gap that has been seen."""

LARGE_SHIFT = 2.0
"""The same where no evaluation has been seen, or the run does not learn."""


UNEXPLAINED = 0.5
"""Share of the first loss that evaluation must cost where nothing explains it: steps that are still large, or batches of uneven
weight, leave smaller gaps that pass."""


def find(view: View) -> Iterator[Found]:
    """Unlike batches, forgetful statistics, dropout in front of a norm; or a gap without any of these."""
    norms = [norm for norm in view.batch_norms if norm.normalizes_by_batch and norm.keeps]
    if not norms or view.before_training:
        return
    found = _unlike_batches(view) or _forgets(view, norms) or _dropout(view, norms)
    if found is not None:
        yield Found(found)
    elif (other := _other(view, norms)) is not None:
        yield Found(other, view.record.step_count)  # seen at the end, and only there


def _unlike_batches(view: View) -> Finding | None:
    """Batches whose means scatter far more than those of shuffled samples."""
    scatter, step = scatter_of_means(view)
    if not scatter > ALIKE or (view.learned and not view.evaluates_worse):
        return None
    return _finding(
        view,
        "error",
        ("data",),
        say(
            "The batches are not alike: their means scatter {scatter:.3g} times as much as those of shuffled samples. Batch normalization "
            "takes from each what tells it from the others, and evaluation, which normalizes by all of them, sees other inputs.",
            scatter=scatter,
        ),
        [Evidence(say("variance of the batches' means over that of shuffled samples"), scatter, 1.0, ALIKE, "x", step)],
        Repair(
            say("Shuffle the samples, not the batches, so that each batch holds a bit of everything"),
            "DataLoader(dataset, batch_size=32, shuffle=True)",
        ),
    )


def _forgets(view: View, norms: list[BatchNorm]) -> Finding | None:
    """A momentum that keeps little but the last batch."""
    hasty = [norm for norm in norms if (norm.momentum or 0.0) >= FORGETS]
    if not hasty:
        return None
    worst = max(hasty, key=lambda norm: norm.memory * norm.between if norm.between == norm.between else 0.0)
    jitter = worst.memory * worst.between
    if not (view.healed or jitter > JITTER) or worst.momentum is None:
        return None
    name = view.name(worst.model, worst.name)
    usual = (0.1 / 1.9) * worst.between
    return _finding(
        view,
        "error" if view.healed else "warning",
        tuple(view.name(norm.model, norm.name) for norm in hasty),
        say(
            "With momentum {momentum:g} the running statistics of {name} are those of the last batch or two: here it is the weight of the "
            "newest batch, in other libraries that of the old value.",
            momentum=worst.momentum,
            name=name,
        ),
        [
            Evidence(say("momentum"), worst.momentum, 0.1, FORGETS, "", None, name),
            Evidence(say("variance of the running mean over that within a batch"), jitter, usual, None, "", None, name),
        ],
        Repair(
            say("Give it the other way round: momentum={other:g}", other=round(1 - worst.momentum, 6)),
            f"norm.momentum = {round(1 - worst.momentum, 6) or 0.1:g}",
        ),
    )


def _dropout(view: View, norms: list[BatchNorm]) -> Finding | None:
    """Dropout in front of a norm, which makes its input vary more in training than in evaluation."""
    shifts = [shift for norm in norms for shift in dropout_shifts(view, norm)]
    least = SHIFT if view.healed else LARGE_SHIFT
    large = [shift for shift in shifts if shift.ratio > least]
    if not large or (view.evaluation and view.learned and not view.healed):
        return None
    worst: Shift = max(large, key=lambda shift: shift.ratio)
    name, dropout = view.name(worst.norm.model, worst.norm.name), view.name(worst.norm.model, worst.dropout)
    return _finding(
        view,
        "error" if view.healed or not view.learned else "warning",
        tuple(dict.fromkeys(view.name(shift.norm.model, shift.norm.name) for shift in large)),
        say(
            "{dropout} in front of {name} makes its input vary {ratio:.3g} times as much in training as in evaluation, where nothing is "
            "dropped: the running variance is that of training.",
            dropout=dropout,
            name=name,
            ratio=worst.ratio,
        ),
        [Evidence(say("variance in training over that in evaluation"), worst.ratio, 1.0, least, "x", None, name)],
        Repair(say("Put dropout behind the last batch normalization")),
    )


def _other(view: View, norms: list[BatchNorm]) -> Finding | None:
    """A gap that has been seen, and nothing that explains it."""
    losses = view.evaluation
    if not view.evaluates_worse or any(map(is_off, norms)):
        return None
    if losses["evaluation"] - min(losses["train"], losses["recalibrated"]) <= UNEXPLAINED * abs(view.progress.baseline):
        return None
    if not view.healed and any(values(norm) <= HARDLY for norm in norms):
        return None  # what small batches do
    places = (
        tuple(view.name(norm.model, norm.name) for norm in norms) if view.healed else (view.name(norms[0].model, ""),)
    )
    what = (
        say("Running statistics computed anew mend it.")
        if view.healed
        else say(
            "Running statistics computed anew do not mend it: something else is done otherwise in evaluation mode."
        )
    )
    return _finding(
        view,
        "error",
        places,
        say(
            "In evaluation mode the loss on the training batches is {evaluation:.3g}, in training mode {train:.3g}. {what}",
            evaluation=losses["evaluation"],
            train=losses["train"],
            what=what,
        ),
        [],
        Repair(
            say("Compute the running statistics anew from the training data before you evaluate"),
            "trimtab.norms.recalibrate(model, loader)",
        ),
    )


def _finding(
    view: View,
    severity: Severity,
    where: tuple[str, ...],
    summary: str,
    evidence: list[Evidence],
    repair: Repair,
) -> Finding:
    return Finding(
        code="train-eval-gap",
        severity=severity,
        where=where,
        summary=summary,
        evidence=(*evidence, *evidence_by_mode(view)),
        repairs=(
            repair,
            Repair(
                say("Or use a norm that does the same in both modes: group or layer normalization"),
                'model = trimtab.norms.convert(model, to="group_norm").model',
            ),
        ),
        reference="Li et al. 2018, arXiv:1801.05134; Wu & Johnson 2021, arXiv:2105.07576",
        location=view.place("forward"),
    )

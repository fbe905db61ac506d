"""`small-batch-batchnorm`: batch normalization takes its statistics from too few values to be worth anything."""

import math
from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.batch_norms import BatchNorm
from trimtab.diagnosis.batches_alike import alike
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.modes import evidence_by_mode
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair, Severity

FEW = 4.0
"""Independent values behind a statistic: with 4 the standard deviation of a batch is off by 40 % (1/sqrt(2(m - 1))) and its mean by
half a standard deviation (1/sqrt(m)), anew at every step."""

HARDLY = 8.0
"""The same, where running statistics have been seen to cost much and computing them anew does not mend it."""

PAIR = 2
"""With two values the output is +1 and -1 times the gain, whatever comes in."""


def find(view: View) -> Iterator[Found]:
    """Batch statistics of few independent values, in a run that does not learn or evaluates worse than it trains."""
    few = [norm for norm in view.batch_norms if norm.normalizes_by_batch and values(norm) <= HARDLY]
    if not alike(view):  # batches that differ scatter more than their size says
        few = [norm for norm in few if norm.elements <= FEW]
    unhealed = view.evaluates_worse and not view.healed
    if not unhealed:
        few = [norm for norm in few if values(norm) <= FEW]
    if not few:
        return
    pair = any(norm.elements <= PAIR for norm in few)
    severity: Severity = "note"
    if unhealed or not (view.learned or view.before_training):
        severity = "error"
    elif pair or view.before_training:
        severity = "warning"
    yield Found(_finding(view, few, severity))


def values(norm: BatchNorm) -> float:
    """Independent values behind a statistic of a batch: counted, or fewer where the scatter of the variances says so.

    Args:
        norm: The normalization.

    Returns:
        The number; the positions of one sample are alike, so that it may be far below their count.
    """
    measured = norm.effective
    return float(norm.elements) if math.isnan(measured) or norm.elements <= FEW else min(norm.elements, measured)


def _finding(view: View, few: list[BatchNorm], severity: Severity) -> Finding:
    worst = min(few, key=values)
    name, m = view.name(worst.model, worst.name), values(worst)
    step = int(worst.steps[-1])
    evidence = [
        Evidence(say("values behind one statistic of a batch"), float(worst.elements), 32.0, None, "", step, name)
    ]
    if not math.isnan(worst.effective):
        evidence.append(
            Evidence(
                say("what they are worth, by the scatter of the variances"), worst.effective, 32.0, None, "", step, name
            )
        )
    noise = 1 / math.sqrt(2 * max(m - 1, 0.5))
    evidence.append(
        Evidence(say("error of a batch's standard deviation"), noise, 1 / math.sqrt(62), None, "", None, name)
    )
    what = (
        say("With two values the output is plus or minus the gain, whatever comes in.")
        if worst.elements <= PAIR
        else say("The standard deviation it divides by is off by {noise:.0%}, anew at every step.", noise=noise)
    )
    return Finding(
        code="small-batch-batchnorm",
        severity=severity,
        where=tuple(view.name(norm.model, norm.name) for norm in few),
        summary=say(
            "{name} ({cls}) takes mean and variance from about {values:.2g} independent values. {what}",
            name=name,
            cls=worst.cls,
            values=m,
            what=what,
        ),
        evidence=(*evidence, *evidence_by_mode(view)),
        repairs=(
            Repair(
                say("Use a norm that does not use the batch: group or layer normalization"),
                'model = trimtab.norms.convert(model, to="group_norm").model',
            ),
            Repair(
                say(
                    "Or give it larger batches: adding up gradients of micro-batches does not, since each is normalized by itself"
                )
            ),
        ),
        reference="Wu & He 2018, arXiv:1803.08494; Ioffe 2017, arXiv:1702.03275",
        location=view.place("forward"),
    )

"""`padding-in-batch-stats`: batch normalization counts the padded positions of sequences as values."""

from collections.abc import Iterator

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.batch_norms import BatchNorm
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.modes import evidence_by_mode
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair, Severity

SHARE = 0.1
"""Share of the positions that is padding, from which on it is worth a word."""

OFFSET = 0.25
"""Shift of the mean by padding in standard deviations of the real positions, or"""

SPREAD = 1.25
"""variance with padding over that without (or the other way round): what the statistics must change for a fault."""

LARGE_OFFSET = 0.5
"""The same where the run learns: evaluation on sequences padded otherwise is then shifted by as much."""

LARGE_SPREAD = 1.5


def find(view: View) -> Iterator[Found]:
    """Equal vectors up to the end of the samples, which move the statistics."""
    found = [norm for norm in view.batch_norms if norm.normalizes_by_batch and _moves(norm, OFFSET, SPREAD)]
    if not found:
        return
    worst = max(found, key=_offset)
    severity: Severity = "note"
    if (not view.learned or view.evaluates_worse) and not view.before_training:
        severity = "error"
    elif _moves(worst, LARGE_OFFSET, LARGE_SPREAD):
        severity = "warning"
    yield Found(_finding(view, found, worst, severity))


def _moves(norm: BatchNorm, offset: float, spread: float) -> bool:
    """Whether padding is a good part of a norm's input and moves its statistics by as much."""
    return _share(norm) >= SHARE and (_offset(norm) > offset or _spread(norm) > spread)


def _share(norm: BatchNorm) -> float:
    return float(norm.padding[:, 0].mean())


def _offset(norm: BatchNorm) -> float:
    """Root mean square over the looks."""
    return float(np.sqrt(np.mean(norm.padding[:, 1] ** 2)))


def _spread(norm: BatchNorm) -> float:
    """Factor of the variance, or its inverse: geometric mean over the looks."""
    with np.errstate(divide="ignore"):
        return float(np.exp(np.mean(np.abs(np.log(norm.padding[:, 2])))))


def _finding(view: View, found: list[BatchNorm], worst: BatchNorm, severity: Severity) -> Finding:
    name, shares = view.name(worst.model, worst.name), worst.padding[:, 0]
    return Finding(
        code="padding-in-batch-stats",
        severity=severity,
        where=tuple(view.name(norm.model, norm.name) for norm in found),
        summary=say(
            "Of the positions that {name} ({cls}) averages over {share:.0%} are padding, from {least:.0%} to {most:.0%} in a batch. They "
            "move the mean by {shift:.2g} standard deviations of the real positions, otherwise in every batch.",
            share=_share(worst),
            least=float(shares.min()),
            most=float(shares.max()),
            name=name,
            cls=worst.cls,
            shift=_offset(worst),
        ),
        evidence=(
            Evidence(say("share of the positions that is padding"), _share(worst), 0.0, SHARE, "", None, name),
            Evidence(
                say("shift of the mean, in standard deviations of the real positions"),
                _offset(worst),
                0.0,
                OFFSET,
                "",
                None,
                name,
            ),
            Evidence(say("change of the variance by padding"), _spread(worst), 1.0, SPREAD, "x", None, name),
            *evidence_by_mode(view),
        ),
        repairs=(
            Repair(
                say("Take the statistics over the real positions only"),
                "norm = trimtab.norms.layers.MaskedBatchNorm1d(channels)\ny = norm(x, mask)  # True where real",
            ),
            Repair(say("Or normalize each position by itself: layer normalization over the channels")),
        ),
        reference="Shen et al. 2020, arXiv:2003.07845",
        location=view.place("forward"),
    )

"""`clipping-dominates`: gradient clipping sets the length of nearly every step."""

import math
from collections.abc import Iterator

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair

SHARE = 0.9
"""Share of the steps, the first tenth left out, that are clipped: clipping is a guard against rare large gradients."""

FACTOR = 5.0
"""By how much the median step is shortened before it counts: the rate on paper is that many times the rate in effect."""

ENOUGH = 5


def find(view: View) -> Iterator[Found]:
    """The gradient's norm at the end of the backward pass over its norm as the optimizer used it."""
    steps, raw, used = _norms(view)
    if len(steps) < ENOUGH:
        return
    late = steps >= 0.1 * view.record.step_count
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = (raw / used)[late]
    factor = factor[np.isfinite(factor)]
    if len(factor) < ENOUGH:
        return
    clipped = factor > 1.05
    median = float(np.median(factor))
    if clipped.mean() < SHARE or median < FACTOR or _is_loss_scaling(factor):
        return
    bound = float(np.median(used))
    severity = "note" if view.adaptive or view.learned else ("error" if view.progress.gained < 0.3 else "warning")
    yield Found(
        Finding(
            code="clipping-dominates",
            severity=severity,  # type: ignore[arg-type]
            where=("loop",),
            summary=say(
                "Clipping shortens {share:.0%} of the gradients, the median one {median:.3g} times: the learning rate in effect is that many times smaller "
                "than the one on paper.",
                share=float(clipped.mean()),
                median=median,
            ),
            evidence=(
                Evidence(say("gradient norm before clipping, median"), float(np.median(raw)), None),
                Evidence(say("gradient norm that the optimizer used, median"), bound, float(np.median(raw)), None),
                Evidence(say("steps that were clipped"), float(clipped.mean()), 0.1),
            ),
            repairs=(
                Repair(
                    say("Raise the bound above the usual gradient norm, so that only outliers are clipped"),
                    f"torch.nn.utils.clip_grad_norm_(model.parameters(), {_above(float(np.quantile(raw, 0.9))):g})",
                ),
            ),
            location=view.place("step"),
        )
    )


def _above(value: float) -> float:
    """A round number above the 90th percentile."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(value))
    return float(next(m * scale for m in (1, 2, 5, 10) if m * scale >= value))


def _norms(view: View) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    record = view.record
    pairs = []
    for site in view.sites("parameter-gradient"):
        other = record.site(site.model, site.name, "raw-gradient")
        if other is not None:
            pairs.append((other.index, site.index))
    if not pairs:
        return np.zeros(0), np.zeros(0), np.zeros(0)

    raw, used = np.zeros(len(record.steps)), np.zeros(len(record.steps))
    for before, after in pairs:
        seen = (record.readings[:, after, 0] > 0) & (record.readings[:, before, 0] > 0)
        raw += np.where(seen, record.squares(before), 0.0)
        used += np.where(seen, record.squares(after), 0.0)
    there = used > 0
    return record.steps[there], np.sqrt(raw[there]), np.sqrt(used[there])


def _is_loss_scaling(factor: np.ndarray) -> bool:
    """Whether the factors are powers of two: a gradient scaler's, not a clipping's."""
    logs = np.log2(factor)
    return bool(np.all(np.abs(logs - np.round(logs)) < 1e-4) and np.all(np.round(logs) >= 1))

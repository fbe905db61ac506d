"""`output-logit-drift`: the normalizer of the output's softmax runs away from where it began, and the loss with it."""

import math
from collections.abc import Iterator

import numpy as np
import torch

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair, Severity

FAR = 4.0
"""How many times its size at the start |log Z| has to be over the later half of the run. It starts near log K; nets that learn stay
within about twice that (measured: 0.8 to 1.9 times), and four times where the classes are many and the loss is all but gone."""

BARELY = 0.2
"""Share of the loss that is gone below which the run is broken."""

REGAINED = 0.3
"""Share of what it had taken off the loss that the run has put on again, from which on the drift has cost something."""

COARSE = 0.5
"""Distance between two neighbouring numbers at the size of the logits, from which on rounding alone changes a probability by a quarter and
more."""


def find(view: View) -> Iterator[Found]:
    """The softmax of a loss whose log Z has gone far, in a run that gives back what it had learned or cannot resolve its logits."""
    progress = view.progress
    if view.learned or view.before_training:
        return
    seen = normalizers(view)
    if seen is None:
        return
    source, steps, log_z = seen
    later = steps >= steps[-1] / 2
    start = max(abs(float(log_z[0])), math.log(view.classes or 2))
    now = float(np.median(np.abs(log_z[later])))
    if now < FAR * start:
        return
    spacing, half = _spacing(view, source, now)
    if (
        progress.nonfinite is not None and not half
    ):  # no drift makes NaN of a single-precision logit: the run has blown up
        return
    lost = progress.nonfinite is not None or progress.gained < BARELY or progress.given_back >= REGAINED
    if not lost and spacing < COARSE:
        return
    begins = int(steps[np.flatnonzero(np.abs(log_z) >= FAR * start)[0]])
    severity: Severity = "error" if lost else "warning"
    yield Found(_finding(view, source, steps, log_z, start, spacing, severity), begins)


def normalizers(view: View) -> tuple[str, np.ndarray, np.ndarray] | None:
    """The mean log Z of the loss's softmax at the steps that were looked at in detail.

    Args:
        view: The record.

    Returns:
        The call that gives the logits, the steps and the means: a logit is log p + log Z, and so are their means over a batch. None where the
        loss is not a cross-entropy on one module's output, or another number of logits entered it than left the module.
    """
    sources = view.loss.get("sources", [])
    if not view.classes or "LogSoftmax" not in view.loss.get("operations", []) or len(sources) != 1:
        return None
    series = view.series(*view.split(sources[0]), "output")
    if series is None:
        return None
    at = {int(step): i for i, step in enumerate(series.steps)}
    found = []
    for step, loss in view.record.details["loss"]:
        log_p, i = loss.get("prediction", {}), at.get(step)
        if i is None or "mean" not in log_p or math.prod(log_p["shape"]) != series.count[i]:
            continue
        if series.nonfinite[i] or log_p.get("nonfinite"):
            continue
        found.append((step, float(series.mean[i]) - log_p["mean"]))
    if not found:
        return None
    steps, log_z = np.array(found).T
    return sources[0], steps, log_z


def _spacing(view: View, source: str, size: float) -> tuple[float, bool]:
    """Distance between two neighbouring numbers of this size in the precision of the logits, and whether that is one of 16 bits."""
    links = dict(view.record.details["links"][0][1])
    dtype = getattr(torch, links.get(source, {}).get("dtype", "float32"))
    facts = torch.finfo(dtype)
    return float(facts.eps * 2.0 ** math.floor(math.log2(size))), facts.bits <= 16


def _finding(
    view: View, source: str, steps: np.ndarray, log_z: np.ndarray, start: float, spacing: float, severity: Severity
) -> Finding:
    place, last, progress = view.name(*view.split(source)), int(steps[-1]), view.progress
    lowest = progress.last - progress.best
    evidence = [
        Evidence(say("log Z of the output's softmax, in the mean"), float(log_z[-1]), float(log_z[0]), FAR * start, "", last, place),
        Evidence(say("last loss"), progress.last, progress.best if lowest > 0 else progress.baseline),
    ]  # fmt: skip
    if spacing >= COARSE:
        evidence.append(Evidence(say("distance between two neighbouring logits of that size"), spacing, 0.0, COARSE))
    return Finding(
        code="output-logit-drift",
        severity=severity,
        where=(place,),
        summary=say(
            "log Z, the normalizer of the softmax over the output of {place}, has gone from {first:.3g} to {last:.3g} by step {step}, while the loss is at "
            "{loss:.3g} after {best:.3g} at its best: nothing in a cross-entropy holds the size that all logits have in common.",
            place=place,
            first=float(log_z[0]),
            last=float(log_z[-1]),
            step=last,
            loss=progress.last,
            best=progress.best,
        ),
        evidence=tuple(evidence),
        repairs=(
            Repair(
                say("Add a z-loss, which pulls log Z to zero"),
                "loss = F.cross_entropy(logits, target) + 1e-4 * torch.logsumexp(logits.float(), -1).square().mean()",
            ),
            Repair(
                say("Let weight decay act on the output layer"),
                "optimizer = torch.optim.AdamW(model.parameters(), lr=..., weight_decay=0.1)",
            ),
            Repair(say("Lower the learning rate of the output layer")),
        ),
        reference="Wortsman et al. 2023, arXiv:2309.14322; Chowdhery et al. 2022 (PaLM), arXiv:2204.02311",
        location=view.place("forward"),
    )

"""`loss-scale-underflow`: in half precision the gradients are smaller than its smallest number and become zero."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import links_of
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair, Severity

SMALLEST = 2.0**-24
"""The smallest positive number of float16; what is less than half of it becomes zero. bfloat16 reaches as far down as float32."""

NORMAL = 2.0**-14
"""The smallest number that float16 holds with all its digits: below, each halving costs one."""

NEAR = 16
"""Times the smallest number that the mean of what is left may be, where zeros count as lost: a Gaussian of that size loses 2 %."""

ZEROS = 0.5
"""Share of exact zeros from which on a gradient counts as lost. A rectifier alone makes half of them, but leaves the rest large."""

EARLY = 10
"""Recorded steps at the start that are looked at: a run that has converged may well have no gradient left."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient at one output in float16 in the early steps, as it was there: times the loss scale.

    Attributes:
        name: The module.
        zeros: Median share of exact zeros.
        left: Median of the mean size of the others, 0 where there are none.
        largest: Median of the largest.
        count: Entries.
        size: Root mean square of the output itself.
    """

    name: str
    zeros: float
    left: float
    largest: float
    count: float
    size: float

    @property
    def lost(self) -> bool:
        """Whether most of it is zero and all of the rest lies at the end of what the format holds."""
        return self.zeros >= ZEROS and self.largest < NORMAL and self.left < NEAR * SMALLEST


def find(view: View) -> Iterator[Found]:
    """The gradient next to the loss that has gone to zero for its size, and for nothing else."""
    for model in view.active:
        gradients = _gradients(view, model)
        at = max((i for i, gradient in enumerate(gradients) if gradient.lost), default=None)
        if at is None:
            continue
        lost, expected = gradients[at], _expected(view, gradients[-1])
        behind = gradients[at + 1].left if at + 1 < len(gradients) else expected
        if lost.largest > 0 or behind < NEAR * SMALLEST or (at + 1 < len(gradients) and behind < NORMAL):
            yield Found(_finding(view, view.name(model, lost.name), lost, expected))


def _finding(view: View, name: str, lost: Gradient, expected: float) -> Finding:
    severity: Severity = "note" if view.learned else "warning" if view.before_training else "error"
    evidence = [
        Evidence(say("share of the gradient at {name} that is exactly zero", name=name), lost.zeros, 0.0, ZEROS, "", 0),
        Evidence(say("mean size of the rest, and the smallest number of float16"), lost.left, SMALLEST, NEAR, "", 0),
    ]
    if math.isfinite(expected):
        evidence.append(
            Evidence(say("size that one entry of it can have: loss over entries"), expected, NORMAL, None, "", 0)
        )
    return Finding(
        code="loss-scale-underflow",
        severity=severity,
        where=("loop",),
        summary=say(
            "{zeros:.0%} of the gradient at the output of {name}, in float16, is exactly zero, and nothing in it is larger than {largest:.2g}: it has "
            "fallen below the smallest number that the format holds, 6e-08.",
            zeros=lost.zeros,
            name=name,
            largest=lost.largest,
        ),
        evidence=tuple(evidence),
        repairs=(
            Repair(
                say("Multiply the loss by a large number before the backward pass, and divide the gradients by it"),
                "scaler = torch.amp.GradScaler()\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()",
            ),
            Repair(
                say("Use bfloat16, which reaches as far down as float32"),
                'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = loss_fn(model(x), y)',
            ),
        ),
        reference="Micikevicius et al. 2018, arXiv:1710.03740",
        location=view.place("backward", "step"),
    )


def _gradients(view: View, model: int) -> list[Gradient]:
    """Gradients at the outputs in float16, in forward order."""
    links = links_of(view.record, model)
    halves = dict.fromkeys(view.module(model, call) for call, link in links.items() if link.get("dtype") == "float16")
    scales = dict(zip(view.record.steps.tolist(), (i.get("loss_scale", 1.0) for i in view.record.info), strict=True))
    found = []
    for name in halves:
        gradient, output = view.series(model, name, "gradient"), view.series(model, name, "output")
        if gradient is None or output is None:
            continue
        scale = np.array([scales[step] for step in gradient.steps.tolist()])[:EARLY]
        count, _, _, mean, largest, zeros, bad = gradient.rows[:EARLY].T
        if bad.any():
            continue
        left = np.divide(mean * scale * count, count - zeros, out=np.zeros_like(mean), where=count > zeros)
        share, rest, most, entries = (float(np.median(v)) for v in (zeros / count, left, largest * scale, count))
        found.append(Gradient(name, share, rest, most, entries, float(output.rms[0])))
    return found


def _expected(view: View, last: Gradient) -> float:
    """The size of an entry of the gradient at the last output, if the loss changes by about itself over the output's own size."""
    scale = float(view.record.info[0].get("loss_scale", 1.0))
    return abs(view.first_loss) * scale / (last.count * last.size) if last.count * last.size > 0 else math.nan

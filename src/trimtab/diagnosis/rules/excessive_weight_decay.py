"""`excessive-weight-decay`: the decay outruns the gradient, or shrinks weights until each step turns them too far."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.decay import FITS, GUESSING, USUAL, Pull, climbed, pull_on
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import Layer, is_norm, links_of
from trimtab.diagnosis.view import View, relative_updates
from trimtab.report import Evidence, Finding, Repair

ANGLE = 0.05
"""Angle by which a step turns a weight whose scale the next norm undoes, momentum's carrying on included: sqrt(2 pull) in equilibrium,
0.05 at a pull of 0.00125. Usual runs have 0.01 to 0.03."""

AGREES = 2.5
"""By how much the measured angle may differ from the equilibrium's: the law is for many dimensions, small angles and a steady gradient."""

SHRUNK = 0.5
"""What is left of the median weight: a rate that is too high makes weights grow."""

STRONG = 1e-2
"""Pull at a step before the decay is to blame where a part of the loss is gone: on noisy targets a strong decay may be right."""

HARD = 2e-2
"""The same where the weights have not shrunk: a pull that a gradient of usual size cannot give back beside its own work."""

WHOLE = 1.0
"""The share below, where gradient and decay cancel: what is left of the step is less than the decay's part of it."""

SHARE = 0.3
"""Size of the decay's part of the update over the whole update (under Adam: of the decay over the gradient). A part that leads is at 1,
and one that noise or momentum hides a little below; usual decays are at a hundredth while the loss falls."""


class Decayed(NamedTuple):
    """A layer with a weight that is decayed."""

    layer: Layer
    pull: Pull

    @property
    def left(self) -> float:
        """Measured root mean square of the weight, at its smallest in the later half, over that at the start."""
        rms = self.layer.values.rms
        return float(np.min(rms[len(rms) // 2 :]) / rms[0])

    @property
    def angle(self) -> float:
        """Median relative update of the later half."""
        updates = relative_updates(self.layer)
        return float(np.nanmedian(updates[len(updates) // 2 :]))

    @property
    def law(self) -> float:
        """The angle of the equilibrium at a step: sqrt(2 pull) without momentum."""
        late = float(np.median(self.pull.values[len(self.pull.values) // 2 :]))
        return math.sqrt(2 * late) / self.carried

    @property
    def carried(self) -> float:
        """How much further momentum m carries what a step begins: the root of (1 + m)/(1 - m), as steps follow one another."""
        m = self.pull.momentum
        return math.sqrt((1 + m) / (1 - m))


def find(view: View) -> Iterator[Found]:
    """Weights that shrink as the decay has it, in a run that does not learn or loses what it had learned."""
    lost = climbed(view)
    if view.before_training or view.progress.nonfinite is not None:
        return
    decayed = list(_decayed(view))
    free = _before_norms(view)
    turned = [d for d in decayed if d.layer.name in free]
    if (lost or view.progress.gained < FITS) and _turn(turned):
        yield _found(view, turned, _turning(turned))
    elif not view.learned and _vanish(view, decayed):
        yield _found(view, decayed, _vanishing(view, decayed))
    elif view.progress.gained < FITS and _cancel(view, decayed):
        yield _found(view, decayed, _cancelling(view, decayed))


def _decayed(view: View) -> Iterator[Decayed]:
    for layer in view.layers:
        pull = pull_on(view, layer.model, layer.weight)
        if pull is not None and len(layer.values) > 3 and len(layer.updates) > 3 and layer.values.rms[0] > 0:
            yield Decayed(layer, pull)


def _before_norms(view: View) -> set[str]:
    """Layers whose output goes straight into a norm."""
    found = set()
    for model in view.active:
        for call, link in links_of(view.record, model).items():
            if is_norm(view.class_of(model, call)) and len(link["sources"]) == 1:
                found |= {view.module(model, source) for source in link["sources"]}
    return found


def _turn(turned: list[Decayed]) -> bool:
    """Whether weights that a norm follows are where the decay turns them by a large angle at each step."""
    if not turned:
        return False
    angle, ratio = _median(d.angle * d.carried for d in turned), _median(d.angle / d.law for d in turned)
    return angle >= ANGLE and 1 / AGREES <= ratio <= AGREES and _median(d.left for d in turned) < SHRUNK


def _vanish(view: View, decayed: list[Decayed]) -> bool:
    """Whether weights have shrunk as the decay alone has it, and no gradient has held them."""
    if not decayed:
        return False
    share = _median(_share(view, d) for d in decayed)
    shrunk = _median(d.left for d in decayed) < SHRUNK and _median(d.pull.left[-1] for d in decayed) < SHRUNK
    enough = USUAL if view.progress.gained < GUESSING else STRONG
    return shrunk and share >= SHARE and _median(d.pull.usual for d in decayed) >= enough


def _cancel(view: View, decayed: list[Decayed]) -> bool:
    """Whether the gradient is spent on holding the weights against a hard pull."""
    if (
        not decayed
        or _median(d.pull.usual for d in decayed) < HARD
        or _median(d.pull.left[-1] for d in decayed) >= SHRUNK
    ):
        return False
    return _median(_share(view, d) for d in decayed) >= WHOLE


def _share(view: View, decayed: Decayed) -> float:
    """Size of the decay's part of an update over the whole update, median of the run."""
    layer, pull = decayed.layer, decayed.pull
    if pull.coupled:
        gradient = view.series(layer.model, layer.weight, "parameter-gradient")
        if gradient is None:
            return 0.0
        _, mine, others = np.intersect1d(layer.values.steps, gradient.steps, return_indices=True)
        return float(np.median(pull.decay * layer.values.norm[mine] / np.maximum(gradient.norm[others], 1e-30)))
    _, mine, others = np.intersect1d(pull.steps, layer.updates.steps, return_indices=True)
    updates = np.maximum(layer.updates.norm[others], 1e-30)
    return float(np.median(pull.values[mine] * layer.values.norm[mine] / updates))


def _median(values: Iterator[float]) -> float:
    return float(np.median(list(values)))


def _found(view: View, decayed: list[Decayed], words: tuple[str, list[Evidence]]) -> Found:
    summary, evidence = words
    pull = _strongest(decayed)
    return Found(
        Finding(
            code="excessive-weight-decay",
            severity="warning" if view.learned and not view.evaluates_worse else "error",
            where=("optimizer",),
            summary=summary,
            evidence=(
                *evidence,
                Evidence(say("share of a weight that a step takes away"), pull.usual, None, USUAL),
                Evidence(say("weights at the end over the start, median"), _median(d.left for d in decayed), 1.0, None, "x"),
                Evidence(say("share of the first loss that is gone"), view.progress.gained, 1.0),
            ),
            repairs=(
                Repair(
                    say("Lower the decay until rate times decay is at most 1e-4, or drop it"),
                    f"optimizer = {view.optimizer}(model.parameters(), lr={pull.rate:g}, weight_decay={_mild(pull):g})",
                ),
            ),
            reference="van Laarhoven 2017, arXiv:1706.05350; Wan et al. 2020, arXiv:2006.08419",
            location=view.place("step"),
        ),
        min(d.pull.halved for d in decayed),
    )  # fmt: skip


def _turning(decayed: list[Decayed]) -> tuple[str, list[Evidence]]:
    angle, law, pull = _median(d.angle for d in decayed), _median(d.law for d in decayed), _strongest(decayed)
    summary = say(
        "A weight decay of {decay:g} cannot restrain weights whose scale the next norm undoes, it only shrinks them, here to {left:.2g} of their size, and the "
        "smaller they are, the further a step turns them: by {angle:.2g} rad, where about 0.01 trains.",
        decay=pull.decay,
        left=_median(d.left for d in decayed),
        angle=angle,
    )
    return summary, [
        Evidence(say("angle by which a step turns a weight, later half"), angle, 0.01, ANGLE / decayed[0].carried),
        Evidence(say("the same, as the decay's equilibrium has it"), angle, law, AGREES),
    ]


def _cancelling(view: View, decayed: list[Decayed]) -> tuple[str, list[Evidence]]:
    pull = _strongest(decayed)
    summary = say(
        "A weight decay of {decay:g} takes {pull:.2g} of each weight away at every step. The gradient is spent on giving it back: weights can get no larger, with "
        "{rest:.0%} of the loss still there.",
        decay=pull.decay,
        pull=pull.usual,
        rest=1 - max(view.progress.gained, 0.0),
    )
    return summary, [_part(view, decayed)]


def _vanishing(view: View, decayed: list[Decayed]) -> tuple[str, list[Evidence]]:
    pull = _strongest(decayed)
    left = _median(d.left for d in decayed)
    summary = say(
        "A weight decay of {decay:g} takes {pull:.2g} of each weight away at every step, more than the gradient gives back: the weights have fallen to {left:.2g} "
        "of their size, and the function with them.",
        decay=pull.decay,
        pull=pull.usual,
        left=left,
    )
    return summary, [_part(view, decayed)]


def _part(view: View, decayed: list[Decayed]) -> Evidence:
    share = _median(_share(view, d) for d in decayed)
    if decayed[0].pull.coupled:
        return Evidence(say("size of the decay over that of the gradient, a step"), share, 0.01, SHARE)
    return Evidence(say("size of the decay's part of an update over the whole"), share, 0.01, SHARE)


def _strongest(decayed: list[Decayed]) -> Pull:
    return max((d.pull for d in decayed), key=lambda pull: pull.usual)


def _mild(pull: Pull) -> float:
    """A decay whose pull is an everyday one, a power of ten, and at most a hundredth of what it was."""
    if pull.coupled:
        return min(1e-5, pull.decay / 100)
    wanted = min(1e-4 / pull.rate, pull.decay / 100) if pull.rate else pull.decay / 100
    return float(10 ** math.floor(math.log10(wanted)))

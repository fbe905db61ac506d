"""`decayed-norm-parameters`: weight decay has shrunk the gains of normalizations that nothing in the loss holds."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.decay import FITS, GUESSING, USUAL, Pull, climbed, pull_on
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import is_norm
from trimtab.diagnosis.view import View
from trimtab.recording import Series
from trimtab.report import Evidence, Finding, Repair, Severity

SHRUNK = 0.3
"""What is left of the median gain, as measured and by the decay alone: a third is still far from where the next norm's eps and the
shifts outweigh the signal, and gains that the loss holds stay above."""

GONE = 0.1
"""The same where the run neither guesses nor has lost anything, but is left with a fifth of its loss."""

SPLIT = """\
decayed = [p for p in model.parameters() if p.ndim >= 2]
kept = [p for p in model.parameters() if p.ndim < 2]  # gains and biases
groups = [{{"params": decayed, "weight_decay": {decay:g}}}, {{"params": kept, "weight_decay": 0.0}}]
optimizer = {optimizer}(groups, lr={rate:g})"""


class Gain(NamedTuple):
    """The gain of a normalization, and what decays it."""

    module: str
    values: Series
    pull: Pull

    @property
    def left(self) -> float:
        """Measured root mean square at the end over that at the start."""
        return float(self.values.rms[-1] / self.values.rms[0])


def find(view: View) -> Iterator[Found]:
    """Gains that have shrunk as far as the decay alone takes them, in a run that does not learn or loses what it had learned."""
    lost = climbed(view)
    gained = view.progress.gained
    if view.progress.nonfinite is not None or not (lost or gained < FITS):
        return
    gains = [gain for gain in _gains(view) if gain.pull.usual >= USUAL and gain.pull.left[-1] < SHRUNK]
    shrunk = [gain for gain in gains if gain.left < SHRUNK]
    if not shrunk or 2 * len(shrunk) < len(gains):
        return
    left = float(np.median([gain.left for gain in shrunk]))
    if not lost and gained >= GUESSING and left > GONE:
        return
    alone = float(np.median([gain.pull.left[-1] for gain in shrunk]))
    pull = max((gain.pull for gain in shrunk), key=lambda pull: pull.usual)
    severity: Severity = "warning" if view.learned else "error"
    yield Found(
        Finding(
            code="decayed-norm-parameters",
            severity=severity,
            where=("optimizer",),
            summary=say(
                "A weight decay of {decay:g} takes {pull:.2g} of the norms' gains away at each step. Nothing in the loss holds a gain whose scale the next norm "
                "undoes: {count} of {all} gains have fallen to {left:.2g} of their size, first {first}.",
                decay=pull.decay,
                pull=pull.usual,
                count=len(shrunk),
                all=len(gains),
                left=left,
                first=shrunk[0].module,
            ),
            evidence=(
                Evidence(say("gains of the norms at the end over the start, median"), left, 1.0, None, "x"),
                Evidence(say("the same, as decay alone leaves"), left, alone, None, "x"),
                Evidence(say("share of a gain that a step takes away"), pull.usual, 0.0, USUAL),
                Evidence(say("last loss over the best of the run"), view.progress.last / view.progress.best, 1.0)
                if lost and view.progress.best > 0
                else Evidence(say("share of the first loss that is gone"), view.progress.gained, 1.0),
            ),
            repairs=(
                Repair(
                    say(
                        "Leave gains and biases out of the decay: give what has fewer than two axes a group without it"
                    ),
                    SPLIT.format(optimizer=view.optimizer, rate=pull.rate, decay=_for_matrices(view)),
                ),
            ),
            reference="van Laarhoven 2017, arXiv:1706.05350",
            location=view.place("step"),
        ),
        min(gain.pull.halved for gain in shrunk),
    )


def _gains(view: View) -> Iterator[Gain]:
    """The gains of normalizations that an optimizer decays and that did not start at zero."""
    for site in view.sites("parameter"):
        module, _, own = site.name.rpartition(".")
        if not is_norm(view.class_of(site.model, module)) or own.startswith(("bias", "beta", "shift")):
            continue
        values, pull = view.record.series(site), pull_on(view, site.model, site.name)
        if pull is not None and len(values) > 1 and values.rms[0] > 0:
            yield Gain(view.name(site.model, module), values, pull)


def _for_matrices(view: View) -> float:
    """The decay that most weights of layers have, so that the repair leaves it to them."""
    pulls = [pull_on(view, layer.model, layer.weight) for layer in view.layers]
    decays = [pull.decay for pull in pulls if pull is not None]
    return float(np.median(decays)) if decays else 0.0

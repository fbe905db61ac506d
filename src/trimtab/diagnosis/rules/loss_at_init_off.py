"""`loss-at-init-off`: the first loss is far above what outputs without knowledge cost."""

import math
from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair

CLASSES = 2.0
"""First loss of a classifier over ln K: then its logits have a variance of 2 ln K, and it is sure of what it cannot know."""

SQUARES = 10.0
"""First squared error over the variance of the targets: outputs three times as wide as what they are to match."""

SIZE = 2.0
"""Size of the logits, below which a high loss is a matter of weights in the loss and not of the net."""


def find(view: View) -> Iterator[Found]:
    """The first loss beside that of outputs that are all alike."""
    first, expected, outputs = view.first_loss, _uninformed(view), _size(view)
    if expected is None or not math.isfinite(first) or expected <= 0:
        return
    squares = view.loss.get("kind") == "MseLoss"
    limit = SQUARES if squares else CLASSES
    if first < limit * expected or (not squares and outputs < SIZE):
        return
    if not all(
        layer.trainable for layer in view.layers
    ):  # what is kept was trained for something: this is not its beginning
        return
    sources = tuple(dict.fromkeys(view.name(*view.split(source)) for source in view.loss.get("sources", ())))
    evidence = (
        Evidence(say("first loss"), first, expected, limit * expected, "", 0),
        Evidence(say("size of the outputs in it"), outputs, 1.0, None, "", 0),
    )
    yield Found(
        Finding(
            code="loss-at-init-off",
            severity="note" if view.learned else "warning",
            where=(*sources, "loss"),
            summary=say(
                "The first loss is {first:.3g}, where outputs that know nothing cost {expected:.3g}: {name} starts with outputs of size {size:.3g}, and the first steps "
                "go into making them small.",
                first=first,
                expected=expected,
                name=", ".join(sources) or say("the last layer"),
                size=outputs,
            ),
            evidence=evidence,
            repairs=(
                Repair(
                    say("Start the last layer small, and its bias at what a constant answer would be"),
                    "torch.nn.init.zeros_(head.weight)   # or std 0.01\ntorch.nn.init.zeros_(head.bias)   # classes: log of their shares; squares: mean of the targets",
                ),
            ),
            reference='Karpathy, "A Recipe for Training Neural Networks": verify the loss at initialization',
            location=view.place("forward"),
        )
    )


def _uninformed(view: View) -> float | None:
    """Loss of outputs that know nothing: ln K, ln 2, or the variance of the targets; None where the loss is of another kind."""
    if view.classes:
        return math.log(view.classes)
    if view.loss.get("operations", [])[:1] == ["BinaryCrossEntropyWithLogits"]:
        return math.log(2)
    return view.constant_answer if math.isfinite(view.constant_answer) else None


def _size(view: View) -> float:
    """Root mean square of the outputs that the loss is made of, at the first step; NaN where they were not seen."""
    if view.classes:  # what the loss has kept are logarithms of probabilities
        series = [view.series(*view.split(source), "output") for source in view.loss.get("sources", ())]
        return max((float(one.std[0]) for one in series if one is not None), default=math.nan)
    prediction = view.loss.get("prediction", {})
    return math.hypot(prediction.get("mean", math.nan), prediction.get("std", math.nan))

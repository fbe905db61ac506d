"""`double-softmax`: probabilities go through a second softmax inside the loss."""

from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair


def find(view: View) -> Iterator[Found]:
    """Read off the autograd graph of the loss, so there is no threshold."""
    made_by = view.loss.get("softmax")
    if made_by is None:
        return
    model, module = view.split(made_by) if made_by else (0, "")
    where = view.name(model, module) if module else "loss"
    binary = view.loss.get("kind") == "BinaryCrossEntropyWithLogits"
    what = say("sigmoid") if binary else say("softmax")
    classes = view.classes
    evidence = [Evidence(say("{what} operations between the scores and the loss", what=what), 2.0, 1.0, 0.0, "", 0)]
    if classes:
        floor = _floor(classes)
        evidence.append(Evidence(say("smallest loss that can be reached"), floor, 0.0, None, "", None))
    yield Found(
        Finding(
            code="double-softmax",
            severity="error",
            where=(where,),
            summary=say(
                "{source} gives probabilities, and the loss applies a second {what} to them: scores between 0 and 1 can never be sure, and "
                "their gradient is small.",
                source=where if module else say("The model"),
                what=what,
            ),
            evidence=tuple(evidence),
            repairs=(
                Repair(
                    say(
                        "Give the loss the raw scores: drop the model's last {what}, apply it only where probabilities are read",
                        what=what,
                    ),
                    "loss = F.cross_entropy(scores, target)          # scores straight from the last linear layer\n"
                    "probabilities = scores.softmax(-1)              # for reading only",
                ),
            ),
            location=view.place("backward", "forward"),
        )
    )


def _floor(classes: int) -> float:
    """-log softmax of the surest answer, one 1 and the rest 0."""
    import math

    return math.log(math.e + classes - 1) - 1

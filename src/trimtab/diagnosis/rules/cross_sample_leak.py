"""`cross-sample-leak`: the answer for one sample depends on the other samples of its batch."""

from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair

STRONG = 1e-3
"""Movement of the other samples' answers over that of the changed sample's own, from which on it counts as an error: it is what a
mean over a thousand samples leaves. Less is the trace that a shared scale or a capacity leaves."""


def find(view: View) -> Iterator[Found]:
    """Samples that mix in evaluation mode."""
    facts = view.probe("cross-sample-leak")
    if not facts.get("mixed"):
        return
    at, others = str(facts["at"]), float(facts["others"])
    yield Found(
        Finding(
            code="cross-sample-leak",
            severity="error" if others > STRONG else "warning",
            where=(view.name(view.active[0], at),) if view.active else (at,),
            summary=_summary(at, bool(facts["inside"]), others),
            evidence=(
                Evidence(
                    say("movement of the other samples' answers over that of the replaced one's"), others, 0.0, STRONG
                ),
            ),
            repairs=(
                Repair(
                    say(
                        "Keep the batch axis in its place: exchange axes with transpose or permute, not with view or reshape"
                    ),
                    "x = x.transpose(1, 2).flatten(1)  # not x.view(x.shape[0], -1) of another order",
                ),
                Repair(
                    say(
                        "Give recurrent layers and attention batch_first=True where samples come first, and name the axis of a softmax or mean"
                    ),
                    "attention = torch.nn.MultiheadAttention(width, heads, batch_first=True)\nweights = scores.softmax(dim=-1)",
                ),
            ),
            reference="Karpathy 2019, A Recipe for Training Neural Networks: use backprop to chart dependencies",
            location=view.place("forward"),
        )
    )


def _summary(at: str, inside: bool, others: float) -> str:
    what = say(
        "With one sample of a batch replaced, the answers for the other samples change, in evaluation mode too ({others:.2g} times as much "
        "as its own).",
        others=others,
    )
    if not at:
        return what + " " + say("No module shows it: samples mix in what the model does with the last one's output.")
    if inside:
        return what + " " + say("Samples mix in {at}.", at=at)
    return what + " " + say("Samples mix on the way to {at}: what it is given is mixed already.", at=at)

"""`future-leak`: a model that is to foretell a sequence sees what it is to foretell."""

from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair


def find(view: View) -> Iterator[Found]:
    """Answers that move when only what lies ahead is replaced."""
    facts = view.probe("future-leak")
    if not facts.get("leaks"):
        return
    ahead, at = int(facts["ahead"]), str(facts["at"])
    if not ahead:
        yield Found(_unshifted(view))
        return
    yield Found(
        Finding(
            code="future-leak",
            severity="error",
            where=(view.name(view.active[0], at),) if view.active else (at,),
            summary=_summary(ahead, at, bool(facts["inside"])),
            evidence=(
                Evidence(
                    say("movement of answers before the replaced positions, over that of those behind"),
                    float(facts["others"]),
                    0.0,
                ),
            ),
            repairs=(
                Repair(
                    say("Mask attention so that no position looks ahead"),
                    "mask = torch.nn.Transformer.generate_square_subsequent_mask(length)\ny = layer(x, src_mask=mask, is_causal=True)",
                ),
                Repair(
                    say(
                        "Use recurrent layers of one direction, convolutions padded at the start only, and no norm or mean over time"
                    ),
                    "x = torch.nn.functional.pad(x, (kernel - 1, 0))  # then a convolution without padding",
                ),
            ),
            reference="Vaswani et al. 2017, arXiv:1706.03762, section 3.2.3; Karpathy 2019, A Recipe for Training Neural Networks",
            location=view.place("forward"),
        )
    )


def _summary(ahead: int, at: str, inside: bool) -> str:
    what = say(
        "The target is the input {ahead} step ahead, and the answer at a position depends on what comes after it: the model can read off "
        "what it is to foretell. The loss falls, and generation fails.",
        ahead=ahead,
    )
    if not at:
        return what
    if inside:
        return what + " " + say("The future comes in at {at}.", at=at)
    return what + " " + say("The future comes in on the way to {at}.", at=at)


def _unshifted(view: View) -> Finding:
    return Finding(
        code="future-leak",
        severity="error",
        where=("loss",),
        summary=say(
            "The model reads from left to right, and the target at each position is the element it has just read: the shift by one is "
            "missing, so that it learns to copy."
        ),
        evidence=(Evidence(say("steps from a position to the element it is to say"), 0, 1),),
        repairs=(
            Repair(
                say("Let the target be one step ahead of the input"),
                "logits = model(tokens[:, :-1])\nloss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])",
            ),
        ),
        reference="Karpathy 2019, A Recipe for Training Neural Networks",
        location=view.place("backward"),
    )

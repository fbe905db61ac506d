"""`unscaled-attention`: products of queries and keys so large that each query looks at one key from the start."""

import math
from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.attention import places
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair, Severity
from trimtab.report.prediction import Attention

SURE = 0.25
"""Sum of the squared weights of a query from which on it looks at four keys or fewer, before anything was learnt. The gradient of a
softmax is p (1 - p): where one key has it all there is none."""

ABOVE = 4.0
"""And how many times that of equal weights over the keys that the mask leaves it has to be."""

USUAL = 2.0
"""A factor on the products this many times 1/sqrt(d) is another choice than Vaswani's."""


def find(view: View) -> Iterator[Found]:
    """Attentions whose softmax is all but one-hot in the first pass of a run that does not learn."""
    for model in view.active:
        prediction = view.predictions.get(model)
        sharp = [a for a in prediction.attention if _is_sharp(a)] if prediction is not None else []
        if sharp:
            yield _found(view, model, sharp)


def _is_sharp(attention: Attention) -> bool:
    squares = _squares(attention)
    return squares >= SURE and squares >= ABOVE * attention.squares_uniform


def _places(view: View, model: int, attention: Attention) -> tuple[str, ...]:
    behind = attention.name.rpartition(".")[0]  # the first of several outputs is `name.0`
    if view.class_of(model, behind) != "MultiheadAttention":
        behind = attention.name
    return places(view, model, behind, attention.sources)


def _squares(attention: Attention) -> float:
    """Sum of squared weights, as measured; as foretold where a fused kernel keeps them to itself."""
    return attention.squares if math.isnan(attention.squares_measured) else attention.squares_measured


def _variance(attention: Attention) -> float:
    return attention.variance if math.isnan(attention.variance_measured) else attention.variance_measured


def _found(view: View, model: int, sharp: list[Attention]) -> Found:
    first = sharp[0]
    usual = 1 / math.sqrt(first.dimension)
    unscaled = first.scale >= USUAL * usual
    severity: Severity = "error"
    if view.learned or view.before_training:
        severity = "warning" if unscaled or view.before_training else "note"
    found = tuple(dict.fromkeys(place for a in sharp for place in _places(view, model, a)))
    evidence = [
        Evidence(say("variance of the logits"), _variance(first), 1.0, None, "", 0, found[0]),
        Evidence(
            say("the same, as the weights predict"),
            _variance(first),
            first.variance,
            first.variance_tolerance if math.isfinite(first.variance_tolerance) else None,
            "x",
            0,
            found[0],
        ),
        Evidence(
            say("sum of a query's squared weights, against equal ones"),
            _squares(first),
            first.squares_uniform,
            None,
            "",
            0,
            found[0],
        ),
    ]
    if math.isfinite(first.scale):
        evidence.insert(
            0, Evidence(say("factor on the products, 1/sqrt(d)"), first.scale, usual, None, "", 0, found[0])
        )
    why = (
        say("The products of {d} terms are not divided by sqrt({d}).", d=first.dimension)
        if unscaled
        else say("Queries and keys are too large for the factor that is there.")
    )
    return Found(
        Finding(
            code="unscaled-attention",
            severity=severity,
            where=found,
            summary=say(
                "The logits of the attention at {place} have a variance of {variance:.3g}, where 1 is expected: before anything is learnt a query gives {share} "
                "keys all of its weight, and its softmax passes next to no gradient.",
                place=found[0],
                variance=_variance(first),
                share=say("one or two") if _squares(first) > 0.5 else say("a few"),
            )
            + f" {why}",
            evidence=tuple(evidence),
            repairs=_repairs(first, unscaled=unscaled),
            reference="Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1",
            location=view.place("forward"),
        )
    )


def _repairs(attention: Attention, *, unscaled: bool) -> tuple[Repair, ...]:
    divided = Repair(
        say("Divide the products by the root of the head dimension, here sqrt({d})", d=attention.dimension),
        "scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5\n# or: F.scaled_dot_product_attention(q, k, v), which does",
    )
    normalized = Repair(
        say("Normalize queries and keys per head before they are multiplied"),
        "q, k = F.rms_norm(q, q.shape[-1:]), F.rms_norm(k, k.shape[-1:])",
    )
    smaller = Repair(say("Or draw the weights of queries and keys smaller, by Xavier's rule"))
    return (divided, normalized) if unscaled else (normalized, smaller)

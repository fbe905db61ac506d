"""`attention-logit-growth`: the logits of an attention grow in training until each query looks at one key, and the run fails."""

from collections.abc import Iterator

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.attention import Course
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair, Severity

OPEN = 0.5
"""Entropy of the weights at the first look over that of equal weights: below, attention was closed from the start, which is
`unscaled-attention`."""

CLOSED = 0.1
"""The same in the later half of the run, in the median: of 100 keys a query looks at one and a half."""

LARGE = 50.0
"""Largest logit, in the same median. A key that is 50 behind has a weight of 2e-22, and the gradient through it is as small: far below the
1e-8 that Adam still tells from nothing."""

GROWN = 10.0
"""How many times the first look's that has to be: trained attention grows too, by a few times."""

BARELY = 0.2
"""Share of the loss that is gone below which the run is broken rather than held back."""

REGAINED = 0.3
"""Share of what it had taken off that it has put on again, from which on it is broken as well."""


def find(view: View) -> Iterator[Found]:
    """Attentions that were open at the start and are closed now, in a run that does not learn."""
    if view.learned or view.before_training:
        return
    for model in view.active:
        closed = [course for course in view.attentions if course.model == model and has_closed(course)]
        if closed:
            yield _found(view, closed)


def has_closed(course: Course) -> bool:
    """Whether an attention's logits have grown until its softmax is all but one-hot.

    Args:
        course: The attention.

    Returns:
        Whether it was open at the first look, and closed over the later half of the run with logits that have grown.
    """
    later = course.later
    largest = float(np.median(course.largest[later]))
    return bool(
        course.share[0] >= OPEN
        and np.median(course.share[later]) <= CLOSED
        and largest >= max(LARGE, GROWN * course.largest[0])
    )


def _closes(course: Course) -> int:
    """The first look at which its weights were as good as one-hot."""
    return int(course.steps[np.flatnonzero(course.share <= CLOSED)[0]])


def _found(view: View, closed: list[Course]) -> Found:
    begins = min(_closes(course) for course in closed)
    worst = max(closed, key=lambda course: float(np.median(course.largest[course.later])))
    place, last = worst.places[0], int(worst.steps[-1])
    progress = view.progress
    broken = progress.nonfinite is not None or progress.gained < BARELY or progress.given_back >= REGAINED
    severity: Severity = "error" if broken else "warning"
    return Found(
        Finding(
            code="attention-logit-growth",
            severity=severity,
            where=tuple(dict.fromkeys(name for course in closed for name in course.places)),
            summary=say(
                "The largest logit of the attention at {place} has grown from {first:.2g} to {last:.3g} by step {step}, and the entropy of its weights has "
                "fallen to {share:.0%} of that of equal ones: a query looks at one key, and its softmax passes no gradient to look elsewhere.",
                place=place,
                first=float(worst.largest[0]),
                last=float(worst.largest[-1]),
                step=last,
                share=float(worst.share[-1]),
            ),
            evidence=(
                Evidence(
                    say("largest logit of the attention"),
                    float(worst.largest[-1]), float(worst.largest[0]), max(LARGE, GROWN * float(worst.largest[0])), "", last, place,
                ),
                Evidence(
                    say("entropy of its weights over that of equal ones"),
                    float(worst.share[-1]), float(worst.share[0]), CLOSED, "", last, place,
                ),
                Evidence(say("attentions that have closed"), float(len(closed)), 0.0),
                Evidence(say("share of the loss that is gone"), progress.gained, 1.0),
            ),
            repairs=(
                Repair(
                    say("Normalize queries and keys per head before they are multiplied (QK-norm), which bounds every logit by its gains"),
                    "q, k = self.q_norm(q), self.k_norm(k)   # nn.LayerNorm(head_dim) each, in front of q @ k.T",
                ),
                Repair(say("Lower the learning rate, or warm it up for longer")),
                Repair(say("Let the weight decay of AdamW act on the weights of queries and keys")),
            ),
            reference="Wortsman et al. 2023, arXiv:2309.14322; Zhai et al. 2023, arXiv:2303.06296",
            location=view.place("forward"),
        ),
        begins,
    )  # fmt: skip

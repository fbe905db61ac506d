"""`cannot-overfit-one-batch`: a handful of samples cannot be learnt by heart."""

from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.probes import cannot_overfit_one_batch as overfit
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair


def find(view: View) -> Iterator[Found]:
    """A trial on one batch that got nowhere with any rate."""
    facts = view.probe("cannot-overfit-one-batch")
    if facts.get("verdict") != "stuck":
        return
    samples, constant = facts["samples"], facts["constant"]
    what = say("{n} samples", n=samples) if samples else say("one batch")
    start = facts["first"] if constant is None else constant
    goal = overfit.STANDS if constant is None else overfit.STUCK
    yield Found(
        Finding(
            code="cannot-overfit-one-batch",
            severity="error",
            where=(view.name(view.active[0], ""),) if view.active else ("loss",),
            summary=say(
                "A copy of the model cannot learn {what} by heart: Adam with rates of {rates} takes the loss from {first:.3g} to {lowest:.3g} "
                "at best. Model, loss and targets do not fit each other, and no rate of the run mends that.",
                what=what,
                rates=", ".join(f"{rate:g}" for rate in overfit.RATES),
                first=facts["first"],
                lowest=facts["lowest"],
            ),
            evidence=(
                Evidence(
                    say("lowest loss, beside the first")
                    if constant is None
                    else say("lowest loss, beside that of the best constant answer"),
                    facts["lowest"],
                    start,
                    goal * start,
                ),
                Evidence(say("steps of the trial"), facts["steps"]),
            ),
            repairs=(
                Repair(
                    say(
                        "Look at what the loss is given: shapes, the axis of classes, the order of its arguments, targets that belong to the inputs"
                    )
                ),
                Repair(
                    say(
                        "Look for what cuts the way from the parameters to the loss: detach, a rounding, a last activation that cannot reach the targets"
                    )
                ),
            ),
            reference="Karpathy 2019, A Recipe for Training Neural Networks: overfit one batch",
            location=view.place("forward"),
        ),
        view.record.step_count,
    )

"""`detached-graph`: a part runs, what it gives is used, and no gradient comes back to it because the graph was cut behind it."""

from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.names import owners
from trimtab.diagnosis.unreached import Cut, cut, meant, unreached
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair, Severity

ENOUGH = 5
"""Recorded steps without a gradient before a parameter counts as never reached: some hold a part back for the first steps."""


def find(view: View) -> Iterator[Found]:
    """The cut with parameters in front of it, model by model; or between all models and the loss."""
    if len(view.record.steps) < ENOUGH and not view.before_training:
        return
    if not view.before_training and _nothing_reached(view):
        yield Found(_from_the_loss(view))
        return
    for model in view.active:
        place = cut(view, model)
        if place is not None:
            yield Found(_finding(view, model, place))


def _finding(view: View, model: int, place: Cut) -> Finding:
    front, behind = view.name(model, place.front), view.name(model, place.behind)
    severity: Severity = "note" if not place.drawn else "warning" if view.learned or view.before_training else "error"
    summary = say(
        "{behind} goes on from the numbers of {front} without their graph (detach(), .data, no_grad() or a trip through numpy): "
        "{count} of {all} trainable parameters, those in front of the cut, never get a gradient.",
        behind=behind,
        front=front,
        count=len(place.parameters),
        all=meant(view, model),
    )
    if not place.drawn:
        summary += " " + say("Their values are not those of a fresh draw: it may be meant.")
    return Finding(
        code="detached-graph",
        severity=severity,
        where=owners(view.name(model, name) for name in place.parameters),
        summary=summary,
        evidence=(Evidence(say("trainable parameters without any gradient"), float(len(place.parameters)), 0.0),),
        repairs=(
            Repair(
                say("Hand the output of {front} on as it is", front=front),
                "z = encoder(x)                       # not under torch.no_grad()\nprediction = head(z)                 # not head(z.detach())",
            ),
            Repair(
                say("Where it is meant, say so, and give the optimizer only what learns"),
                f"model.{front}.requires_grad_(False)",
            ),
        ),
        location=view.place("forward"),
    )


def _nothing_reached(view: View) -> bool:
    missed = {model: len(unreached(view, model)) for model in view.active}
    return any(missed.values()) and all(missed[model] == meant(view, model) for model in missed)


def _from_the_loss(view: View) -> Finding:
    return Finding(
        code="detached-graph",
        severity="error",
        where=("loss",),
        summary=say(
            "No parameter ever gets a gradient: the optimizer steps, and nothing moves. The loss is cut off from the model."
        ),
        evidence=(Evidence(say("parameters with a gradient"), 0.0, None),),
        repairs=(
            Repair(
                say(
                    "Compute the loss from the model's own output, without detach(), .data, .item() or numpy in between"
                ),
                "loss = loss_fn(model(x), y)          # not loss_fn(torch.tensor(model(x).tolist(), requires_grad=True), y)",
            ),
        ),
        location=view.place("backward", "step", "forward"),
    )

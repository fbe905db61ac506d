"""`input-ignored`: what the model is fed with does not help it."""

from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair

NOTHING = 0.03
"""What exchanged inputs must cost, as a share of the loss: less is what a few passes over random labels leave in the weights."""

SURELY = 0.1
"""What it may cost at most by two standard errors over the batches: with smaller or fewer batches nobody knows."""

ENOUGH = 100
"""Steps of a run before it can have learnt that its input matters."""

SAME = 1e-6
"""Movement of the answers over their size, up to which they are the same for all samples but for rounding."""


def find(view: View) -> Iterator[Found]:
    """Answers that are the same whatever the input, or a loss that is."""
    facts = view.probe("input-ignored")
    if not facts or not facts["tells"]:
        return
    cut = facts["moved"] <= SAME
    if view.before_training:
        if cut and facts["moved"] == 0.0:
            yield Found(_finding(view, facts, cut=True))
        return
    cost = facts["exchanged"] - facts["loss"]
    size = abs(facts["loss"])
    alike = cost <= NOTHING * size and cost + 2 * facts["scatter"] <= SURELY * size
    if view.record.step_count >= ENOUGH and view.progress.nonfinite is None and (cut or alike):
        # Seen at the end, and only there; what cuts the input off also keeps a batch from being learnt by heart.
        yield Found(_finding(view, facts, cut), view.record.step_count - cut)


def _finding(view: View, facts: dict[str, float], cut: bool) -> Finding:
    if cut:
        summary = say("The model gives each sample the same answer, whatever it is fed with.")
    else:
        summary = say(
            "With inputs exchanged between the samples the loss is {exchanged:.3g}, with their own it is {loss:.3g}: the model has learnt "
            "nothing from its input that tells the targets.",
            exchanged=facts["exchanged"],
            loss=facts["loss"],
        )
    batches = int(facts["batches"])
    return Finding(
        code="input-ignored",
        severity="error",
        where=("data",) if not cut else (view.name(view.active[0], "") if view.active else "data",),
        summary=summary,
        evidence=(
            Evidence(
                say("loss with exchanged inputs, beside that with their own ({n} batches)", n=batches),
                facts["exchanged"],
                facts["loss"],
            ),
            Evidence(say("loss with inputs of zeros"), facts["zeroed"], facts["loss"]),
            Evidence(
                say("movement of the answers when inputs are exchanged, over their size"), facts["moved"], None, SAME
            ),
        ),
        repairs=(
            Repair(
                say(
                    "Look at inputs and targets right before the model is called: does each input still belong to its target?"
                ),
                "order = torch.randperm(len(x))\nx, y = x[order], y[order]  # one order for both",
            ),
            Repair(
                say(
                    "Follow the input through the model's forward: is it used, and not a constant, a detached or an empty part of it?"
                )
            ),
        ),
        reference="Karpathy 2019, A Recipe for Training Neural Networks: input-independent baseline",
        location=view.place("forward"),
    )

"""`recipe`: Karpathy's recipe for training neural networks, the steps that can be done by themselves, on copies."""

import math
from collections.abc import Callable, Iterator

import torch

from trimtab._messages import say
from trimtab._setup import Setup
from trimtab.diagnosis import probes
from trimtab.diagnosis.probes.calls import Call, Declined, Drawn, loss_of, still
from trimtab.diagnosis.probes.input_ignored import exchanging
from trimtab.diagnosis.probes.trials import trial
from trimtab.diagnosis.procedures import Plan, Progress, follow
from trimtab.propagation.loss import softmax_loss_at_init
from trimtab.recording.graph import loss_facts
from trimtab.report.procedure import Procedure, ProcedureStep

REFERENCE = "Karpathy 2019, A Recipe for Training Neural Networks"

STEPS = 100
"""Steps of each trial, at most those of the setup."""

BATCHES = 32
"""Batches that the trials cycle through."""

BELOW = 0.8
"""Share of log K under which a first loss knows something already."""

TIMES = 2.0
"""First loss over the target's variance, from which on outputs are far from the targets."""

HELPS = 0.03
"""What inputs must take off the loss of a short run, as a share of that without them."""


def recipe(setup: Setup, *, progress: Progress | None = None) -> Procedure:
    """Follow Karpathy's recipe: loss at the start, input-independent baseline, one batch by heart, and what depends on what.

    Args:
        setup: The run; it is not trained, and everything is as it was afterwards.
        progress: Called with the name of a step, and how much of it is done of how much.

    Returns:
        The steps with their verdicts; printing it gives a list.

    Raises:
        SetupError: Its batches cannot be used.
    """
    return follow(RECIPE, setup, progress)


def _steps(setup: Setup, progress: Progress | None) -> Iterator[ProcedureStep]:
    steps = min(setup.steps, STEPS)
    drawn = probes.drawn(setup, min(steps, BATCHES))
    for name, step in (
        (say("loss at initialization"), _loss_at_init),
        (say("input-independent baseline"), _baseline),
        (say("overfit one batch"), _one_batch),
        (say("each sample by itself"), _samples),
        (say("nothing from the future"), _future),
    ):

        def tell(done: int, of: int, name: str = name) -> None:
            if progress is not None:
                progress(name, done, of)

        tell(0, 1)
        try:
            yield step(name, setup, drawn, tell)
        except Declined as reason:
            yield _open(name, str(reason))


Tell = Callable[[int, int], None]


def _open(name: str, reason: str) -> ProcedureStep:
    return ProcedureStep(name, "open", "", "", say("Could not be done: {reason}.", reason=reason))


def _loss_at_init(name: str, setup: Setup, drawn: Drawn, tell: Tell) -> ProcedureStep:
    with still(setup, training=True), torch.enable_grad():
        loss, _ = loss_of(setup, drawn.batches[0])
        facts = loss_facts(loss, {})
    value = float(loss.detach())
    kind, answer, target = facts["kind"], facts.get("prediction", {}), facts.get("target", {})
    shape = answer.get("shape", [])
    if kind in ("NllLoss", "NllLoss2D") and len(shape) >= 2 and shape[1] > 1:
        classes = int(shape[1])
        most = softmax_loss_at_init(classes, 1.0)
        expected = say("log {k} = {loss:.3g}, at most {most:.3g}", k=classes, loss=math.log(classes), most=most)
        if value < BELOW * math.log(classes):
            return ProcedureStep(
                name, "open", f"{value:.3g}", expected,
                say("The model knows something already: fine for one that was trained before, else look at the targets."),
            )  # fmt: skip
        if value <= most:
            return ProcedureStep(name, "good", f"{value:.3g}", expected, "")
        return ProcedureStep(
            name, "bad", f"{value:.3g}", expected,
            say("The net is sure of wrong answers before it has seen any: make the last layer's weights smaller, or zero."),
        )  # fmt: skip
    if kind == "MseLoss" and target.get("std"):
        spread = float(target["std"]) ** 2
        expected = say("about the target's variance, {spread:.3g}", spread=spread)
        if value <= TIMES * spread:
            return ProcedureStep(name, "good", f"{value:.3g}", expected, "")
        return ProcedureStep(
            name, "bad", f"{value:.3g}", expected,
            say("The outputs start far from the targets: set the last bias to the targets' mean, or standardize them."),
        )  # fmt: skip
    return ProcedureStep(name, "open", f"{value:.3g}", "", say("For this loss no number is known to expect."))


def _baseline(name: str, setup: Setup, drawn: Drawn, tell: Tell) -> ProcedureStep:
    steps = min(setup.steps, STEPS)
    own_ = trial(setup, drawn, steps, told=lambda done, of: tell(done, 2 * of))
    change: Callable[[Call], Call] = exchanging(setup, drawn)
    blind = trial(setup, drawn, steps, change=change, told=lambda done, of: tell(of + done, 2 * of))
    measured = say(
        "{own:.3g} after {n} steps, {blind:.3g} with inputs exchanged", own=own_.end, n=steps, blind=blind.end
    )
    if own_.broke:
        return ProcedureStep(name, "bad", say("the loss blew up"), "", say("Lower the learning rate, then ask again."))
    if not blind.broke and own_.end > blind.end - HELPS * abs(blind.end):
        return ProcedureStep(
            name, "bad", measured, say("less with the inputs' own"),
            say("Within these steps the net takes nothing from its input: see whether inputs still belong to their targets, then the rate."),
        )  # fmt: skip
    return ProcedureStep(name, "good", measured, say("less with the inputs' own"), "")


def _one_batch(name: str, setup: Setup, drawn: Drawn, tell: Tell) -> ProcedureStep:
    facts = probes.cannot_overfit_one_batch.probe(setup, drawn, told=tell)
    if "declined" in facts:
        return _open(name, facts["declined"])
    measured = say(
        "{first:.3g} to {lowest:.3g} in {n} steps", first=facts["first"], lowest=facts["lowest"], n=facts["steps"]
    )
    constant = facts["constant"]
    expected = say("near its floor")
    if constant is not None:
        expected = say("far below {constant:.3g}, what a constant answer gets", constant=constant)
    if facts["verdict"] == "fits":
        return ProcedureStep(name, "good", measured, expected, "")
    if facts["verdict"] == "stuck":
        return ProcedureStep(
            name, "bad", measured, expected,
            say("A few samples cannot be learnt by heart: look at what the loss is given, and at what cuts the gradient's way."),
        )  # fmt: skip
    return ProcedureStep(
        name, "open", measured, expected, say("It comes down, and not to its floor within these steps.")
    )


def _samples(name: str, setup: Setup, drawn: Drawn, tell: Tell) -> ProcedureStep:
    facts = probes.cross_sample_leak.probe(setup, drawn)
    if "declined" in facts:
        return _open(name, facts["declined"])
    if not facts["mixed"]:
        return ProcedureStep(name, "good", say("no other sample's answer moves"), "", "")
    measured = say("other samples' answers move {others:.2g} times as far as the own", others=facts["others"])
    advice = say("Samples mix at {at}: `trimtab explain cross-sample-leak`.", at=facts["at"] or say("the model's end"))
    return ProcedureStep(name, "bad", measured, "0", advice)


def _future(name: str, setup: Setup, drawn: Drawn, tell: Tell) -> ProcedureStep:
    facts = probes.future_leak.probe(setup, drawn)
    if "declined" in facts:
        return _open(name, facts["declined"])
    if facts["ahead"] is None:
        return ProcedureStep(
            name, "open", "", "", say("The target is not a later part of the input: there is no future to see.")
        )
    if not facts["leaks"]:
        return ProcedureStep(name, "good", say("no earlier answer moves"), "", "")
    where = facts["at"] or say("the target, which is not shifted")
    return ProcedureStep(
        name, "bad", say("earlier answers move {others:.2g} times as far as later ones", others=facts["others"]), "0",
        say("The future comes in at {where}: `trimtab explain future-leak`.", where=where),
    )  # fmt: skip


RECIPE = Plan("recipe", REFERENCE, _steps)

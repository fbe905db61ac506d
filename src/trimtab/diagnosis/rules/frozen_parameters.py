"""`frozen-parameters`: parameters that were drawn at random and never change, though somebody meant them to be trained."""

from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.fresh import bias_agrees, looks_fresh
from trimtab.diagnosis.names import owners
from trimtab.diagnosis.unreached import cut, meant, targets, unreached
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair, Severity

ENOUGH = 5
"""Recorded steps without a gradient before a parameter counts as never reached."""


def find(view: View) -> Iterator[Found]:
    """Three ways to stand still: switched off while still a fresh draw, never reached by a gradient, or robbed of it before the step."""
    yield from _switched_off(view)
    yield from _never_reached(view)
    yield from _cleared_too_soon(view)


def _switched_off(view: View) -> Iterator[Found]:
    """Weights with requires_grad=False whose values still are those of an initialization scheme (Kolmogorov-Smirnov)."""
    fresh: list[tuple[int, str]] = []
    frozen = 0
    for model in view.active:
        ran = set(view.forward_order(model))
        for name, facts in view.record.models[model]["parameters"].items():
            if facts["trainable"] or len(facts["shape"]) < 2 or facts["owner"] not in ran:
                continue
            frozen += 1
            if (
                not facts["updated"]
                and looks_fresh(facts)
                and bias_agrees(view.record.models[model]["parameters"], facts)
            ):
                fresh.append((model, name))
    if len(fresh) <= 0.5 * frozen:
        return  # one layer that happens to look fresh convicts none that was trained
    severity: Severity = "note" if view.learned else "error"
    yield Found(
        Finding(
            code="frozen-parameters",
            severity=severity,
            where=owners(view.name(model, name) for model, name in fresh),
            summary=say(
                "{count} of {frozen} frozen layers (requires_grad=False) still are what the initialization drew: random features that nothing trains.",
                count=len(fresh),
                frozen=frozen,
            ),
            evidence=(
                Evidence(say("frozen layers whose weights agree with a fresh draw"), float(len(fresh)), 0.0),
                Evidence(say("frozen layers in all"), float(frozen)),
            ),
            repairs=(
                Repair(
                    say("Unfreeze them when no pretrained weights are loaded, and give them to the optimizer"),
                    "backbone.requires_grad_(True)\noptimizer = torch.optim.Adam(model.parameters(), lr=lr)",
                ),
                Repair(say("Load the pretrained weights before freezing")),
            ),
            location=view.place("step", "forward"),
        )
    )


def _never_reached(view: View) -> Iterator[Found]:
    """Trainable parameters of modules that ran, in an optimizer, without any gradient (None, not zero) at every recorded step."""
    if len(view.record.steps) < ENOUGH:
        return
    missed: list[tuple[int, str]] = []
    for model in view.active:
        place = cut(view, model)
        named = set(() if place is None else place.parameters)  # by detached-graph
        parameters, aside = view.record.models[model]["parameters"], targets(view, model)
        missed += [
            (model, name)
            for name in unreached(view, model)
            if name not in named and parameters[name]["owner"] not in aside
        ]
    trainable = sum(meant(view, model) for model in view.active)
    if not missed or len(missed) == trainable:
        return
    severity: Severity = "warning" if view.learned else "error"
    modules = owners(view.name(model, name) for model, name in missed)
    yield Found(
        Finding(
            code="frozen-parameters",
            severity=severity,
            where=modules,
            summary=say(
                "{count} of {all} trainable parameters never get a gradient, though their modules run: the loss does not depend on what they "
                "give, or the graph is cut behind them.",
                count=len(missed),
                all=trainable,
            ),
            evidence=(Evidence(say("trainable parameters without any gradient"), float(len(missed)), 0.0),),
            repairs=(
                Repair(
                    say("Let the loss see {module}, or leave it out of the model", module=modules[-1]),
                    "loss = loss_fn(head(z), y) + loss_fn(other_head(z), y)",
                ),
            ),
            location=view.place("forward"),
        )
    )


def _cleared_too_soon(view: View) -> Iterator[Found]:
    """Every parameter has a gradient at the end of the backward pass and none, or zero, when the optimizer steps."""
    reached = used = 0
    for site in view.sites("raw-gradient"):
        raw = view.record.series(site)
        if not len(raw) or not (raw.second_moment > 0).any() or view.series(site.model, site.name, "parameter") is None:
            continue
        reached += 1
        given = view.series(site.model, site.name, "parameter-gradient")
        used += given is not None and bool((given.second_moment > 0).any())
    if len(view.record.steps) < ENOUGH or not reached or used:
        return
    yield Found(
        Finding(
            code="frozen-parameters",
            severity="error",
            where=("loop",),
            summary=say(
                "The gradients are gone before the optimizer steps: {count} parameters have one at the end of the backward pass, none when it is used. "
                "Nothing ever moves.",
                count=reached,
            ),
            evidence=(Evidence(say("parameters with a gradient when the optimizer steps"), 0.0, float(reached)),),
            repairs=(
                Repair(
                    say("Clear the gradients before the backward pass, not between it and the step"),
                    "optimizer.zero_grad()\nloss.backward()\noptimizer.step()",
                ),
            ),
            location=view.place("step"),
        )
    )

"""`frozen-parameters`: parameters that were drawn at random and never change, though somebody meant them to be trained."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.fresh import bias_looks_fresh, looks_fresh
from trimtab.diagnosis.names import owners
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
            if not facts["updated"] and looks_fresh(facts) and _bias_agrees(view, model, facts):
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
    unreached: list[tuple[int, str]] = []
    trainable = 0
    if len(view.record.steps) < ENOUGH:
        return
    for model in view.active:
        ran = set(view.forward_order(model)) or _with_outputs(view, model)
        for name, facts in view.record.models[model]["parameters"].items():
            if not facts["trainable"] or not facts["optimized"] or 0 in facts["shape"]:
                continue
            trainable += 1
            if _ran(facts, ran) and view.series(model, name, "raw-gradient") is None:
                unreached.append((model, name))
    if not unreached:
        return
    if len(unreached) == trainable:
        yield Found(_nothing_reached(view))
        return
    severity: Severity = "warning" if view.learned else "error"
    modules = owners(view.name(model, name) for model, name in unreached)
    yield Found(
        Finding(
            code="frozen-parameters",
            severity=severity,
            where=modules,
            summary=say(
                "{count} of {all} trainable parameters never get a gradient, though their modules run: the graph is cut behind them "
                "(detach(), .data, no_grad() or a trip through numpy), or the loss does not depend on them.",
                count=len(unreached),
                all=trainable,
            ),
            evidence=(Evidence(say("trainable parameters without any gradient"), float(len(unreached)), 0.0),),
            repairs=(
                Repair(
                    say("Let the loss see {module}: take the detach() out between it and the rest", module=modules[-1]),
                    "prediction = head(encoder(x))        # not head(encoder(x).detach())",
                ),
            ),
            location=view.place("forward"),
        )
    )


def _nothing_reached(view: View) -> Finding:
    return Finding(
        code="frozen-parameters",
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
                "loss = loss_fn(model(x), y)          # not loss_fn(model(x).detach(), y)",
            ),
        ),
        location=view.place("backward", "step", "forward"),
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


def _bias_agrees(view: View, model: int, weight: dict[str, Any]) -> bool:
    """Whether the bias beside a weight is as it was drawn, too."""
    owner = weight["owner"]
    bias = view.record.models[model]["parameters"].get(f"{owner}.bias" if owner else "bias")
    return bias is None or bias_looks_fresh(bias, float(np.prod(weight["shape"][1:])))


def _ran(facts: dict[str, Any], ran: set[str]) -> bool:
    return facts["owner"] in ran


def _with_outputs(view: View, model: int) -> set[str]:
    return {site.name for site in view.sites("output") if site.model == model}

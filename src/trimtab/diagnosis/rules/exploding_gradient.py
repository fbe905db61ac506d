"""`exploding-gradient`: the gradient grows on its way back, or signal and gradient grow until the numbers end."""

import math
from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis import along_time
from trimtab.diagnosis.advice import initialization
from trimtab.diagnosis.expected import TimeFlow
from trimtab.diagnosis.first_step import foretold_update
from trimtab.diagnosis.flow import (
    Flow,
    against_prediction,
    flows,
    foretold,
    leaving,
    mean_gain,
    scatter,
)
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import Layer
from trimtab.diagnosis.view import View, relative_updates
from trimtab.report import Evidence, Finding, Repair, Severity

GROWS = 1.0
"""log10 of the squared gradient's growth, beyond the tolerance of the width, before it counts."""

LARGE_STEP = 0.5
"""A first update of half the weight leaves nothing of the initialization."""

WORSE = 2.0
"""Last loss over that of the best answer that does not look at the input: a run that ends above it has not learned to use its units yet."""


def find(view: View) -> Iterator[Found]:
    """Measured growth of squared gradient from the last layer to the first, beyond width and depth, with consequences."""
    for flow in flows(view):
        if flow.log_total < flow.tolerance + GROWS:
            continue
        jump = _first_jump(view, flow)
        harmful = (_broken(view) or jump > LARGE_STEP) and not view.learned
        if not harmful and flow.log_total < 4 + flow.tolerance:
            continue
        yield Found(_finding(view, flow, jump, "error" if harmful else "note"))
    for steps in view.time_flows:
        if steps.log_total > along_time.allowed(steps) + GROWS:
            yield from _along_time(view, steps)


def _along_time(view: View, flow: TimeFlow) -> Iterator[Found]:
    """A recurrent layer whose gradient grows with every step back, in a run that breaks or jumps."""
    layer = along_time.layer_of(view, flow)
    if layer is None or view.learned:
        return
    jump = _jump(view, layer)
    if not (_broken(view) or jump > LARGE_STEP):
        return
    name, steps = view.name(flow.model, flow.name), len(flow.measured)
    yield Found(
        Finding(
            code="exploding-gradient",
            severity="error",
            where=(name,),
            summary=say(
                "Along the {steps} time steps of {name} ({cls}) each step back multiplies the squared gradient by about {gain:.3g}, where 1 keeps it: "
                "at the first step it is {ratio:.2g} times that at the last.",
                steps=steps,
                name=name,
                cls=layer.cls,
                gain=flow.per_step,
                ratio=10 ** min(flow.log_total, 300.0),
            ),
            evidence=(
                *along_time.evidence(view, flow),
                Evidence(say("largest first update over its weight"), jump, 1e-2),
            ),
            repairs=(
                *along_time.repairs(view, flow)[:1],
                Repair(
                    say("Clip the gradient's norm: it does not mend the weights, but bounds a step"),
                    "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)   # before optimizer.step()",
                ),
            ),
            reference="Pascanu et al. 2013, arXiv:1211.5063",
            location=view.place("forward"),
        )
    )


def _broken(view: View) -> bool:
    """Whether the loss has risen, ended in no number, or stays above that of an answer that does not look."""
    progress = view.progress
    return progress.nonfinite is not None or progress.rose or progress.last > WORSE * view.constant_answer


def _jump(view: View, layer: Layer) -> float:
    """A layer's first update over its weight; foretold where no step was taken, NaN where neither was seen."""
    if view.before_training:
        return foretold_update(view, layer)
    return float(relative_updates(layer)[0]) if len(relative_updates(layer)) else math.nan


def _first_jump(view: View, flow: Flow) -> float:
    """The largest first update of a weight over the weight."""
    jumps = (_jump(view, layer) for layer in flow.layers)
    return max((jump for jump in jumps if math.isfinite(jump)), default=0.0)


def _finding(view: View, flow: Flow, jump: float, severity: Severity) -> Finding:
    kept = [(g, g.predicted or 1.0 if flow.leaves else 1.0) for g in flow.gains if g.measured > 0]
    strong = [gain for gain, at in kept if math.log(gain.measured / at) > scatter(gain)]
    first, last = flow.layers[0], flow.layers[-1]
    names = {gain.source.name for gain in strong} | {gain.layer.name for gain in strong}
    joined = any(layer.before.joins for layer in flow.layers)
    layers = [layer for layer in flow.layers if layer.name in names and not joined] or list(flow.layers[:-1])
    ratio = 10 ** min(flow.log_total, 300.0)
    per_layer = mean_gain(strong) if strong else 10 ** (flow.log_total / max(len(flow.layers) - 1, 1))
    evidence = [Evidence(say("squared gradient, per layer"), per_layer, 1.0, None, "x", 0)]
    evidence += [
        *against_prediction(flow, strong),
        Evidence(
            say(
                "squared gradient at {first} over that at {last}",
                first=view.name(first.model, first.name),
                last=view.name(last.model, last.name),
            ),
            ratio,
            1.0,
            10**flow.tolerance,
            "x",
            0,
        ),
        Evidence(say("largest first update over its weight"), jump, 1e-2),
        Evidence(say("first loss"), view.first_loss, None, None, "", 0),
    ]
    return Finding(
        code="exploding-gradient",
        severity=severity,
        where=view.names(layers),
        summary=say(
            "Each layer multiplies the squared gradient by about {gain:.3g}, where 1 keeps it: at layer {first} it is {ratio:.2g} times that at layer {last}, and the "
            "first step changes weights by {jump:.2g} times their size.",
            gain=per_layer,
            first=view.name(first.model, first.name),
            last=view.name(last.model, last.name),
            ratio=ratio,
            jump=jump,
        )
        + f" {foretold(flow)}".rstrip(),
        evidence=tuple(evidence),
        repairs=leaving(view, strong) if flow.leaves else _repairs(view, flow),
        reference="He et al. 2015, arXiv:1502.01852; Pascanu et al. 2013, arXiv:1211.5063",
        location=view.place("forward"),
    )


def _repairs(view: View, flow: Flow) -> tuple[Repair, ...]:
    joined = any(layer.before.joins for layer in flow.layers)
    if joined:
        return (
            Repair(
                say(
                    "Scale each residual branch by 1/sqrt(number of blocks), or start it at zero: each block then adds a share, it does not double"
                ),
                "x = x + branch(x) / math.sqrt(blocks)",
            ),
            *initialization(list(flow.layers))[:1],
        )
    return initialization(list(flow.layers))

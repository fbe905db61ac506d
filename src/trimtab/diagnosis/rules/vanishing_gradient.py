"""`vanishing-gradient`: the gradient fades on its way back, and the layers it does not reach do not learn."""

import math
from collections.abc import Iterator

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis import along_time
from trimtab.diagnosis.advice import initialization
from trimtab.diagnosis.expected import TimeFlow
from trimtab.diagnosis.first_step import PLANNED, foretold_update
from trimtab.diagnosis.flow import (
    Flow,
    Gain,
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
from trimtab.report import Evidence, Finding, Severity

BEHIND = 0.01
"""A layer whose weights move by less than this share of what the best moving layer's do stands still beside it."""

STILL = 0.01
"""Path of a layer's weight over the whole run (over 1000 steps, where the run is shorter), relative to the weight, below which it is
what it was drawn to be."""

FADES = 1.0
"""log10 of the squared gradient's loss, beyond the tolerance of the width, before it is worth a word."""

GONE = 4.0
"""The same, before it is worth a note where it did no harm, and before it is to blame where no layer at all moves."""


def find(view: View) -> Iterator[Found]:
    """Measured loss of squared gradient from the last layer to the first, beyond what width and depth scatter, with consequences."""
    for flow in flows(view):
        if flow.log_total > -(flow.tolerance + FADES):
            continue
        if view.before_training and not math.isfinite(flow.log_total):
            continue  # exactly zero: a branch that starts at zero, or a dead layer, which another rule names
        still = _standing_still(view, flow)
        harmful = bool(still) and not view.learned
        severity: Severity = "note" if not harmful else "error"
        if severity == "note" and flow.log_total > -(flow.tolerance + GONE):
            continue
        yield Found(_finding(view, flow, still, severity))
    for steps in view.time_flows:
        if steps.log_total < -(along_time.allowed(steps) + along_time.FORGOTTEN) and not view.learned:
            yield from _along_time(view, steps)


def _along_time(view: View, flow: TimeFlow) -> Iterator[Found]:
    """A recurrent layer whose first steps get nothing, where it is not for want of steps that the run does not learn."""
    layer = along_time.layer_of(view, flow)
    moved = layer is not None and view.movement(layer) >= STILL
    if (
        layer is None
        or not (moved or view.before_training)
        or view.progress.nonfinite is not None
        or view.progress.rose
    ):
        return
    name, steps = view.name(flow.model, flow.name), len(flow.measured)
    yield Found(
        Finding(
            code="vanishing-gradient",
            severity="warning" if view.before_training else "error",
            where=(name,),
            summary=say(
                "Along the {steps} time steps of {name} ({cls}) each step back multiplies the squared gradient by about {gain:.3g}, where 1 keeps it: "
                "of what reaches the last step {ratio:.2g} is left at the first, which cannot be learnt from.",
                steps=steps,
                name=name,
                cls=layer.cls,
                gain=flow.per_step,
                ratio=10**flow.log_total,
            ),
            evidence=tuple(along_time.evidence(view, flow)),
            repairs=along_time.repairs(view, flow),
            reference="Bengio et al. 1994; Pascanu et al. 2013, arXiv:1211.5063; Le et al. 2015, arXiv:1504.00941",
            location=view.place("forward"),
        )
    )


def _standing_still(view: View, flow: Flow) -> list[Layer]:
    """Layers that hardly move, in themselves and beside the one that moves most."""
    steps = max(view.record.step_count, PLANNED)  # what is short is not therefore still
    moves = {layer.name: view.movement(layer, steps) for layer in flow.layers if len(layer.updates)}
    if view.before_training:
        moves = {layer.name: PLANNED * foretold_update(view, layer) for layer in flow.layers}
        moves = {
            name: path for name, path in moves.items() if path > 0
        }  # a branch that starts at zero passes nothing yet
    if not moves:
        return []
    best = max(moves.values())
    still = [layer for layer in flow.layers if moves.get(layer.name, STILL) < STILL]
    if best < STILL and flow.log_total <= -(flow.tolerance + GONE):
        return [layer for layer in still if layer is not flow.layers[-1]]  # the signal has faded with the gradient
    return [layer for layer in still if moves[layer.name] <= BEHIND * best]


def _finding(view: View, flow: Flow, still: list[Layer], severity: Severity) -> Finding:
    kept = [(g, g.predicted or 1.0 if flow.leaves else 1.0) for g in flow.gains if g.measured > 0]
    weak = [gain for gain, at in kept if math.log(gain.measured / at) < -scatter(gain)]
    shown = weak or list(flow.gains)
    summary = f"{_summary(view, flow, shown, several=len(weak) >= 2)} {foretold(flow)}".rstrip()
    if severity == "note":
        summary += " " + say("The run learns all the same: its optimizer or its width makes up for it.")
    return Finding(
        code="vanishing-gradient",
        severity=severity,
        where=view.names(_between(flow, shown)),
        summary=summary,
        evidence=tuple(_evidence(view, flow, shown, still)),
        repairs=leaving(view, shown) if flow.leaves else initialization(list(flow.layers)),
        reference="Glorot & Bengio 2010; He et al. 2015, arXiv:1502.01852; Schoenholz et al. 2017, arXiv:1611.01232",
        location=view.place("forward"),
    )


def _summary(view: View, flow: Flow, shown: list[Gain], *, several: bool) -> str:
    gain, last = mean_gain(shown), flow.layers[-1]
    words = {
        "first": view.name(flow.layers[0].model, flow.layers[0].name),
        "start": _start(view, flow, shown),
        "ratio": _ratio(flow),
    }
    if several:
        return say(
            "Each layer multiplies the squared gradient by about {gain:.3g} ({nice}), where 1 keeps it. It starts at layer {start}, next to the output, and "
            "at layer {first} only {ratio:.2g} of it is left.",
            gain=gain,
            nice=_fraction(gain),
            **words,
        )
    return say(
        "Of the squared gradient at layer {top} only {ratio:.2g} reaches layer {first}; layer {start} takes most of it.",
        top=view.name(last.model, last.name),
        **words,
    )


def _evidence(view: View, flow: Flow, shown: list[Gain], still: list[Layer]) -> Iterator[Evidence]:
    first, last = (view.name(layer.model, layer.name) for layer in (flow.layers[0], flow.layers[-1]))
    if shown and not math.isnan(mean_gain(shown)):
        yield Evidence(say("squared gradient, per layer"), mean_gain(shown), 1.0, math.exp(scatter(shown[0])), "x", 0)
    yield from against_prediction(flow, shown)
    across = say("squared gradient at {first} over that at {last}", first=first, last=last)
    yield Evidence(across, _ratio(flow), 1.0, 10**flow.tolerance, "x", 0)
    scale = _weight_scale(shown)
    if scale is not None:
        start = _start(view, flow, shown)
        yield Evidence(say("fan_in times the mean square of the weights"), *scale, None, "", 0, start)
    updates = relative_updates(still[0]) if still else np.zeros(0)
    updates = updates[np.isfinite(updates)]
    if len(updates):
        name = view.name(still[0].model, still[0].name)
        yield Evidence(say("update of {name} over its weight, a step", name=name), float(np.median(updates)), 1e-3)


def _ratio(flow: Flow) -> float:
    """Squared gradient at the first layer over that at the last."""
    return float(10**flow.log_total) if math.isfinite(flow.log_total) else 0.0


def _start(view: View, flow: Flow, shown: list[Gain]) -> str:
    """The layer next to the output at which the gradient has begun to fade."""
    layer = shown[-1].source if shown else flow.layers[-1]
    return view.name(layer.model, layer.name)


def _between(flow: Flow, gains: list[Gain]) -> list[Layer]:
    """The layers at which the gradient has faded, in forward order."""
    names = {gain.source.name for gain in gains}
    return [layer for layer in flow.layers if layer.name in names] or list(flow.layers[:-1])


def _weight_scale(gains: list[Gain]) -> tuple[float, float] | None:
    """fan_in E W^2 of the fading layers, and what keeps the squared gradient for their activation (2 for ReLU)."""
    rectified = [
        g for g in gains if g.layer.before.activations[:1] in (("relu",), ("leaky_relu",)) and len(g.layer.values)
    ]
    if not rectified:
        return None
    return float(np.median([g.layer.fan_in * g.layer.values.second_moment[0] for g in rectified])), 2.0


def _fraction(value: float) -> str:
    """A gain as a simple fraction."""
    return f"1/{round(1 / value):d}" if 0 < value < 0.67 else f"{value:.2g}"

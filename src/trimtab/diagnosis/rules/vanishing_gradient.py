"""`vanishing-gradient`: the gradient fades on its way back, and the layers it does not reach do not learn."""

import math
from collections.abc import Iterator

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.advice import initialization
from trimtab.diagnosis.first_step import PLANNED, foretold_update
from trimtab.diagnosis.flow import Flow, Gain, flows
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import Layer
from trimtab.diagnosis.view import View, relative_updates
from trimtab.report import Evidence, Finding, Severity

BEHIND = 0.01
"""A layer whose weights move by less than this share of what the best moving layer's do stands still beside it."""

STILL = 0.01
"""Path of a layer's weight over the whole run, relative to the weight, below which it is what it was drawn to be."""

FADES = 1.0
"""log10 of the squared gradient's loss, beyond the tolerance of the width, before it is worth a word."""


def find(view: View) -> Iterator[Found]:
    """Measured loss of squared gradient from the last layer to the first, beyond what width and depth scatter, with consequences."""
    for flow in flows(view.layers):
        if flow.log_total > -(flow.tolerance + FADES):
            continue
        if view.before_training and not math.isfinite(flow.log_total):
            continue  # exactly zero: a branch that starts at zero, or a dead layer, which another rule names
        still = _standing_still(view, flow)
        harmful = bool(still) and not view.learned
        severity: Severity = "note" if not harmful else "error"
        if severity == "note" and flow.log_total > -4 - flow.tolerance:
            continue
        yield Found(_finding(view, flow, still, severity))


def _standing_still(view: View, flow: Flow) -> list[Layer]:
    """Layers that hardly move, in themselves and beside the one that moves most."""
    moves = {layer.name: view.movement(layer) for layer in flow.layers if len(layer.updates)}
    if view.before_training:
        moves = {layer.name: PLANNED * foretold_update(view, layer) for layer in flow.layers}
        moves = {name: path for name, path in moves.items() if path == path}
    if not moves:
        return []
    best = max(moves.values())
    return [
        layer
        for layer in flow.layers
        if layer.name in moves and moves[layer.name] < STILL and moves[layer.name] <= BEHIND * max(best, 1e-30)
    ] or ([layer for layer in flow.layers[:-1] if moves.get(layer.name, 1) < STILL] if best < STILL else [])


def _finding(view: View, flow: Flow, still: list[Layer], severity: Severity) -> Finding:
    weak = [
        gain for gain in flow.gains if gain.measured > 0 and math.log(gain.measured) < -3 * math.sqrt(5 / _width(gain))
    ]
    shown = weak or list(flow.gains)
    layers = _between(flow, shown)
    first, last = flow.layers[0], flow.layers[-1]
    top = view.name(last.model, last.name)
    per_layer = (
        math.exp(np.mean([math.log(g.measured) for g in shown if g.measured > 0]))
        if any(g.measured > 0 for g in shown)
        else 0.0
    )
    predicted = [g.predicted for g in shown if g.predicted]
    ratio = 10**flow.log_total if math.isfinite(flow.log_total) else 0.0
    start = view.name(shown[-1].source.model, shown[-1].source.name) if shown else top
    evidence = [
        Evidence(
            say("squared gradient, per layer"),
            per_layer,
            1.0,
            math.exp(3 * math.sqrt(5 / _width(shown[0]))) if shown else None,
            "x",
            0,
        ),
        Evidence(
            say("squared gradient at {first} over that at {last}", first=view.name(first.model, first.name), last=top),
            ratio,
            1.0,
            10**flow.tolerance,
            "x",
            0,
        ),
    ]
    if predicted:
        evidence.insert(
            1,
            Evidence(
                say("the same from the weights as drawn"),
                math.exp(float(np.mean(np.log(predicted)))),
                1.0,
                None,
                "x",
                0,
            ),
        )
    scale = _weight_scale(shown)
    if scale is not None:
        evidence.append(
            Evidence(say("fan_in times the mean square of the weights"), scale[0], scale[1], None, "", 0, start)
        )
    updates = relative_updates(still[0]) if still else np.zeros(0)
    updates = updates[np.isfinite(updates)]
    if len(updates):
        evidence.append(
            Evidence(
                say("update of {name} over its weight, a step", name=view.name(still[0].model, still[0].name)),
                float(np.median(updates)),
                1e-3,
            )
        )
    if weak and len(weak) >= 2:
        summary = say(
            "Each layer multiplies the squared gradient by about {gain:.3g} ({nice}), where 1 keeps it. It starts at layer {start}, next to the output, and "
            "at layer {first} only {ratio:.2g} of it is left.",
            gain=per_layer,
            nice=_fraction(per_layer),
            start=start,
            first=view.name(first.model, first.name),
            ratio=ratio,
        )
    else:
        summary = say(
            "Of the squared gradient at layer {top} only {ratio:.2g} reaches layer {first}; layer {start} takes most of it.",
            top=top,
            ratio=ratio,
            start=start,
            first=view.name(first.model, first.name),
        )
    if severity == "note":
        summary += " " + say("The run learns all the same: its optimizer or its width makes up for it.")
    return Finding(
        code="vanishing-gradient",
        severity=severity,
        where=view.names(layers),
        summary=summary,
        evidence=tuple(evidence),
        repairs=initialization(list(flow.layers)),
        reference="Glorot & Bengio 2010; He et al. 2015, arXiv:1502.01852; Schoenholz et al. 2017, arXiv:1611.01232",
        location=view.place("forward"),
    )


def _width(gain: Gain) -> float:
    return max(gain.source.shape[0], 1)


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

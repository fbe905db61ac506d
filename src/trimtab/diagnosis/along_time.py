"""Recurrent layers are judged along time: what of the gradient at the last step comes back to the first.

A parameter of theirs gets the sum over the steps, in which the last ones hide what is missing of the first (Pascanu et al. 2013,
arXiv:1211.5063).
"""

import math
from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.expected import TimeFlow
from trimtab.diagnosis.layers import Layer
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Repair

FORGOTTEN = 8.0
"""log10 of the squared gradient at the last step over that at the first, beyond the tolerance of the width, from which on the first
step counts for nothing: its share of the weights' gradient is under 1e-4, less than what one batch differs from the next by."""

GATED = ("LSTM", "GRU", "LSTMCell", "GRUCell")


def layer_of(view: View, flow: TimeFlow) -> Layer | None:
    """The layer whose steps these are, None where it has no weights of its own."""
    return next((layer for layer in view.layers if (layer.model, layer.name) == (flow.model, flow.name)), None)


def allowed(flow: TimeFlow) -> float:
    """Decades that a finite width may move the ratio of the first step's squared gradient to the last one's."""
    return math.log10(flow.tolerance) if math.isfinite(flow.tolerance) else 0.0


def evidence(view: View, flow: TimeFlow) -> Iterator[Evidence]:
    """What a step does to the squared gradient, and what all of them do, beside what keeps it and what the weights foretell.

    Args:
        view: The record.
        flow: The gradient along time.

    Yields:
        The evidence.
    """
    steps, name = len(flow.measured), view.name(flow.model, flow.name)
    within = flow.tolerance if math.isfinite(flow.tolerance) else None
    each = None if within is None else within ** (1 / (steps - 1))
    yield Evidence(say("squared gradient, per step back in time"), flow.per_step, 1.0, each, "x", 0, name)
    if math.isfinite(flow.predicted_per_step):
        yield Evidence(
            say("the same, as the weights predict"), flow.per_step, flow.predicted_per_step, each, "x", 0, name
        )
    across = say("squared gradient at step 1 over that at step {steps}", steps=steps)
    yield Evidence(across, 10**flow.log_total, 1.0, within, "x", 0, name)


def repairs(view: View, flow: TimeFlow) -> tuple[Repair, ...]:
    """Recurrent weights that keep a state, or a layer with gates that do."""
    path, cls = f"model.get_submodule({view.name(flow.model, flow.name)!r})", view.class_of(flow.model, flow.name)
    weights = Repair(
        say("Start the recurrent weights orthogonal: they then neither shrink nor grow the state"),
        f"for name, weight in {path}.named_parameters():\n"
        "    if 'weight_hh' in name:\n"
        "        for gate in weight.chunk(weight.shape[0] // weight.shape[1]):\n"
        "            torch.nn.init.orthogonal_(gate)",
    )
    if cls.startswith("LSTM"):
        gates = Repair(
            say(
                "Start the forget gates open, so that the cell keeps what it holds for as many steps as the sequence has (Tallec & Ollivier 2018)"
            ),
            f"for name, bias in {path}.named_parameters():\n"
            "    if 'bias_hh' in name:\n"
            f"        torch.nn.init.constant_(bias.chunk(4)[1], {math.log(max(len(flow.measured), 3)):.2g})"
            "  # the second quarter, at ln T",
        )
        return (gates, weights)
    if cls in GATED:
        return (weights,)
    return (
        weights,
        Repair(say("Or take a layer with gates (torch.nn.LSTM, torch.nn.GRU), or shorten the way with attention")),
    )

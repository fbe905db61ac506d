"""What recurrent layers start as: matrices that keep a state, gates that stay open."""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.lot import some_number, some_of
from trimtab.repairs.named import listed, loop_over, module_at
from trimtab.repairs.one_pass import called_with
from trimtab.repairs.patient import Patient, at
from trimtab.report import Finding, Repair

RECURRENT = (nn.RNNBase, nn.RNNCellBase)
PLAIN = (nn.RNN, nn.RNNCell)
GATED = (nn.LSTM, nn.LSTMCell, nn.GRU, nn.GRUCell)

STEPS = 100
"""Time steps that gates are to keep a state for, where the batch does not say."""


def draw_recurrent(setup: Setup, *, layers: Sequence[str], matrix: str, gain: float = 1.0) -> None:
    """Set the matrices between time steps to orthogonal ones, one a gate, or to the identity; their biases to zero."""
    for name in layers:
        layer = module_at(setup.model, name, RECURRENT)
        for key, parameter in layer.named_parameters(recurse=False):
            if "weight_hh" in key and parameter.shape[0] % parameter.shape[1] == 0:
                for gate in parameter.data.chunk(parameter.shape[0] // parameter.shape[1]):
                    _set(gate, matrix, gain)
            elif "bias" in key:
                nn.init.zeros_(parameter)


def _set(gate: Tensor, matrix: str, gain: float) -> None:
    if matrix == "identity":
        nn.init.eye_(gate)
        gate.mul_(gain)
    else:
        nn.init.orthogonal_(gate, gain)


def _tell_draw(*, layers: Sequence[str], matrix: str, gain: float = 1.0) -> Repair:
    draw = (
        f"torch.nn.init.eye_(gate).mul_({gain:.6g})"
        if matrix == "identity"
        else f"torch.nn.init.orthogonal_(gate, {gain:.6g})"
    )
    code = loop_over(
        layers,
        "for key, parameter in layer.named_parameters():",
        '    if "weight_hh" in key:',
        "        for gate in parameter.data.chunk(parameter.shape[0] // parameter.shape[1]):",
        f"            {draw}",
        '    elif "bias" in key:',
        "        torch.nn.init.zeros_(parameter)",
    )
    what = "the identity" if matrix == "identity" else "orthogonal matrices"
    times = "" if gain == 1.0 else f" times {gain:.3g}"
    return Repair(f"start the recurrent weights of {listed(layers)} at {what}{times}, its biases at zero", code)


@torch.no_grad()
def open_gates(setup: Setup, *, layers: Sequence[str], value: float) -> None:
    """Set the biases of the gates that keep the state.

    Raises:
        RepairError: A layer has no biases.
    """
    for name in layers:
        layer = module_at(setup.model, name, GATED)
        biases = [(key, p) for key, p in layer.named_parameters(recurse=False) if "bias" in key]
        if not biases:
            raise RepairError(f"{name} has no biases")
        parts = 4 if isinstance(layer, (nn.LSTM, nn.LSTMCell)) else 3
        for key, bias in biases:
            # the gate that lets the state through: second of (input, forget, cell, output) and of (reset, update, new)
            bias.chunk(parts)[1].fill_(value if "bias_hh" in key else 0.0)


def _tell_gates(*, layers: Sequence[str], value: float) -> Repair:
    code = loop_over(
        layers,
        "parts = 4 if isinstance(layer, (torch.nn.LSTM, torch.nn.LSTMCell)) else 3",
        "for key, bias in layer.named_parameters():",
        '    if "bias" in key:',
        f'        bias.data.chunk(parts)[1].fill_({value:g} if "bias_hh" in key else 0.0)',
    )
    return Repair(
        f"start the gates of {listed(layers)} that keep the state with a bias of {value:g} (LSTM: the forget gate)",
        code,
    )


def _forgets(finding: Finding, patient: Patient) -> Iterator[Change]:
    """A layer whose first steps get no gradient."""
    layers = _named(finding, patient, RECURRENT)
    plain = [n for n in layers if isinstance(patient.model.get_submodule(n), PLAIN)]
    gated = [n for n in layers if isinstance(patient.model.get_submodule(n), GATED)]
    if plain:
        yield Change("draw-recurrent", {"layers": plain, "matrix": "identity"})
    if gated:
        yield Change("open-gates", {"layers": gated, "value": round(math.log(_steps(patient)), 1)})
        yield Change("open-gates", {"layers": gated, "value": 1.0})
    if layers:
        yield Change("draw-recurrent", {"layers": layers, "matrix": "orthogonal"})


def _grows(finding: Finding, patient: Patient) -> Iterator[Change]:
    layers = _named(finding, patient, RECURRENT)
    if layers:
        yield Change("draw-recurrent", {"layers": layers, "matrix": "orthogonal"})
        yield Change("draw-recurrent", {"layers": layers, "matrix": "identity"})


def _named(finding: Finding, patient: Patient, kinds: tuple[type[nn.Module], ...]) -> list[str]:
    """The layers that a finding names; none where it names other things."""
    found = at(patient.model, finding.where, kinds)
    return [
        name
        for name in found
        if any(name == w or name.startswith(f"{w}.") or w.startswith(f"{name}.") for w in finding.where)
    ]


def _steps(patient: Patient) -> int:
    """Time steps of the sequences, by what the gated layers are given."""
    try:
        longest = [max(t.shape[1:3], default=0) for t in called_with(patient.setup).tensors if t.dim() >= 2]
    except RepairError:
        longest = []
    return max(max(longest, default=STEPS), 3)


def _some_draw(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = [n for n, m in patient.model.named_modules() if isinstance(m, RECURRENT)]
    if not names:
        return None
    return {
        "layers": some_of(names, rng),
        "matrix": rng.choice(("orthogonal", "identity")),
        "gain": some_number(rng, 0.5),
    }


def _some_gates(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = [n for n, m in patient.model.named_modules() if isinstance(m, GATED)]
    return {"layers": some_of(names, rng), "value": round(rng.uniform(-3, 6), 2)} if names else None


KINDS = {
    "draw-recurrent": Kind(draw_recurrent, _tell_draw, _some_draw),
    "open-gates": Kind(open_gates, _tell_gates, _some_gates),
}

ANSWERS = {"vanishing-gradient": _forgets, "exploding-gradient": _grows, "signal-collapse": _forgets}

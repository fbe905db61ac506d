"""What the weights and biases start as: drawn for the activations they stand between, scaled, or put back to what is usual."""

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from trimtab._setup import Setup
from trimtab.errors import RepairError, TrimtabError
from trimtab.initialization import critical_, lsuv_
from trimtab.propagation import forward_gain
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.lot import SPREAD, some_number, some_of
from trimtab.repairs.named import listed, loop_over, module_at
from trimtab.repairs.one_pass import LAYERS, as_batch, branch_ends, last_layer, layers_in, main_activation
from trimtab.repairs.patient import Patient, at
from trimtab.report import Finding, Repair

HE = math.sqrt(2.0)
"""Gain that keeps the second moment behind a ReLU (He et al. 2015, arXiv:1502.01852)."""

METHODS = ("critical", "critical-orthogonal", "lsuv")


def draw_weights(setup: Setup, *, layers: Sequence[str] | None, gain: float, orthogonal: bool = False) -> None:
    """Draw weights of variance gain^2 / fan-in anew, and set the biases beside them to zero.

    Raises:
        RepairError: There are no such layers.
    """
    for layer in _layers(setup.model, layers):
        _draw(layer, gain, orthogonal)


def _draw(layer: nn.Module, gain: float, orthogonal: bool = False) -> None:
    assert isinstance(layer, LAYERS)
    if orthogonal:
        nn.init.orthogonal_(layer.weight, gain)
    else:
        nn.init.normal_(layer.weight, std=gain / layer.weight[0].numel() ** 0.5)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _layers(model: nn.Module, names: Sequence[str] | None) -> list[nn.Module]:
    found = [module_at(model, name, LAYERS) for name in (layers_in(model) if names is None else names)]
    if not found:
        raise RepairError("the model has no linear layer or convolution whose weights may be drawn anew")
    return found


def draw_code(layers: Sequence[str] | None, gain: float, orthogonal: bool = False) -> str:
    """The code that draws weights anew.

    Args:
        layers: Their names, None for all.
        gain: The gain.
        orthogonal: Whether orthogonal.

    Returns:
        A loop.
    """
    draw = f"orthogonal_(layer.weight, {gain:.6g})"
    if not orthogonal:
        draw = f"normal_(layer.weight, std={gain:.6g} / layer.weight[0].numel() ** 0.5)"
    lines = (f"torch.nn.init.{draw}", "if layer.bias is not None:", "    torch.nn.init.zeros_(layer.bias)")
    if layers is None:
        head = "for layer in model.modules():\n    if isinstance(layer, (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)):\n"
        return head + "\n".join(f"        {line}" for line in lines)
    return loop_over(layers, *lines)


def _tell_draw(*, layers: Sequence[str] | None, gain: float, orthogonal: bool = False) -> Repair:
    which = "all linear layers and convolutions" if layers is None else listed(layers)
    how = "orthogonal" if orthogonal else "normal"
    return Repair(
        f"draw the weights of {which} anew: {how}, gain {gain:.3g}, biases at zero", draw_code(layers, gain, orthogonal)
    )


def fit_weights(setup: Setup, *, method: str, layers: Sequence[str] | None = None, scale: float = 1.0) -> None:
    """Set weights by one pass of a batch: at the edge of chaos, or for outputs of unit variance.

    Raises:
        RepairError: They cannot be set so.
    """
    model = setup.model
    names = layers_in(model) if layers is None else list(layers)
    before = [module_at(model, name, LAYERS).weight.detach().clone() for name in names]
    batch: Any = None
    with suppress(RepairError):  # critical_ then goes by the order of the modules
        batch = as_batch(setup)
    rest = (
        []
        if layers is None
        else [p for name, p in model.named_parameters() if name.rpartition(".")[0] not in names and p.requires_grad]
    )
    try:
        for parameter in rest:
            parameter.requires_grad_(False)
        if method == "lsuv":
            lsuv_(model, batch, variance=scale)
        else:
            start_q = None if scale == 1.0 else scale
            critical_(model, batch, orthogonal=method == "critical-orthogonal", start_q=start_q)
    except TrimtabError as error:
        raise RepairError(f"the weights cannot be set so: {error}") from error
    except Exception as error:  # of the user's model, which is run in another way than in training
        raise RepairError(f"the model cannot be run apart from its loss ({type(error).__name__}: {error})") from error
    finally:
        for parameter in rest:
            parameter.requires_grad_(True)
    if all(torch.equal(old, model.get_submodule(name).weight) for name, old in zip(names, before, strict=True)):  # type: ignore[arg-type]
        raise RepairError("there are no weights that may be set")


_APART = """\
rest = [p for name, p in model.named_parameters() if name.rpartition(".")[0] not in {layers} and p.requires_grad]
for parameter in rest:  # what does not train is left alone
    parameter.requires_grad_(False)
{call}
for parameter in rest:
    parameter.requires_grad_(True)"""


def _tell_fit(*, method: str, layers: Sequence[str] | None = None, scale: float = 1.0) -> Repair:
    which = "all weights" if layers is None else f"the weights of {listed(layers)}"
    if method == "lsuv":
        more = "" if scale == 1.0 else f", variance={scale:g}"
        call, name = f"lsuv_(model, inputs{more})", "lsuv_"
        summary = f"draw {which} orthogonal and scale each layer's output to variance {scale:g} on a batch (LSUV)"
    else:
        orthogonal = method == "critical-orthogonal"
        more = "" if scale == 1.0 else f", start_q={scale:g}"
        call, name = f"critical_(model, inputs, orthogonal={orthogonal}{more})", "critical_"
        how = "orthogonal" if orthogonal else "normal"
        summary = f"draw {which} so that each layer keeps the size of the gradient on a batch (edge of chaos, {how})"
    call += "   # inputs: one batch of what the model is called with"
    code = call if layers is None else _APART.format(layers=list(layers), call=call)
    return Repair(summary, f"from trimtab.propagation import {name}\n\n{code}")


def scale_weights(setup: Setup, *, layers: Sequence[str], factor: float) -> None:
    """Multiply the weights and biases that some layers start with."""
    with torch.no_grad():
        for name in layers:
            layer = module_at(setup.model, name, LAYERS)
            for parameter in layer.parameters(recurse=False):
                parameter.mul_(factor)


def _tell_scale(*, layers: Sequence[str], factor: float) -> Repair:
    how = (
        f"start {listed(layers)} at zero"
        if factor == 0
        else f"multiply the weights that {listed(layers)} starts with by {factor:.3g}"
    )
    code = loop_over(layers, "for parameter in layer.parameters():", f"    parameter.data.mul_({factor:.6g})")
    return Repair(how, code)


# What to try ----------------------------------------------------------------------------------------------------------


def usual_gain(patient: Patient) -> float:
    """The gain that keeps the signal behind the net's activation, He's where none is seen or none keeps it.

    Args:
        patient: The patient.

    Returns:
        The gain.
    """
    activation = main_activation(patient.setup)
    try:
        return HE if activation is None else float(f"{forward_gain(activation):.6g}")
    except TrimtabError:
        return HE


def anew(finding: Finding, patient: Patient) -> Iterator[Change]:
    """Weights for the net they stand in; then by the rule of thumb, all of them or those that are named."""
    if any(isinstance(module, nn.RNNBase | nn.RNNCellBase) for module in _named(finding, patient)):
        return
    gain, named = usual_gain(patient), layers_at(finding, patient)
    yield Change("fit-weights", {"method": "critical"})
    yield Change("draw-weights", {"layers": None, "gain": gain})
    yield Change("fit-weights", {"method": "critical-orthogonal"})
    if len(named) < len(layers_in(patient.model)):
        yield Change("fit-weights", {"method": "critical", "layers": named})
        yield Change("draw-weights", {"layers": named, "gain": gain})
    yield Change("fit-weights", {"method": "lsuv"})


def layers_at(finding: Finding, patient: Patient) -> list[str]:
    """Layers that a finding names and whose weights may be set."""
    may = layers_in(patient.model)
    return [name for name in at(patient.model, finding.where, LAYERS) if name in may]


def _named(finding: Finding, patient: Patient) -> list[nn.Module]:
    modules = dict(patient.model.named_modules())
    return [modules[place] for place in finding.where if place in modules]


def _copies(finding: Finding, patient: Patient) -> Iterator[Change]:
    gain = usual_gain(patient)
    yield Change("draw-weights", {"layers": None, "gain": gain})
    yield Change("draw-weights", {"layers": layers_at(finding, patient), "gain": gain})
    yield from anew(finding, patient)


def _branches(finding: Finding, patient: Patient) -> Iterator[Change]:
    try:
        ends = branch_ends(patient.setup, finding.where)
    except RepairError:
        return
    yield Change("scale-weights", {"layers": ends, "factor": float(f"{len(ends) ** -0.5:.4g}")})
    yield Change("scale-weights", {"layers": ends, "factor": 0.0})
    yield Change("fit-weights", {"method": "critical"})


def _last(finding: Finding, patient: Patient) -> Iterator[Change]:
    modules = dict(patient.model.named_modules())
    named = [name for name in finding.where if isinstance(modules.get(name), LAYERS)]
    try:
        layers = named or [last_layer(patient.setup)]
    except RepairError:
        return
    yield from (Change("scale-weights", {"layers": layers, "factor": factor}) for factor in (0.0, 0.1, 0.01))
    yield from anew(finding, patient)


# By lot ---------------------------------------------------------------------------------------------------------------


def _some_draw(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = layers_in(patient.model)
    if not names:
        return None
    layers = None if rng.random() < 0.5 else some_of(names, rng)
    return {"layers": layers, "gain": some_number(rng), "orthogonal": rng.random() < 0.5}


def _some_fit(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = layers_in(patient.model)
    if not names:
        return None
    layers = None if rng.random() < 0.5 else some_of(names, rng)
    return {"method": rng.choice(METHODS), "layers": layers, "scale": some_number(rng, 2 * SPREAD)}  # a variance


def _some_scale(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = layers_in(patient.model)
    return {"layers": some_of(names, rng), "factor": some_number(rng)} if names else None


KINDS = {
    "draw-weights": Kind(draw_weights, _tell_draw, _some_draw),
    "fit-weights": Kind(fit_weights, _tell_fit, _some_fit),
    "scale-weights": Kind(scale_weights, _tell_scale, _some_scale),
}

ANSWERS = {
    "vanishing-gradient": anew,
    "exploding-gradient": anew,
    "signal-collapse": anew,
    "saturated-units": anew,
    "dead-units": anew,
    "symmetric-init": _copies,
    "residual-growth": _branches,
    "loss-at-init-off": _last,
}

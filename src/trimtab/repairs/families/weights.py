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
from trimtab.norms._kinds import kind_of
from trimtab.propagation import forward_gain
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.one_pass import (
    LAYERS,
    as_batch,
    branch_ends,
    last_layer,
    layers_in,
    listed,
    main_activation,
    module_at,
)
from trimtab.repairs.patient import Patient, at
from trimtab.report import Finding, Repair

HE = math.sqrt(2.0)
"""Gain that keeps the second moment behind a ReLU (He et al. 2015, arXiv:1502.01852)."""

METHODS = ("critical", "critical-orthogonal", "lsuv")

SPREAD = 2.0
"""Decades that random gains and factors lie within, to either side of one: standard deviations from 0.001 to 10 at a fan-in of 100."""


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


def loop_over(names: Sequence[str], *lines: str) -> str:
    """A loop over modules by their names.

    Args:
        names: The names.
        *lines: What is done with `layer`.

    Returns:
        The code.
    """
    head = f"for name in {list(names)!r}:\n    layer = model.get_submodule(name)\n"
    return head + "\n".join(f"    {line}" for line in lines)


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


def set_biases(setup: Setup, *, layers: Sequence[str], value: float) -> None:
    """Set biases to one value.

    Raises:
        RepairError: They are at it already, or there are none.
    """
    biases = [b for name in layers if (b := module_at(setup.model, name, LAYERS).bias) is not None]
    if all(bool((bias == value).all()) for bias in biases):
        raise RepairError(f"{listed(layers)} has no biases that are not {value:g} already")
    with torch.no_grad():
        for bias in biases:
            bias.fill_(value)


def _tell_biases(*, layers: Sequence[str], value: float) -> Repair:
    code = loop_over(layers, "if layer.bias is not None:", f"    torch.nn.init.constant_(layer.bias, {value:g})")
    return Repair(f"start the biases of {listed(layers)} at {value:g}", code)


def reset_norms(setup: Setup, *, layers: Sequence[str]) -> None:
    """Set the gains of norms to one, and their shifts to zero.

    Raises:
        RepairError: They are at it already, or have none.
    """
    affine = [p for name in layers for p in module_at(setup.model, name, (nn.Module,)).named_parameters(recurse=False)]
    wanted = {"weight": 1.0, "bias": 0.0}
    if all(bool((p == wanted.get(name, p)).all()) for name, p in affine):
        raise RepairError(f"the gains of {listed(layers)} are one already")
    with torch.no_grad():
        for name, parameter in affine:
            if name in wanted:
                parameter.fill_(wanted[name])


def _tell_norms(*, layers: Sequence[str]) -> Repair:
    code = loop_over(
        layers,
        "torch.nn.init.ones_(layer.weight)",
        "if getattr(layer, 'bias', None) is not None:",
        "    torch.nn.init.zeros_(layer.bias)",
    )
    return Repair(f"start the gains of {listed(layers)} at one", code)


# What to try ----------------------------------------------------------------------------------------------------------


def _norms(model: nn.Module, where: Sequence[str] = ("",)) -> list[str]:
    """Norms with a gain, at the places of a finding."""
    norms = [
        name
        for name, module in model.named_modules()
        if kind_of(module) and getattr(module, "weight", None) is not None
    ]
    inside = at(model, where, tuple({type(model.get_submodule(name)) for name in norms}) or (nn.Module,))
    return [name for name in norms if name in inside]


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


def _anew(finding: Finding, patient: Patient) -> Iterator[Change]:
    """Weights for the net they stand in; then by the rule of thumb, all of them or those that are named."""
    if any(isinstance(module, nn.RNNBase | nn.RNNCellBase) for module in _named(finding, patient)):
        return
    gain, named = usual_gain(patient), _layers_at(finding, patient)
    yield Change("fit-weights", {"method": "critical"})
    yield Change("draw-weights", {"layers": None, "gain": gain})
    yield Change("fit-weights", {"method": "critical-orthogonal"})
    if len(named) < len(layers_in(patient.model)):
        yield Change("fit-weights", {"method": "critical", "layers": named})
        yield Change("draw-weights", {"layers": named, "gain": gain})
    yield Change("fit-weights", {"method": "lsuv"})


def _layers_at(finding: Finding, patient: Patient) -> list[str]:
    """Layers that a finding names and whose weights may be set."""
    may = layers_in(patient.model)
    return [name for name in at(patient.model, finding.where, LAYERS) if name in may]


def _named(finding: Finding, patient: Patient) -> list[nn.Module]:
    modules = dict(patient.model.named_modules())
    return [modules[place] for place in finding.where if place in modules]


def _collapsed(finding: Finding, patient: Patient) -> Iterator[Change]:
    norms = _norms(patient.model, finding.where)
    zero = [n for n in norms if not bool(patient.model.get_submodule(n).weight.any())]
    if zero:
        yield Change("reset-norms", {"layers": zero})
        yield Change("reset-norms", {"layers": _norms(patient.model)})
    yield from _anew(finding, patient)


def _dead(finding: Finding, patient: Patient) -> Iterator[Change]:
    named = _layers_at(finding, patient)
    yield Change("set-biases", {"layers": named, "value": 0.0})
    yield Change("set-biases", {"layers": layers_in(patient.model), "value": 0.0})
    yield Change("draw-weights", {"layers": named, "gain": usual_gain(patient)})
    yield from _anew(finding, patient)


def _copies(finding: Finding, patient: Patient) -> Iterator[Change]:
    gain = usual_gain(patient)
    yield Change("draw-weights", {"layers": None, "gain": gain})
    yield Change("draw-weights", {"layers": _layers_at(finding, patient), "gain": gain})
    yield from _anew(finding, patient)


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
    yield from _anew(finding, patient)


# By lot ---------------------------------------------------------------------------------------------------------------


def some_of(names: Sequence[str], rng: random.Random) -> list[str]:
    """A random part of some names, at least one, in their order.

    Args:
        names: The names.
        rng: The lot.

    Returns:
        Some of them.
    """
    return [names[i] for i in sorted(rng.sample(range(len(names)), rng.randint(1, len(names))))]


def some_number(rng: random.Random, decades: float = SPREAD) -> float:
    """A random factor around one.

    Args:
        rng: The lot.
        decades: How far to either side.

    Returns:
        The factor.
    """
    return float(f"{10 ** rng.uniform(-decades, decades):.3g}")


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


def _some_biases(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = [n for n in layers_in(patient.model) if patient.model.get_submodule(n).bias is not None]
    return {"layers": some_of(names, rng), "value": float(f"{rng.gauss(0, 0.5):.3g}")} if names else None


def _some_norms(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = _norms(patient.model)
    return {"layers": some_of(names, rng)} if names else None


KINDS = {
    "draw-weights": Kind(draw_weights, _tell_draw, _some_draw),
    "fit-weights": Kind(fit_weights, _tell_fit, _some_fit),
    "scale-weights": Kind(scale_weights, _tell_scale, _some_scale),
    "set-biases": Kind(set_biases, _tell_biases, _some_biases),
    "reset-norms": Kind(reset_norms, _tell_norms, _some_norms),
}

ANSWERS = {
    "vanishing-gradient": _anew,
    "exploding-gradient": _anew,
    "signal-collapse": _collapsed,
    "saturated-units": _anew,
    "dead-units": _dead,
    "symmetric-init": _copies,
    "residual-growth": _branches,
    "loss-at-init-off": _last,
}

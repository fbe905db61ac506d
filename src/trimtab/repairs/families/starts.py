"""What biases and the gains of norms start at."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.norms._kinds import kind_of
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.families.weights import layers_at
from trimtab.repairs.lot import some_of
from trimtab.repairs.named import listed, loop_over, module_at
from trimtab.repairs.one_pass import LAYERS, layers_in
from trimtab.repairs.patient import Patient, at
from trimtab.report import Finding, Repair

SLIGHT = 0.1
"""A bias that keeps rectifiers on at the start (Goodfellow et al. 2016, Deep Learning, section 6.3.1)."""


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


# What to try ------------------------------------------------------------------------------------------------------


def _norms(model: nn.Module, where: Sequence[str] = ("",)) -> list[str]:
    """Norms with a gain, at the places of a finding."""
    norms = [
        name
        for name, module in model.named_modules()
        if kind_of(module) and getattr(module, "weight", None) is not None
    ]
    inside = at(model, where, tuple({type(model.get_submodule(name)) for name in norms}) or (nn.Module,))
    return [name for name in norms if name in inside]


def _collapsed(finding: Finding, patient: Patient) -> Iterator[Change]:
    norms = _norms(patient.model, finding.where)
    zero = [n for n in norms if not patient.model.get_parameter(f"{n}.weight".lstrip(".")).any()]
    if zero:
        yield Change("reset-norms", {"layers": zero})
        yield Change("reset-norms", {"layers": _norms(patient.model)})


def _dead(finding: Finding, patient: Patient) -> Iterator[Change]:
    named = layers_at(finding, patient)
    yield Change("set-biases", {"layers": named, "value": 0.0})
    yield Change("set-biases", {"layers": layers_in(patient.model), "value": 0.0})
    yield Change("set-biases", {"layers": named, "value": SLIGHT})


def _some_biases(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = [n for n in layers_in(patient.model) if patient.model.get_submodule(n).bias is not None]
    return {"layers": some_of(names, rng), "value": float(f"{rng.gauss(0, 0.5):.3g}")} if names else None


def _some_norms(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = _norms(patient.model)
    return {"layers": some_of(names, rng)} if names else None


KINDS = {
    "set-biases": Kind(set_biases, _tell_biases, _some_biases),
    "reset-norms": Kind(reset_norms, _tell_norms, _some_norms),
}

ANSWERS = {"signal-collapse": _collapsed, "dead-units": _dead}

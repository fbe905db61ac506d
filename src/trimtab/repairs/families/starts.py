"""What biases start at."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.families.weights import layers_at
from trimtab.repairs.lot import some_of
from trimtab.repairs.named import listed, loop_over, module_at
from trimtab.repairs.one_pass import LAYERS, layers_in
from trimtab.repairs.patient import Patient
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


# What to try ------------------------------------------------------------------------------------------------------


def _dead(finding: Finding, patient: Patient) -> Iterator[Change]:
    named = layers_at(finding, patient)
    yield Change("set-biases", {"layers": named, "value": 0.0})
    yield Change("set-biases", {"layers": layers_in(patient.model), "value": 0.0})
    yield Change("set-biases", {"layers": named, "value": SLIGHT})


def _some_biases(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = [n for n in layers_in(patient.model) if patient.model.get_submodule(n).bias is not None]
    return {"layers": some_of(names, rng), "value": float(f"{rng.gauss(0, 0.5):.3g}")} if names else None


KINDS = {"set-biases": Kind(set_biases, _tell_biases, _some_biases)}

ANSWERS = {"dead-units": _dead}

"""Which activations stand between the layers."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.propagation import forward_gain
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.families.weights import draw_code, draw_weights
from trimtab.repairs.lot import some_number, some_of
from trimtab.repairs.named import listed, loop_over, module_at
from trimtab.repairs.patient import Patient, at
from trimtab.repairs.surgery import replace_module
from trimtab.report import Finding, Repair

BOUNDED = (
    nn.Sigmoid,
    nn.Tanh,
    nn.Hardsigmoid,
    nn.Hardtanh,
    nn.Softsign,
    nn.LogSigmoid,
    nn.Hardshrink,
    nn.Softshrink,
    nn.Tanhshrink,
)
RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.Hardswish, nn.Threshold, nn.LeakyReLU, nn.RReLU)
SMOOTH = (nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus)
SINGLE = (*BOUNDED, *RECTIFIERS, *SMOOTH)
"""Activations of single units, without parameters."""

SIGMOIDS = (nn.Sigmoid, nn.Hardsigmoid, nn.LogSigmoid)
"""Whose values have one sign and whose slope is at most 1/4: no gain carries a signal through many of them."""

OFFERED = {
    "ReLU": nn.ReLU,
    "LeakyReLU": nn.LeakyReLU,
    "ELU": nn.ELU,
    "SELU": nn.SELU,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Tanh": nn.Tanh,
}


def swap_activations(setup: Setup, *, modules: Sequence[str], to: str, gain: float | None = None) -> None:
    """Put another activation in the place of some, and draw the weights for it where a gain is given.

    Raises:
        RepairError: There are none, or they are of this kind already, or they are called as functions.
    """
    found = [name for name in modules if type(module_at(setup.model, name, SINGLE)) is not OFFERED[to]]
    if not found:
        raise RepairError(f"there is no activation module to swap for {to}")
    for name in found:
        replace_module(setup, name, OFFERED[to]())
    if gain is not None:
        draw_weights(setup, layers=None, gain=gain)


def _tell(*, modules: Sequence[str], to: str, gain: float | None = None) -> Repair:
    code = loop_over(
        modules,
        'parent, _, child = name.rpartition(".")',
        f"setattr(model.get_submodule(parent), child, torch.nn.{to}())",
    )
    if gain is None:
        return Repair(f"swap {listed(modules)} for {to}", code)
    return Repair(
        f"swap {listed(modules)} for {to}, and draw all weights for it (gain {gain:.3g}, biases at zero)",
        f"{code}\n{draw_code(None, gain)}",
    )


def gain_for(activation: str) -> float:
    """The gain that keeps the second moment behind an activation.

    Args:
        activation: Name of a class of `torch.nn`.

    Returns:
        sqrt(2) for ReLU.
    """
    return float(f"{forward_gain(OFFERED[activation]()):.6g}")


def _hidden(patient: Patient, kinds: tuple[type[nn.Module], ...], where: Sequence[str] = ("",)) -> list[str]:
    """Activations between layers: in front of at least one layer, so that an output's sigmoid stays."""
    names = [name for name, _ in patient.model.named_modules()]
    layers = [i for i, m in enumerate(patient.model.modules()) if isinstance(m, (nn.Linear, nn.modules.conv._ConvNd))]
    last = max(layers, default=-1)
    return [name for name in at(patient.model, where, kinds) if name and names.index(name) < last]


def _faded(finding: Finding, patient: Patient) -> Iterator[Change]:
    """Sigmoids first: their slope is to blame whatever the weights are. Then whatever is bounded."""
    sigmoids, bounded = _hidden(patient, SIGMOIDS), _hidden(patient, BOUNDED)
    if sigmoids:
        yield Change("swap-activations", {"modules": sigmoids, "to": "ReLU", "gain": gain_for("ReLU")})
        yield Change("swap-activations", {"modules": sigmoids, "to": "Tanh", "gain": gain_for("Tanh")})
    elif bounded:
        yield Change("swap-activations", {"modules": bounded, "to": "ReLU", "gain": gain_for("ReLU")})
    elif relus := _hidden(patient, RECTIFIERS):
        yield Change("swap-activations", {"modules": relus, "to": "SELU", "gain": gain_for("SELU")})


def _off(finding: Finding, patient: Patient) -> Iterator[Change]:
    """Rectifiers that let a little through where they were off."""
    for modules in (_hidden(patient, RECTIFIERS, finding.where), _hidden(patient, RECTIFIERS)):
        for to in ("LeakyReLU", "GELU") if modules else ():
            yield Change("swap-activations", {"modules": modules, "to": to})


def _some(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = _hidden(patient, SINGLE)
    if not names:
        return None
    gain = some_number(rng) if rng.random() < 0.5 else None
    return {"modules": some_of(names, rng), "to": rng.choice(sorted(OFFERED)), "gain": gain}


KINDS = {"swap-activations": Kind(swap_activations, _tell, _some)}

ANSWERS = {
    "vanishing-gradient": _faded,
    "signal-collapse": _faded,
    "saturated-units": _faded,
    "dead-units": _off,
}

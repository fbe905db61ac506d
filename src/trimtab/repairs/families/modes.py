"""What a net does otherwise in training than in evaluation: the mode of its steps, and dropout in front of a norm."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.norms._kinds import DROPOUTS
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.lot import some_of
from trimtab.repairs.named import listed
from trimtab.repairs.patient import Patient
from trimtab.repairs.surgery import around_steps, replace_module
from trimtab.repairs.walking import Stop, is_weight, walk
from trimtab.report import Finding, Repair

FOLLOWS = 0.01
"""Momentum from which on running statistics follow within a few hundred steps."""


def train_mode(setup: Setup) -> None:
    """Put the model into training mode at the start of each step, and wherever a step computes with gradients.

    Raises:
        RepairError: The model does the same in both modes.
    """
    if not any(isinstance(m, (_BatchNorm, *DROPOUTS)) for m in setup.model.modules()):
        raise RepairError("the model does the same in both modes")
    inside = False

    @contextmanager
    def training() -> Iterator[None]:
        nonlocal inside
        setup.model.train()
        inside = True
        try:
            yield
        finally:
            inside = False

    def back(module: nn.Module, args: Any) -> None:
        if inside and torch.is_grad_enabled() and not module.training:
            module.train()

    setup.model.register_forward_pre_hook(back)
    around_steps(setup, training)


def dropout_off(setup: Setup, *, layers: Sequence[str]) -> None:
    """Turn dropout off.

    Raises:
        RepairError: None of it is on.
    """
    _off(setup, layers)


def dropout_behind(setup: Setup, *, layers: Sequence[str]) -> None:
    """Take dropout from in front of the norms, and put one in front of the last linear layer or convolution.

    Raises:
        RepairError: None of it is on, or no layer follows the last norm.
    """
    stops = walk(setup)
    last = max((i for i, stop in enumerate(stops) if isinstance(stop.module, _BatchNorm)), default=-1)
    heads = [stop for stop in stops[last + 1 :] if is_weight(stop.module) and stop.name]
    strength = _off(setup, layers)
    if not heads:
        raise RepairError("no layer with weights follows the last batch normalization")
    if any(isinstance(stop.module, DROPOUTS) and stop.module.p for stop in stops[last + 1 :]):
        return  # there is one already
    head = heads[-1]
    replace_module(setup, head.name, nn.Sequential(nn.Dropout(strength), head.module))


def _off(setup: Setup, layers: Sequence[str]) -> float:
    """Set dropout to zero; the largest of the strengths that it had."""
    strength = 0.0
    for name in layers:
        module: Any = setup.model.get_submodule(name)
        if isinstance(module, DROPOUTS):
            strength = max(strength, module.p)
            module.p = 0.0
    if not strength:
        raise RepairError("no dropout is on there")
    return strength


# How it is told --------------------------------------------------------------------------------------------------------


def _tell_train() -> Repair:
    return Repair(
        "put the model back into training mode at the start of each training step",
        "model.train()  # before each training step, or after each evaluation",
    )


def _tell_off(*, layers: Sequence[str]) -> Repair:
    return Repair(
        f"turn the dropout off that stands in front of a norm: {listed(layers)}",
        f"for name in {list(layers)!r}:\n    model.get_submodule(name).p = 0.0",
    )


def _tell_behind(*, layers: Sequence[str]) -> Repair:
    return Repair(
        f"move dropout behind the last norm: off in {listed(layers)}, on in front of the last layer",
        f"p = model.get_submodule({layers[0]!r}).p\n"
        f"for name in {list(layers)!r}:\n    model.get_submodule(name).p = 0.0\n"
        "name, head = [(n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)][-1]\n"
        "parent, _, child = name.rpartition('.')\n"
        "setattr(model.get_submodule(parent), child, torch.nn.Sequential(torch.nn.Dropout(p), head))",
    )


# Answers and draws -----------------------------------------------------------------------------------------------------


def in_front_of_norms(patient: Patient) -> list[str]:
    """Dropout that a batch normalization follows.

    Args:
        patient: The run.

    Returns:
        Names of what is on, in the order of the pass.
    """
    try:
        stops: list[Stop] = walk(patient.setup)
    except RepairError:
        return []
    last = max((i for i, stop in enumerate(stops) if isinstance(stop.module, _BatchNorm)), default=-1)
    found = [s.name for s in stops[: max(last, 0)] if isinstance(s.module, DROPOUTS) and s.module.p]
    return list(dict.fromkeys(found))


def _modes(finding: Finding, patient: Patient) -> Iterator[Change]:
    momenta = [m.momentum for m in patient.model.modules() if isinstance(m, _BatchNorm)]
    if "loop" in finding.where or all(m is None or m >= FOLLOWS for m in momenta):  # else they lag in any mode
        yield Change("train-mode")


def _dropout(finding: Finding, patient: Patient) -> Iterator[Change]:
    layers = in_front_of_norms(patient)
    if layers:
        yield Change("dropout-behind", {"layers": layers})
        yield Change("dropout-off", {"layers": layers})


def _if_modes(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    return {} if any(isinstance(m, (_BatchNorm, *DROPOUTS)) for m in patient.model.modules()) else None


def _some_dropout(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = [name for name, m in patient.model.named_modules() if isinstance(m, DROPOUTS) and m.p]
    return {"layers": some_of(names, rng)} if names else None


KINDS = {
    "train-mode": Kind(train_mode, _tell_train, _if_modes),
    "dropout-off": Kind(dropout_off, _tell_off, _some_dropout),
    "dropout-behind": Kind(dropout_behind, _tell_behind, _some_dropout),
}


ANSWERS = {"stale-running-stats": _modes, "train-eval-gap": _dropout}

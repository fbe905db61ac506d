"""A critic whose slope is to be bounded: weight clipping, gradient penalty, spectral normalization."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.parametrize import is_parametrized
from torch.optim import Optimizer

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.patient import Patient
from trimtab.repairs.surgery import adopt
from trimtab.report import Finding, Repair

BOUNDS = (0.1, 0.01)
"""Of every weight; Arjovsky et al. (arXiv:1701.07875) took 0.01 for convolutions of many inputs, small nets need more."""

PENALTY = 10.0
"""Weight of the gradient penalty (Gulrajani et al., arXiv:1704.00028)."""

KEPT = 2
"""The last inputs of a critic: real and made ones."""


def clip_weights(setup: Setup, *, where: str, bound: float) -> None:
    """Keep every weight of the critic within a bound after each step of its optimizer."""
    parameters = list(_part(setup, where).parameters())
    held = {id(p) for p in parameters}
    for optimizer in _optimizers_of(setup, held):
        optimizer.register_step_post_hook(_Clamp(held, bound))


class _Clamp:
    """A post-hook of the critic's optimizer."""

    def __init__(self, held: set[int], bound: float) -> None:
        self._held, self._bound = held, bound

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) in self._held:
                        parameter.clamp_(-self._bound, self._bound)


def _tell_clip(*, where: str, bound: float) -> Repair:
    return Repair(
        f"clip every weight of {where} at {bound:g} after its step",
        f'with torch.no_grad():  # after each optimizer.step()\n    for p in model.get_submodule("{where}").parameters():\n        p.clamp_(-{bound:g}, {bound:g})',
    )


def penalize(setup: Setup, *, where: str, weight: float) -> None:
    """Add the gradient penalty at points between the critic's last two inputs, before each step of its optimizer.

    Raises:
        RepairError: No optimizer holds the critic.
    """
    critic = _part(setup, where)
    penalty = _Penalty(critic, weight)
    critic.register_forward_pre_hook(penalty.listen)
    for optimizer in _optimizers_of(setup, {id(p) for p in critic.parameters()}):
        optimizer.register_step_pre_hook(penalty.add)


class _Penalty:
    """(|dD/dx| - 1)^2 at points between what the critic was last given."""

    def __init__(self, critic: nn.Module, weight: float) -> None:
        self._critic, self._weight = critic, weight
        self._inputs: list[Tensor] = []
        self._busy = False

    def listen(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not self._busy and torch.is_grad_enabled() and args and isinstance(args[0], Tensor):
            self._inputs = [*self._inputs, args[0].detach()][-KEPT:]

    def add(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if len(self._inputs) < KEPT or self._inputs[0].shape != self._inputs[1].shape:
            return
        self._busy = True
        try:
            one, other = self._inputs
            share = torch.rand(len(one), *[1] * (one.ndim - 1), dtype=one.dtype, device=one.device)
            between = (share * one + (1 - share) * other).requires_grad_(True)
            parameters = [p for p in self._critic.parameters() if p.requires_grad]
            with torch.enable_grad():
                (slope,) = torch.autograd.grad(self._critic(between).sum(), between, create_graph=True)
                penalty = self._weight * (slope.flatten(1).norm(dim=1) - 1).square().mean()
                found = torch.autograd.grad(penalty, parameters, allow_unused=True)
        finally:
            self._busy = False
            self._inputs = []
        for parameter, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def _tell_penalty(*, where: str, weight: float) -> Repair:
    return Repair(
        f"add a gradient penalty of weight {weight:g} to the loss of {where}",
        "share = torch.rand(len(real), *[1] * (real.ndim - 1))\n"
        "between = (share * real + (1 - share) * fake.detach()).requires_grad_(True)\n"
        "(slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)\n"
        f"loss = loss + {weight:g} * (slope.flatten(1).norm(dim=1) - 1).square().mean()",
    )


def normalize_spectrum(setup: Setup, *, where: str) -> None:
    """Divide the matrix of each linear layer by its largest singular value.

    Convolutions are left out: the norm of a reshaped kernel is not that of the convolution.

    Raises:
        RepairError: There is no linear layer.
    """
    layers = [m for m in _part(setup, where).modules() if isinstance(m, nn.Linear) and not is_parametrized(m)]
    if not layers:
        raise RepairError(f"{where} has no linear layer")
    for layer in layers:
        spectral_norm(layer)
        adopt(setup, layer.parameters())


def _tell_spectrum(*, where: str) -> Repair:
    return Repair(
        f"spectral normalization of the linear layers of {where}",
        f'for m in model.get_submodule("{where}").modules():\n    if isinstance(m, torch.nn.Linear):\n'
        "        torch.nn.utils.parametrizations.spectral_norm(m)",
    )


def _part(setup: Setup, where: str) -> nn.Module:
    try:
        return setup.model.get_submodule(where)
    except AttributeError as error:
        raise RepairError(f"the model has no module {where}") from error


def _optimizers_of(setup: Setup, held: set[int]) -> list[Optimizer]:
    found = [o for o in setup.optimizers if any(id(p) in held for g in o.param_groups for p in g["params"])]
    if not found:
        raise RepairError("no optimizer trains these weights")
    return found


def _critics(finding: Finding, patient: Patient) -> list[str]:
    """The largest modules that the finding names: its places, or what they lie in that an optimizer has for itself."""
    names = {name for name, _ in patient.model.named_modules() if name}
    tops = {place.partition(".")[0] for place in finding.where if place.partition(".")[0] in names}
    exact = [place for place in finding.where if place in names]
    return sorted(tops) or exact


def _bounded(finding: Finding, patient: Patient) -> Iterator[Change]:
    for where in _critics(finding, patient):
        yield Change("penalize-gradient", {"where": where, "weight": PENALTY})
        yield from (Change("clip-weights", {"where": where, "bound": bound}) for bound in BOUNDS)
        yield Change("normalize-spectrum", {"where": where})


def _some_part(patient: Patient, rng: random.Random) -> str | None:
    names = [name for name, module in patient.model.named_children() if any(True for _ in module.parameters())]
    return rng.choice(names) if names else None


def _some_bound(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    where = _some_part(patient, rng)
    return None if where is None else {"where": where, "bound": float(f"{10 ** rng.uniform(-3, 1):.2g}")}


def _some_penalty(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    where = _some_part(patient, rng)
    return None if where is None else {"where": where, "weight": float(f"{10 ** rng.uniform(-2, 3):.2g}")}


def _some_spectrum(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    where = _some_part(patient, rng)
    return None if where is None else {"where": where}


KINDS = {
    "clip-weights": Kind(clip_weights, _tell_clip, _some_bound),
    "penalize-gradient": Kind(penalize, _tell_penalty, _some_penalty),
    "normalize-spectrum": Kind(normalize_spectrum, _tell_spectrum, _some_spectrum),
}

ANSWERS = {"lipschitz-blowup": _bounded}

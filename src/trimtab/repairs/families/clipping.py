"""How long a gradient may be: clipping added, loosened or given up."""

import math
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab._setup import Setup
from trimtab.diagnosis.probes import BATCHES, drawn
from trimtab.diagnosis.probes.calls import Declined
from trimtab.diagnosis.probes.trials import trial
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.patient import Patient
from trimtab.report import Finding, Repair

STEPS = 20
"""Steps of a copy on which the usual norm is measured."""

PERCENTILE = 0.5
"""Of the norms measured; where a run breaks, the later ones are the fault's own."""

CLIPPED = 0.999
"""A gradient that is shorter than this share of what the backward pass left was clipped."""


def clip(setup: Setup, *, bound: float) -> None:
    """Shorten gradients to a norm before each step."""
    for optimizer in setup.optimizers:
        optimizer.register_step_pre_hook(_Clip(bound))


class _Clip:
    """A pre-hook of an optimizer that clips all of its gradients together."""

    def __init__(self, bound: float) -> None:
        self._bound = bound

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        nn.utils.clip_grad_norm_(_parameters(optimizer), self._bound)


def _tell_clip(*, bound: float) -> Repair:
    return Repair(
        f"clip the gradient's norm at {bound:g}",
        f"torch.nn.utils.clip_grad_norm_(model.parameters(), {bound:g})  # between backward() and optimizer.step()",
    )


def loosen(setup: Setup, *, bound: float | None) -> None:
    """Clip at another bound than the user's loop does: what it took away is given back first.

    Clipping by norm multiplies every gradient by one number, so that the norms before and after it tell that number.

    Raises:
        RepairError: No parameter takes gradients.
    """
    parameters = [p for optimizer in setup.optimizers for p in _parameters(optimizer) if p.requires_grad]
    if not parameters:
        raise RepairError("no parameter takes gradients")
    for optimizer in setup.optimizers:
        undo = _Unclip(math.inf if bound is None else bound)
        for parameter in _parameters(optimizer):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(undo.note)  # type: ignore[no-untyped-call]
        optimizer.register_step_pre_hook(undo.give_back)


class _Unclip:
    """Remembers the gradient as the backward pass left it, and puts its length back, up to a bound."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._squares: dict[int, Tensor] = {}

    def note(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self._squares[id(parameter)] = parameter.grad.detach().double().square().sum()

    def give_back(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        gradients = [p.grad for p in _parameters(optimizer) if p.grad is not None]
        if not gradients or not self._squares:
            return
        raw = float(torch.stack(list(self._squares.values())).sum().sqrt())
        used = float(torch.stack([g.detach().double().square().sum() for g in gradients]).sum().sqrt())
        self._squares.clear()
        if 0 < used < CLIPPED * raw and math.isfinite(raw):
            for gradient in gradients:
                gradient.mul_(min(raw, self._bound) / used)


def _tell_loosen(*, bound: float | None) -> Repair:
    if bound is None:
        return Repair("leave the gradient unclipped", "# take the line with clip_grad_norm_ out")
    return Repair(
        f"raise the bound of gradient clipping to {bound:g}",
        f"torch.nn.utils.clip_grad_norm_(model.parameters(), {bound:g})",
    )


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _looser(finding: Finding, patient: Patient) -> Iterator[Change]:
    usual = next((e.measured for e in finding.evidence if isinstance(e.measured, float) and e.measured > 0), None)
    if usual is not None:
        yield Change("loosen-clipping", {"bound": _rounded(2 * usual)})
        yield Change("loosen-clipping", {"bound": _rounded(10 * usual)})
    yield Change("loosen-clipping", {"bound": None})


def _usual(finding: Finding, patient: Patient) -> Iterator[Change]:
    """Bounds at the usual norm and a tenth of it, measured on a few steps of a copy at a hundredth of the rate, where it does not run off."""
    norm = _measured(patient)
    if norm is not None:
        yield Change("clip", {"bound": _rounded(norm)})
        yield Change("clip", {"bound": _rounded(norm / 10)})


def _measured(patient: Patient) -> float | None:
    try:
        norms = trial(patient.setup, drawn(patient.setup, BATCHES), STEPS, factor=0.01).norms
    except Declined:
        return None
    finite = sorted(float(norm) for norm in norms if math.isfinite(norm) and norm > 0)
    return finite[int(PERCENTILE * (len(finite) - 1))] if finite else None


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")


def _some_bound(patient: Patient, rng: random.Random) -> dict[str, Any]:
    return {"bound": _rounded(10 ** rng.uniform(-2, 2))}


KINDS = {"clip": Kind(clip, _tell_clip, _some_bound), "loosen-clipping": Kind(loosen, _tell_loosen, _some_bound)}

ANSWERS = {
    "clipping-dominates": _looser,
    "exploding-gradient": _usual,
    "loss-spike": _usual,
    "nonfinite-loss": _usual,
    "missing-warmup": _usual,
}

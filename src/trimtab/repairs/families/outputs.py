"""What stands between the last layer and the loss: a second softmax, a norm, logits that drift."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.diagnosis.probes import drawn
from trimtab.diagnosis.probes.calls import Declined, loss_of, still
from trimtab.errors import RepairError
from trimtab.norms._kinds import kind_of
from trimtab.recording.walk import tensors
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.named import listed, loop_over, module_at
from trimtab.repairs.patient import Patient
from trimtab.repairs.surgery import replace_module
from trimtab.report import Finding, Repair

PROBABILITIES = (nn.Softmax, nn.Softmax2d, nn.LogSoftmax, nn.Sigmoid, nn.Hardsigmoid, nn.LogSigmoid)

Z = 1e-4
"""Weight of log^2 Z in PaLM (Chowdhery et al. 2022, arXiv:2204.02311, section 5)."""


def leave_out(setup: Setup, *, modules: Sequence[str]) -> None:
    """Put nothing in the place of some modules: norms, or what makes probabilities.

    Raises:
        RepairError: They are something else, or the model itself.
    """
    for name in modules:
        module = module_at(setup.model, name, (nn.Module,))
        if not isinstance(module, PROBABILITIES) and kind_of(module) is None:
            raise RepairError(f"{name!r} is a {type(module).__name__}, which cannot be left out")
        replace_module(setup, name, nn.Identity())


def _tell_leave_out(*, modules: Sequence[str]) -> Repair:
    code = loop_over(
        modules,
        'parent, _, child = name.rpartition(".")',
        "setattr(model.get_submodule(parent), child, torch.nn.Identity())",
    )
    return Repair(f"leave {listed(modules)} out: give the loss what comes before", code)


def undo_probabilities(setup: Setup, *, function: str) -> None:
    """Turn the probabilities that the model gives back into scores: log p for a softmax, log p/(1 - p) for a sigmoid.

    Raises:
        RepairError: The model gives no probabilities.
    """
    given = _given(setup)
    if not bool(((given >= 0) & (given <= 1)).all()):
        raise RepairError("the model gives no probabilities")
    totals = given.sum(1 if given.dim() == 4 else -1)
    if function == "softmax" and not torch.allclose(totals, torch.ones_like(totals), atol=1e-2):
        raise RepairError("what the model gives does not add up to one")
    setup.model.register_forward_hook(_Scores(function))


def _given(setup: Setup) -> Tensor:
    """What the model gives on the first batch, one tensor."""
    batch = drawn(setup, 1).batches[0]
    try:
        with still(setup):
            _, answers = loss_of(setup, batch)
    except Declined as reason:
        raise RepairError(str(reason)) from reason
    if len(answers) != 1 or answers[0].dim() < 1:
        raise RepairError("the loss does not call the model as a whole for one tensor")
    return answers[0]


class _Scores:
    """A hook, kept by value so that the model can be copied and pickled."""

    def __init__(self, function: str) -> None:
        self.function = function

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """The scores of probabilities."""
        limits = torch.finfo(output.dtype)
        return output.clamp_min(limits.tiny).log() if self.function == "softmax" else output.logit(eps=limits.eps)


def _tell_undo(*, function: str) -> Repair:
    log = "output.clamp_min(1e-38).log()" if function == "softmax" else "output.logit(eps=1e-7)"
    return Repair(
        f"give the loss the raw scores: drop the {function} at the end of the model's forward (here undone behind it)",
        f"model.register_forward_hook(lambda module, args, output: {log})   # or leave the {function} out of forward",
    )


def add_z_loss(setup: Setup, *, weight: float) -> None:
    """Add weight * log^2 Z of the model's logits to the setup's loss, which a step of the user's own may or may not use.

    Raises:
        RepairError: The model does not give one tensor of logits.
    """
    if _given(setup).dim() < 2:
        raise RepairError("the model gives no logits")
    setup.loss = _WithZ(setup.loss, weight)


class _WithZ:
    """A loss that hears what the model gives."""

    def __init__(self, loss: Any, weight: float) -> None:
        self._loss, self._weight = loss, weight

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        heard: list[Tensor] = []

        def hear(module: nn.Module, args: Any, output: Any) -> None:
            heard.extend(t for t in tensors(output) if t.is_floating_point() and t.dim() > 1)

        handle = model.register_forward_hook(hear)
        try:
            loss: Tensor = self._loss(model, batch)
        finally:
            handle.remove()
        if heard:
            loss = loss + self._weight * heard[0].float().logsumexp(-1 if heard[0].dim() != 4 else 1).square().mean()
        return loss


def _tell_z_loss(*, weight: float) -> Repair:
    return Repair(
        f"add {weight:g} log^2 Z of the logits to the loss (z-loss), which holds their size",
        f"loss = loss + {weight:g} * logits.logsumexp(-1).square().mean()",
    )


def _twice(finding: Finding, patient: Patient) -> Iterator[Change]:
    modules = dict(patient.model.named_modules())
    named = [name for name in finding.where if name and isinstance(modules.get(name), PROBABILITIES)]
    if named:
        yield Change("leave-out", {"modules": named})
        return
    binary = "sigmoid" in finding.summary
    yield Change("undo-probabilities", {"function": "sigmoid" if binary else "softmax"})


def _last_norm(finding: Finding, patient: Patient) -> Iterator[Change]:
    """A norm as the last thing before the loss."""
    modules = dict(patient.model.named_modules())
    if len(finding.where) == 1 and finding.where[0] in modules and kind_of(modules[finding.where[0]]):
        yield Change("leave-out", {"modules": [finding.where[0]]})


def _drifts(finding: Finding, patient: Patient) -> Iterator[Change]:
    yield from (Change("z-loss", {"weight": weight}) for weight in (Z, 10 * Z, 100 * Z))


def _some_leave_out(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = [n for n, m in patient.model.named_modules() if n and (isinstance(m, PROBABILITIES) or kind_of(m))]
    return {"modules": [rng.choice(names)]} if names else None


def _some_z_loss(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    return {"weight": float(f"{10 ** rng.uniform(-6, 0):.3g}")}


def _never(patient: Patient, rng: random.Random) -> None:
    """Undoing what is not there is no change that anybody would make by chance."""


KINDS = {
    "leave-out": Kind(leave_out, _tell_leave_out, _some_leave_out),
    "undo-probabilities": Kind(undo_probabilities, _tell_undo, _never),
    "z-loss": Kind(add_z_loss, _tell_z_loss, _some_z_loss),
}

ANSWERS = {
    "double-softmax": _twice,
    "norm-placement": _last_norm,
    "output-logit-drift": _drifts,
}

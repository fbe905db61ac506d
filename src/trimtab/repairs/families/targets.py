"""What the model's answers are compared with: its scale and its shape."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.recording.walk import tensors
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.feeding import Compared, change_batches, compared, first_pass, hold, loss_of, with_entry
from trimtab.repairs.patient import Patient
from trimtab.report import Finding, Repair

CHANGES = ("targets", "answers")
"""What is laid out anew where shapes differ."""

DECADES = 2
"""A random factor lies within so many decades of one."""


def standardize_targets(setup: Setup) -> None:
    """Train on targets of mean 0 and spread 1; in evaluation mode the model answers in the old units.

    Raises:
        RepairError: The batches hold no target, or the model does not answer with one tensor.
    """
    found = _with_answer(setup)
    mean, std = _moments(setup, found)
    _train_on(setup, found.entry, mean, std)


def scale_targets(setup: Setup, *, factor: float) -> None:
    """Train on targets multiplied by a number; in evaluation mode the model answers in the old units.

    Raises:
        RepairError: The batches hold no target, or the model does not answer with one tensor.
    """
    found = _with_answer(setup)
    _train_on(setup, found.entry, torch.zeros(()), torch.tensor(1 / factor))


def scale_outputs(setup: Setup) -> None:
    """Stretch and shift the model's answers to the mean and spread of the targets, in either mode.

    Raises:
        RepairError: The batches hold no target, or the model does not answer with one tensor.
    """
    mean, std = _moments(setup, _with_answer(setup))
    _answer_in(setup, mean, std, always=True)


def match_shapes(setup: Setup, *, change: str) -> None:
    """Give the targets of the batches the shape of the answers, or answers in training that of the targets.

    Raises:
        RepairError: They have as many values and the same shape, or other numbers of values.
    """
    found = _unlike(setup)
    if change == "answers" or found.answer is None:
        setup.model.register_forward_hook(_Shaped(tuple(found.target.shape[1:])))
        return
    shape = found.answer.shape[1:]
    change_batches(
        setup,
        lambda batches: (with_entry(batch, found.entry, lambda t: t.reshape(len(t), *shape)) for batch in batches),
    )
    loss_of(setup, first_pass(setup, 1)[0])  # refuses where the loss cannot do with it


@dataclass
class _Shaped:
    """A forward hook that lays out the answers of a training pass."""

    shape: tuple[int, ...]

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output.reshape(len(output), *self.shape) if module.training else output


@dataclass
class _Units:
    """A forward hook that gives answers in the targets' units: y = std * answer + mean."""

    buffers: dict[str, str]
    always: bool

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        if module.training and not self.always:
            return output
        if not isinstance(output, Tensor):
            raise RepairError("the model does not answer with one tensor")
        mean, std = (getattr(module, self.buffers[key]).to(output) for key in ("mean", "std"))
        return output * std + mean


def _train_on(setup: Setup, entry: int, mean: Tensor, std: Tensor) -> None:
    def scaled(target: Tensor) -> Tensor:
        wide = target if target.device.type == "mps" else target.double()
        return ((wide - mean.to(wide)) / std.to(wide)).to(target.dtype)

    change_batches(setup, lambda batches: (with_entry(batch, entry, scaled) for batch in batches))
    _answer_in(setup, mean, std)


def _answer_in(setup: Setup, mean: Tensor, std: Tensor, always: bool = False) -> None:
    names = hold(setup.model, "target", {"mean": mean, "std": std})
    setup.model.register_forward_hook(_Units(names, always))


def _with_answer(setup: Setup) -> Compared:
    found = compared(setup)
    if found.answer is None or not found.answer.is_floating_point():
        raise RepairError("the model does not answer with one floating tensor")
    return found


def _moments(setup: Setup, found: Compared) -> tuple[Tensor, Tensor]:
    """Mean and spread of the targets: of each column where answers and targets are tables of the same shape, else of all."""
    columns = found.answer is not None and found.target.ndim == 2 and found.answer.shape == found.target.shape
    entries = [list(tensors(batch))[found.entry].double() for batch in first_pass(setup)]
    rows = torch.cat([t if columns else t.reshape(-1, 1) for t in entries]).cpu()
    rows = rows[rows.isfinite().all(1)]
    if len(rows) < 2:
        raise RepairError("there are too few targets to take a spread of")
    std = rows.std(0, correction=0)
    std = torch.where(std > 0, std, 1.0)
    mean = rows.mean(0)
    return (mean, std) if columns else (mean[0], std[0])


def _unlike(setup: Setup) -> Compared:
    found = _with_answer(setup)
    answer = found.answer
    if answer is None or answer.ndim == 0 or found.target.ndim == 0:
        raise RepairError("answers or targets have no axes")
    if answer.shape == found.target.shape or answer.numel() != found.target.numel() or len(answer) != len(found.target):
        raise RepairError("answers and targets have the same shape, or no shape in common")
    return found


# How it is told --------------------------------------------------------------------------------------------------------


def _tell_standardize() -> Repair:
    return Repair(
        "train on standardized targets, and let the model answer in the old units in evaluation mode",
        "mean, std = y_train.mean(0), y_train.std(0, correction=0)\n"
        "y_train = (y_train - mean) / std\n"
        'model.register_buffer("target_mean", mean)\n'
        'model.register_buffer("target_std", std)\n'
        "model.register_forward_hook(\n"
        "    lambda module, args, y: y if module.training else y * module.target_std + module.target_mean\n"
        ")",
    )


def _tell_scale(*, factor: float) -> Repair:
    return Repair(
        f"train on targets times {factor:g}, and let the model answer in the old units in evaluation mode",
        f"y_train = {factor:g} * y_train\n"
        f"model.register_forward_hook(lambda module, args, y: y if module.training else y / {factor:g})",
    )


def _tell_outputs() -> Repair:
    return Repair(
        "stretch and shift the model's answers to the mean and spread of the targets",
        "mean, std = y_train.mean(0), y_train.std(0, correction=0)\n"
        'model.register_buffer("target_mean", mean)\n'
        'model.register_buffer("target_std", std)\n'
        "model.register_forward_hook(lambda module, args, y: y * module.target_std + module.target_mean)",
    )


def _tell_shapes(*, change: str) -> Repair:
    if change == "answers":
        return Repair(
            "give the model's answers the shape of the targets in the loss",
            "prediction = model(x).reshape(y.shape)",
        )
    return Repair(
        "give the targets the shape of the model's answers",
        "y = y.reshape(model(x).shape)  # in the loss, before it compares them",
    )


# Answers and draws -----------------------------------------------------------------------------------------------------


def _scale(finding: Finding, patient: Patient) -> Iterator[Change]:
    yield Change("standardize-targets")
    yield Change("scale-outputs")
    try:
        found = compared(patient.setup)
    except RepairError:
        return
    size = float(found.target.double().square().mean().sqrt())
    if size > 0 and math.isfinite(size):
        yield Change("scale-targets", {"factor": float(f"{1 / size:.3g}")})


def _reshape(finding: Finding, patient: Patient) -> Iterator[Change]:
    yield from (Change("match-shapes", {"change": what}) for what in CHANGES)


def _if_compared(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    try:
        _with_answer(patient.setup)
    except RepairError:
        return None
    return {}


def _some_factor(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    if _if_compared(patient, rng) is None:
        return None
    return {"factor": float(f"{10 ** rng.uniform(-DECADES, DECADES):.3g}")}


def _if_unlike(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    try:
        _unlike(patient.setup)
    except RepairError:
        return None
    return {"change": rng.choice(CHANGES)}


KINDS = {
    "standardize-targets": Kind(standardize_targets, _tell_standardize, _if_compared),
    "scale-targets": Kind(scale_targets, _tell_scale, _some_factor),
    "scale-outputs": Kind(scale_outputs, _tell_outputs, _if_compared),
    "match-shapes": Kind(match_shapes, _tell_shapes, _if_unlike),
}

ANSWERS = {
    "unscaled-targets": _scale,
    "broadcast-loss": _reshape,
}

"""What the model is fed with: standardized, decorrelated, rescaled, filled or clipped, by tensors that the model holds."""

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab._setup import Setup
from trimtab.diagnosis.probes.calls import mapped
from trimtab.errors import RepairError
from trimtab.recording.walk import tensors
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.feeding import Port, change_batches, change_input, fed, first_pass, ports
from trimtab.repairs.patient import Patient
from trimtab.report import Finding, Repair

WIDEST = 512
"""Features up to which a covariance is worth its cost."""

FLOORS = (1e-8, 1e-4)
"""Variances, over the largest of the standardized inputs, under which a direction is not stretched to full size: rounding of single
precision has a variance of about 1e-14; what is below the noise of the data is not worth having."""


DECADES = 2
"""A random factor lies within so many decades of one."""


def standardize_inputs(setup: Setup, *, index: int = 0) -> None:
    """Subtract each feature's mean and divide by its spread.

    Raises:
        RepairError: The model is not given floating data there.
    """
    port = _port(setup, index)
    mean, std = _moments(setup, port)
    change_input(setup, port, "standardize", {"mean": _laid(mean, port), "std": _laid(std, port)}, _standardized)


def whiten_inputs(setup: Setup, *, index: int = 0, floor: float = FLOORS[0]) -> None:
    """Give a table features without correlation and of variance 1, by the eigenvectors of their covariance.

    Raises:
        RepairError: The model is not given a table there, or one of too many columns.
    """
    port = _port(setup, index)
    if port.ndim != 2:
        raise RepairError("only a table (samples, features) can be decorrelated")
    mean, std = _moments(setup, port)
    if not 2 <= len(mean) <= WIDEST:
        raise RepairError(f"a table of 2 to {WIDEST} features can be decorrelated, this one has {len(mean)}")
    rows = torch.cat([_standardized(_wide(x), mean.to(x.device), std.to(x.device)) for x in fed(setup, port)])
    rows = rows[rows.isfinite().all(1)]
    values, vectors = torch.linalg.eigh(rows.T @ rows / max(len(rows), 1))
    if not float(values[-1]) > 0:
        raise RepairError("the inputs are constant")
    turn = vectors / values.clamp(min=floor * float(values[-1])).sqrt()
    change_input(setup, port, "whiten", {"mean": mean, "turn": turn.cpu() / std[:, None]}, _turned)


def scale_inputs(setup: Setup, *, factor: float, index: int = 0) -> None:
    """Multiply by a number."""
    change_input(setup, _port(setup, index), "scale", {"factor": torch.tensor(factor)}, _scaled)


def missing_values(setup: Setup, *, how: str, index: int = 0) -> None:
    """Put a number in the place of what is none, in the model; or leave such samples out of training.

    Raises:
        RepairError: The model is not given floating data; or no sample is to be left out, or tensors of a batch do not share the axis
            of the samples.
    """
    if how == "drop":
        _drop(setup)
        return
    port = _port(setup, index)
    mean = _moments(setup, port)[0]
    change_input(setup, port, "fill", {"mean": _laid(mean if how == "mean" else torch.zeros_like(mean), port)}, _filled)


def _drop(setup: Setup) -> None:
    batches = first_pass(setup)
    if not any(_holds_nonfinite(batch) for batch in batches):
        raise RepairError("the batches hold finite numbers only")
    if any(len({len(t) if t.ndim else None for t in tensors(batch)}) != 1 for batch in batches):
        raise RepairError("the tensors of a batch have no common axis of samples")
    change_batches(setup, lambda batches: (kept for batch in batches if (kept := _finite_samples(batch)) is not None))


def clip_inputs(setup: Setup, *, spreads: float, index: int = 0) -> None:
    """Clip each feature at some standard deviations from its mean."""
    port = _port(setup, index)
    mean, std = (_laid(moment, port) for moment in _moments(setup, port))
    change_input(setup, port, "clip", {"low": mean - spreads * std, "high": mean + spreads * std}, _clipped)


# What is done to a tensor ----------------------------------------------------------------------------------------------


def _wide(x: Tensor) -> Tensor:
    return x if x.device.type == "mps" else x.double()


def _standardized(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return ((_wide(x) - mean) / std).to(x.dtype)


def _turned(x: Tensor, mean: Tensor, turn: Tensor) -> Tensor:
    return ((_wide(x) - mean) @ turn.to(_wide(x))).to(x.dtype)


def _scaled(x: Tensor, factor: Tensor) -> Tensor:
    return (x * factor).to(x.dtype)


def _filled(x: Tensor, mean: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, mean.to(x))


def _clipped(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return x.clamp(low.to(x), high.to(x))


def _finite_samples(batch: Any) -> Any:
    """The batch without samples that hold what is no number; None where none is left."""
    floating = [t for t in tensors(batch) if t.is_floating_point()]
    good = torch.stack([t.isfinite().flatten(1).all(1) if t.ndim > 1 else t.isfinite() for t in floating]).all(0)
    if bool(good.all()):
        return batch
    return mapped(batch, lambda t: t[good.to(t.device)]) if bool(good.any()) else None


# What the data is like -------------------------------------------------------------------------------------------------


def _port(setup: Setup, index: int) -> Port:
    port = next((port for port in ports(setup) if port.index == index), None)
    if port is None:
        raise RepairError(f"the model is given no floating tensor at place {index}")
    return port


def _moments(setup: Setup, port: Port) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each feature, of what are numbers; a constant one counts as of spread 1."""
    from trimtab.norms import Standardizer  # needs scikit-learn, which loads slowly

    seen = Standardizer(feature_dim=port.axis if port.ndim > 2 else 1)
    for x in fed(setup, port):
        seen.partial_fit(torch.where(x.isfinite(), x, math.nan))
    mean, std = (torch.from_numpy(np.array(moment, dtype=np.float64)) for moment in (seen.mean_, seen.scale_))
    return mean.nan_to_num(), torch.where(std > 0, std, 1.0)


def _laid(moment: Tensor, port: Port) -> Tensor:
    """One number a feature, in the layout of what comes in."""
    return moment if port.ndim < 2 else moment.view([-1 if axis == port.axis else 1 for axis in range(port.ndim)])


def _holds_nonfinite(batch: Any) -> bool:
    return any(not bool(t.isfinite().all()) for t in tensors(batch) if t.is_floating_point())


# How it is told --------------------------------------------------------------------------------------------------------

MOMENTS = """\
axes = [a for a in range(x_train.ndim) if a != 1]  # features on axis 1; on the last of sequences (samples, time, features)
mean, std = x_train.mean(axes, keepdim=True), x_train.std(axes, keepdim=True, correction=0)
std[std == 0] = 1
"""


def _told(text: str, before: str, held: str, change: str, index: int) -> Repair:
    """A change of the inputs as code: tensors from the training inputs, held by the model, and a hook."""
    buffers = "".join(f'model.register_buffer("input_{name}", {name})\n' for name in held.split())
    front = f"*args[:{index}], " if index else ""
    made = change.replace("{x}", f"args[{index}]")
    hook = f"model.register_forward_pre_hook(lambda module, args: ({front}{made}, *args[{index + 1}:]))"
    return Repair(text, before + buffers + hook)


def _tell_standardize(*, index: int = 0) -> Repair:
    return _told(
        "standardize every feature of the inputs by the training data's mean and spread, inside the model",
        MOMENTS,
        "mean std",
        "({x} - module.input_mean) / module.input_std",
        index,
    )


def _tell_whiten(*, index: int = 0, floor: float = FLOORS[0]) -> Repair:
    return _told(
        "decorrelate the inputs (whitening) by the training data's covariance, inside the model",
        "mean, std = x_train.double().mean(0), x_train.double().std(0, correction=0)\n"
        "std[std == 0] = 1\n"
        "z = (x_train - mean) / std\n"
        "values, vectors = torch.linalg.eigh(z.T @ z / len(z))\n"
        f"turn = vectors / values.clamp(min={floor:g} * values[-1]).sqrt() / std[:, None]\n",
        "mean turn",
        "(({x} - module.input_mean) @ module.input_turn).float()",
        index,
    )


def _tell_scale(*, factor: float, index: int = 0) -> Repair:
    return _told(f"multiply the inputs by {factor:g}, inside the model", "", "", f"{factor:g} * {{x}}", index)


def _tell_missing(*, how: str, index: int = 0) -> Repair:
    if how == "drop":
        return Repair(
            "leave out training samples with NaN or infinite values",
            "good = torch.isfinite(x_train).flatten(1).all(1)\nx_train, y_train = x_train[good], y_train[good]",
        )
    axes = "axes = [a for a in range(x_train.ndim) if a != 1]  # features on axis 1\n"
    mean = "mean = torch.where(x_train.isfinite(), x_train, torch.nan).nanmean(axes, keepdim=True).nan_to_num()\n"
    return _told(
        f"fill what is NaN or infinite in the inputs with {'the mean of its feature' if how == 'mean' else 'zero'}, inside the model",
        axes + mean if how == "mean" else "",
        "mean" if how == "mean" else "",
        f"torch.where({{x}}.isfinite(), {{x}}, {'module.input_mean' if how == 'mean' else '0.0'})",
        index,
    )


def _tell_clip(*, spreads: float, index: int = 0) -> Repair:
    return _told(
        f"clip every feature of the inputs at {spreads:g} standard deviations from its mean, inside the model",
        MOMENTS + f"low, high = mean - {spreads:g} * std, mean + {spreads:g} * std\n",
        "low high",
        "{x}.clamp(module.input_low, module.input_high)",
        index,
    )


# Answers and draws -----------------------------------------------------------------------------------------------------


def _worst_first(patient: Patient) -> list[tuple[int, float]]:
    """Places of the inputs, with the root mean square of each; those furthest from what standardized ones have first."""
    found = []
    try:
        for port in ports(patient.setup):
            values = torch.cat([x.flatten().double() for x in fed(patient.setup, port)])
            values = values[values.isfinite()]
            size = float(values.square().mean().sqrt()) if len(values) else 0.0
            found.append((port.index, size))
    except RepairError:
        return []
    return sorted(found, key=lambda pair: abs(math.log(max(pair[1], 1e-30))), reverse=True)


def _scale(finding: Finding, patient: Patient) -> Iterator[Change]:
    for index, size in _worst_first(patient)[:2]:
        yield Change("standardize-inputs", {"index": index})
        if size > 0:
            yield Change("scale-inputs", {"index": index, "factor": float(f"{1 / size:.3g}")})


def _decorrelate(finding: Finding, patient: Patient) -> Iterator[Change]:
    for index, _ in _worst_first(patient)[:1]:
        yield from (Change("whiten-inputs", {"index": index, "floor": floor}) for floor in FLOORS)
        yield Change("standardize-inputs", {"index": index})


def _fill(finding: Finding, patient: Patient) -> Iterator[Change]:
    if finding.code == "nonfinite-loss" and not any(map(_holds_nonfinite, first_pass(patient.setup))):
        return
    for index, _ in _worst_first(patient):
        yield Change("missing-values", {"how": "mean", "index": index})
    yield Change("missing-values", {"how": "drop"})


def _some_input(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    places = [index for index, _ in _worst_first(patient)]
    return {"index": rng.choice(places)} if places else None


def _some_whitening(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    place = _some_input(patient, rng)
    return place and {**place, "floor": float(f"{10 ** rng.uniform(-10, 0):.3g}")}


def _some_factor(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    place = _some_input(patient, rng)
    return place and {**place, "factor": float(f"{10 ** rng.uniform(-DECADES, DECADES):.3g}")}


def _some_spreads(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    place = _some_input(patient, rng)
    return place and {**place, "spreads": float(f"{10 ** rng.uniform(-0.5, 1.5):.3g}")}


def _if_nonfinite(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    if not any(map(_holds_nonfinite, first_pass(patient.setup))):
        return None
    place = _some_input(patient, rng)
    return {"how": "drop"} if place is None else {**place, "how": rng.choice(("mean", "zero", "drop"))}


KINDS = {
    "standardize-inputs": Kind(standardize_inputs, _tell_standardize, _some_input),
    "whiten-inputs": Kind(whiten_inputs, _tell_whiten, _some_whitening),
    "scale-inputs": Kind(scale_inputs, _tell_scale, _some_factor),
    "missing-values": Kind(missing_values, _tell_missing, _if_nonfinite),
    "clip-inputs": Kind(clip_inputs, _tell_clip, _some_spreads),
}

ANSWERS = {
    "unscaled-inputs": _scale,
    "ill-conditioned": _decorrelate,
    "nonfinite-data": _fill,
    "nonfinite-loss": _fill,
}

"""Weight decay, and the constant under Adam's root."""

import random
from collections.abc import Iterator
from typing import Any

from torch import nn

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.patient import Patient
from trimtab.repairs.surgery import split_groups
from trimtab.report import Finding, Repair

ADAM_EPS = 1e-8
"""PyTorch's own; a larger one shortens the steps of what gets small gradients."""


def scale_decay(setup: Setup, *, factor: float) -> None:
    """Multiply every weight decay.

    Raises:
        RepairError: There is none.
    """
    groups = [g for o in setup.optimizers for g in o.param_groups if g.get("weight_decay")]
    if not groups:
        raise RepairError("there is no weight decay")
    for group in groups:
        group["weight_decay"] = group["weight_decay"] * factor


def _tell_scale(*, factor: float) -> Repair:
    if factor == 0:
        return Repair(
            "train without weight decay", 'for group in optimizer.param_groups:\n    group["weight_decay"] = 0.0'
        )
    return Repair(
        f"weight decay {1 / factor:g} times smaller" if factor < 1 else f"weight decay {factor:g} times larger",
        f'for group in optimizer.param_groups:\n    group["weight_decay"] *= {factor:g}',
    )


def spare_vectors(setup: Setup) -> None:
    """Take the weight decay off everything that is no matrix: the gains and shifts of norms, and biases.

    Raises:
        RepairError: None of them is decayed.
    """
    vectors = {id(p) for p in setup.model.parameters() if p.ndim < 2}
    decayed = any(
        id(p) in vectors and g.get("weight_decay")
        for o in setup.optimizers
        for g in o.param_groups
        for p in g["params"]
    )
    if not decayed:
        raise RepairError("no norm parameter or bias is decayed")
    split_groups(setup, lambda p: id(p) in vectors, weight_decay=0.0)


def _tell_spare() -> Repair:
    return Repair(
        "no weight decay on norm parameters and biases",
        "matrices = [p for p in model.parameters() if p.ndim > 1]\n"
        "vectors = [p for p in model.parameters() if p.ndim < 2]  # gains and shifts of norms, biases\n"
        'optimizer = Optimizer([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], ...)',
    )


def set_eps(setup: Setup, *, eps: float) -> None:
    """Set Adam's eps.

    Raises:
        RepairError: No optimizer has another one.
    """
    groups = [g for o in setup.optimizers for g in o.param_groups if isinstance(g.get("eps"), float)]
    if all(group["eps"] == eps for group in groups):
        raise RepairError("no optimizer has another eps")
    for group in groups:
        group["eps"] = eps


def _tell_eps(*, eps: float) -> Repair:
    return Repair(
        f"eps of the optimizer at {eps:g}", f'for group in optimizer.param_groups:\n    group["eps"] = {eps:g}'
    )


def _less(finding: Finding, patient: Patient) -> Iterator[Change]:
    yield from (Change("scale-decay", {"factor": factor}) for factor in (0.01, 0.0, 0.1, 0.001))


def _spare_first(finding: Finding, patient: Patient) -> Iterator[Change]:
    yield Change("spare-vectors")
    yield from _less(finding, patient)


def _eps(finding: Finding, patient: Patient) -> Iterator[Change]:
    eps = [g["eps"] for o in patient.setup.optimizers for g in o.param_groups if isinstance(g.get("eps"), float)]
    if eps and max(eps) > ADAM_EPS:
        yield Change("adam-eps", {"eps": ADAM_EPS})


def _some_factor(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    decayed = any(g.get("weight_decay") for o in patient.setup.optimizers for g in o.param_groups)
    return {"factor": float(f"{10 ** rng.uniform(-3, 3):.3g}")} if decayed else None


def _if_vectors(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    decayed = any(g.get("weight_decay") for o in patient.setup.optimizers for g in o.param_groups)
    return (
        {} if decayed and any(isinstance(p, nn.Parameter) and p.ndim < 2 for p in patient.model.parameters()) else None
    )


def _some_eps(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    adaptive = any(isinstance(g.get("eps"), float) for o in patient.setup.optimizers for g in o.param_groups)
    return {"eps": float(f"{10 ** rng.uniform(-12, -3):.2g}")} if adaptive else None


KINDS = {
    "scale-decay": Kind(scale_decay, _tell_scale, _some_factor),
    "spare-vectors": Kind(spare_vectors, _tell_spare, _if_vectors),
    "adam-eps": Kind(set_eps, _tell_eps, _some_eps),
}

ANSWERS = {
    "excessive-weight-decay": _less,
    "decayed-norm-parameters": _spare_first,
    "learning-rate-too-low": _eps,
}

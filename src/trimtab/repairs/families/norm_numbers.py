"""The statistics and gains of normalizations: momentum, exact running statistics, where gains begin."""

import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.norms import recalibrate
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.families.norm_kind import batch_norms, norms_of
from trimtab.repairs.feeding import BATCHES
from trimtab.repairs.lot import some_of
from trimtab.repairs.named import listed
from trimtab.repairs.patient import Patient
from trimtab.report import Finding, Repair

USUAL = 0.1
"""PyTorch's momentum, the weight of the newest batch."""

HASTY = 0.5
"""Momentum from which on it is likely meant the other way round."""


def set_momentum(setup: Setup, *, momentum: float | None, layers: Sequence[str] | None = None) -> None:
    """Give running statistics another momentum.

    Raises:
        RepairError: None has another one.
    """
    changed = False
    for module in _tracking(setup.model, layers):
        changed |= module.momentum != momentum
        module.momentum = momentum
    if not changed:
        raise RepairError(f"no running statistics have a momentum other than {momentum}")


def set_gains(setup: Setup, *, gain: float, layers: Sequence[str] | None = None) -> None:
    """Let normalizations begin with another gain.

    Raises:
        RepairError: None has a gain, or all have this one.
    """
    changed = False
    for module in _with_gain(setup.model, layers).values():
        changed |= not bool((module.weight == gain).all())
        nn.init.constant_(module.weight, gain)
    if not changed:
        raise RepairError(f"no normalization has a gain other than {gain:g}")


def recalibrate_first(setup: Setup, *, batches: int = BATCHES) -> None:
    """Compute running statistics anew, exactly, before the first evaluation that follows training.

    Raises:
        RepairError: There are none.
    """
    if not list(_tracking(setup.model, None)):
        raise RepairError("the model keeps no running statistics")
    model = setup.model
    model.register_buffer("statistics_are_new", torch.ones((), dtype=torch.bool), persistent=False)
    model.register_forward_pre_hook(_Recalibrate(setup.batches, setup.loss, batches), prepend=True)


@dataclass
class _Recalibrate:
    """A forward pre-hook; what it must remember is a buffer of the model, so that it is put back with the rest."""

    batches: Callable[[], Iterable[Any]]
    loss: Callable[[nn.Module, Any], Tensor]
    count: int
    busy: bool = False

    def __call__(self, module: nn.Module, args: Any) -> None:
        if module.training:
            module.statistics_are_new = torch.zeros((), dtype=torch.bool)
        elif not module.statistics_are_new and not self.busy:
            self.busy = True
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that batches are unlike is said by the finding
                    recalibrate(module, list(self._few()), forward=self.loss)
            finally:
                self.busy = False
            module.statistics_are_new = torch.ones((), dtype=torch.bool)

    def _few(self) -> Iterator[Any]:
        from trimtab._unchanged import unchanged

        with unchanged(used_by=(self.batches,)) as kept:
            source = self.batches()
            kept.add_data(source)
            for batch, _ in zip(source, range(self.count), strict=False):
                yield batch

    def __deepcopy__(self, memo: Any) -> "_Recalibrate":
        return _Recalibrate(self.batches, self.loss, self.count, self.busy)  # the user's functions are theirs


def _tracking(model: nn.Module, layers: Sequence[str] | None) -> Iterator[Any]:
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats and (layers is None or name in layers):
            yield module


def _with_gain(model: nn.Module, layers: Sequence[str] | None) -> dict[str, Any]:
    """Normalizations that have a gain, by name."""
    named_ones: dict[str, Any] = dict(model.named_modules())
    names = [name for name in norms_of(model) if layers is None or name in layers]
    return {n: named_ones[n] for n in names if isinstance(getattr(named_ones[n], "weight", None), Tensor)}


# How it is told --------------------------------------------------------------------------------------------------------


def _tell_momentum(*, momentum: float | None, layers: Sequence[str] | None = None) -> Repair:
    meaning = (
        "the plain mean of all batches"
        if momentum is None
        else f"momentum {momentum:g}, the weight of the newest batch"
    )
    return Repair(
        f"let running statistics follow with {meaning}: {listed(layers)}",
        each_in_code(
            layers, "isinstance(module, torch.nn.modules.batchnorm._NormBase)", f"module.momentum = {momentum}"
        ),
    )


def _tell_gains(*, gain: float, layers: Sequence[str] | None = None) -> Repair:
    return Repair(
        f"let the normalization begin with a gain of {gain:g}: {listed(layers)}",
        each_in_code(layers, _IS_NORM, f"torch.nn.init.constant_(module.weight, {gain:g})"),
    )


def _tell_recalibrate(*, batches: int = BATCHES) -> Repair:
    return Repair(
        "compute the running statistics anew from training batches, after training and before evaluation",
        f"import itertools\n\ntrimtab.norms.recalibrate(model, list(itertools.islice(train_loader, {batches})))  # after training",
    )


_IS_NORM = "'norm' in type(module).__name__.lower() and getattr(module, 'weight', None) is not None"


def each_in_code(layers: Sequence[str] | None, which: str, what: str) -> str:
    """What is done to each of some modules, as code.

    Args:
        layers: Names of the modules; None for all that are as `which` says.
        which: A condition on `module`.
        what: What is done to `module`.

    Returns:
        A loop.
    """
    if layers is None:
        return f"for module in model.modules():\n    if {which}:\n        {what}"
    return f"for name in {list(layers)!r}:\n    module = model.get_submodule(name)\n    {what}"


# Answers and draws -----------------------------------------------------------------------------------------------------


def _momentum(finding: Finding, patient: Patient) -> Iterator[Change]:
    """The usual one where it is far from that, or the other convention's; statistics without one; exact ones."""
    held = {m.momentum for m in _tracking(patient.model, batch_norms(finding, patient))}
    if not held:
        return
    every = {name: m for name, m in patient.model.named_modules() if m in set(_tracking(patient.model, None))}
    alike = [
        name for name, m in every.items() if m.momentum in held
    ]  # what a finding has not named may follow no better
    only: dict[str, Any] = {} if len(alike) == len(every) else {"layers": alike}
    other = {round(1 - m, 6) for m in held if m is not None and HASTY <= m < 1}
    for momentum in dict.fromkeys((*sorted(other), USUAL)):
        yield Change("set-momentum", {"momentum": momentum, **only})
    yield Change("recalibrate")
    if finding.code == "stale-running-stats":
        yield Change("set-momentum", {"momentum": None, **only})


def _gains(finding: Finding, patient: Patient) -> Iterator[Change]:
    """Gains of one where they are all zero, and nothing gets through."""
    zero = [name for name, m in _with_gain(patient.model, None).items() if not bool(m.weight.any())]
    if zero:
        yield Change("set-gains", {"gain": 1.0, "layers": zero})


def _some_momentum(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = [name for name, m in patient.model.named_modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not names:
        return None
    momentum = None if rng.random() < 0.1 else float(f"{10 ** rng.uniform(-4, 0):.3g}")
    return {"momentum": momentum, "layers": some_of(names, rng)}


def _some_gain(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = list(_with_gain(patient.model, None))
    return {"gain": float(f"{10 ** rng.uniform(-2, 1):.3g}"), "layers": some_of(names, rng)} if names else None


def _if_tracking(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    return {"batches": round(2 ** rng.uniform(0, 6))} if list(_tracking(patient.model, None)) else None


KINDS = {
    "set-momentum": Kind(set_momentum, _tell_momentum, _some_momentum),
    "set-gains": Kind(set_gains, _tell_gains, _some_gain),
    "recalibrate": Kind(recalibrate_first, _tell_recalibrate, _if_tracking),
}

ANSWERS = {
    "stale-running-stats": _momentum,
    "train-eval-gap": _momentum,
    "vanishing-gradient": _gains,
    "signal-collapse": _gains,
    "frozen-parameters": _gains,
}

"""The numbers of a normalization: momentum, eps, gains, precision, exact statistics."""

import math
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
from trimtab.norms._kinds import is_row_norm, kind_of
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.families.norm_kind import batch_norms, named, norms_of, some
from trimtab.repairs.feeding import BATCHES
from trimtab.repairs.patient import Patient
from trimtab.repairs.surgery import replace_module
from trimtab.repairs.walking import Stop, spread_out, walk
from trimtab.report import Finding, Repair

USUAL = 0.1
"""PyTorch's momentum, the weight of the newest batch."""

HASTY = 0.5
"""Momentum from which on it is likely meant the other way round."""

HALF_EPS = (1e-3, 1e-5)
"""What half precision can hold: its smallest normal number is 6e-5, and 1e-5 is held with a digit or two."""

GUARD = 100
"""An eps is to be so much smaller than the variance that it guards."""

DECADES = 4
"""A random eps lies within so many decades of the user's."""

_EPS = ("eps", "epsilon", "variance_epsilon")


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


def set_eps(setup: Setup, *, eps: float, layers: Sequence[str]) -> None:
    """Give normalizations another eps.

    Raises:
        RepairError: None has another one.
    """
    changed = False
    for name in layers:
        module = setup.model.get_submodule(name)
        for attribute in _EPS:
            held = getattr(module, attribute, None)
            if isinstance(held, float) and held != eps:
                setattr(module, attribute, eps)
                changed = True
    if not changed:
        raise RepairError(f"none of the modules has an eps other than {eps:g}")


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


def in_single(setup: Setup, *, layers: Sequence[str]) -> None:
    """Let normalizations compute in single precision, and hand on what they were given the format of.

    One written by hand is replaced by PyTorch's LayerNorm or RMSNorm, whichever gives the same.

    Raises:
        RepairError: One computes something else.
    """
    if not layers:
        raise RepairError("the model has no normalization")
    for name in layers:
        module = setup.model.get_submodule(name)
        if kind_of(module) is None:
            module = _library_norm(module)
            replace_module(setup, name, module)
        module.float()
        module.register_forward_pre_hook(_widen)
        module.register_forward_hook(_narrow)


def _widen(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    first, *rest = args
    module.__dict__["format_given"] = first.dtype
    return (first.float(), *rest)


def _narrow(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output.to(module.__dict__.pop("format_given", output.dtype))


def _library_norm(module: nn.Module) -> nn.Module:
    """PyTorch's norm that computes what one written by hand does, with its parameters."""
    held = dict(module.named_parameters(recurse=False))
    weight, bias = held.get("weight"), held.get("bias")
    eps = _eps_of(module)
    if weight is None or weight.ndim != 1 or len(held) > 2 or eps is None or list(module.children()):
        raise RepairError(f"nobody knows what {type(module).__name__} computes")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, len(weight), generator=generator).to(weight.device) + 0.5
    for kind in (nn.LayerNorm, nn.RMSNorm):
        if kind is nn.RMSNorm and bias is not None:
            continue
        new: Any = kind(len(weight), eps=max(eps, 1e-6))
        new.weight = weight
        if isinstance(new, nn.LayerNorm):
            new.bias = bias  # type: ignore[assignment]
        with torch.no_grad():
            try:
                if torch.allclose(new.float()(x), module(x.clone()).float(), atol=1e-2):
                    return new  # type: ignore[no-any-return]
            except Exception as error:  # the module's own code, on an input that it may not be made for
                raise RepairError(f"{type(module).__name__} cannot be called by itself") from error
    raise RepairError(f"{type(module).__name__} computes neither a LayerNorm nor an RMSNorm")


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


def _eps_of(module: nn.Module) -> float | None:
    return next((v for a in _EPS if isinstance(v := getattr(module, a, None), float)), None)


# How it is told --------------------------------------------------------------------------------------------------------


def _tell_momentum(*, momentum: float | None, layers: Sequence[str] | None = None) -> Repair:
    meaning = (
        "the plain mean of all batches"
        if momentum is None
        else f"momentum {momentum:g}, the weight of the newest batch"
    )
    return Repair(
        f"let running statistics follow with {meaning}: {named(layers)}",
        _each(layers, "isinstance(module, torch.nn.modules.batchnorm._NormBase)", f"module.momentum = {momentum}"),
    )


def _tell_eps(*, eps: float, layers: Sequence[str]) -> Repair:
    return Repair(
        f"give {named(layers)} an eps of {eps:g}",
        _each(layers, "", f"module.eps = {eps:g}"),
    )


def _tell_gains(*, gain: float, layers: Sequence[str] | None = None) -> Repair:
    return Repair(
        f"let the normalization begin with a gain of {gain:g}: {named(layers)}",
        _each(layers, _IS_NORM, f"torch.nn.init.constant_(module.weight, {gain:g})"),
    )


def _tell_single(*, layers: Sequence[str]) -> Repair:
    return Repair(
        f"compute the normalization in single precision: {named(layers)}",
        _each(
            layers,
            "",
            "module.float()\n"
            "    module.register_forward_pre_hook(lambda m, args: (args[0].float(),))\n"
            "    # and y.to(x.dtype) behind it; a norm written by hand: torch.nn.LayerNorm(width, eps=1e-5) in its place",
        ),
    )


def _tell_recalibrate(*, batches: int = BATCHES) -> Repair:
    return Repair(
        "compute the running statistics anew from training batches, after training and before evaluation",
        f"trimtab.norms.recalibrate(model, list(itertools.islice(train_loader, {batches})))  # after training",
    )


_IS_NORM = "'norm' in type(module).__name__.lower() and getattr(module, 'weight', None) is not None"


def _each(layers: Sequence[str] | None, which: str, what: str) -> str:
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


def _precision(finding: Finding, patient: Patient) -> Iterator[Change]:
    """An eps that the format holds, or that the variance outweighs; statistics in single precision."""
    names = [name for name in finding.where if _has_eps(patient.model, name)]
    if not names:
        return
    now = max(_eps_of(patient.model.get_submodule(name)) or 0.0 for name in names)
    weak = [s for s in _given_to(patient, names) if spread_out(s.given) < now]  # type: ignore[arg-type]
    if weak:
        least = min(spread_out(s.given) for s in weak)  # type: ignore[arg-type]
        if least > 0:
            yield Change("set-eps", {"eps": 10.0 ** math.floor(math.log10(least / GUARD)), "layers": names})
    for eps in HALF_EPS:
        if eps > now:
            yield Change("set-eps", {"eps": eps, "layers": names})
    yield Change("in-single-precision", {"layers": names})


def _gains(finding: Finding, patient: Patient) -> Iterator[Change]:
    """Gains of one where they are all zero, and nothing gets through."""
    zero = [name for name, m in _with_gain(patient.model, None).items() if not bool(m.weight.any())]
    if zero:
        yield Change("set-gains", {"gain": 1.0, "layers": zero})


def _given_to(patient: Patient, names: Sequence[str]) -> list[Stop]:
    try:
        return [s for s in walk(patient.setup) if s.name in names and s.given is not None]
    except RepairError:
        return []


def _has_eps(model: nn.Module, name: str) -> bool:
    try:
        return bool(name) and _eps_of(model.get_submodule(name)) is not None
    except AttributeError:
        return False


def _some_momentum(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = [name for name, m in patient.model.named_modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not names:
        return None
    momentum = None if rng.random() < 0.1 else float(f"{10 ** rng.uniform(-4, 0):.3g}")
    return {"momentum": momentum, "layers": some(names, rng)}


def _some_eps(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = _with_eps(patient.model)
    if not names:
        return None
    chosen = some(names, rng)
    now = _eps_of(patient.model.get_submodule(chosen[0])) or 1e-5
    return {"eps": float(f"{now * 10 ** rng.uniform(-DECADES, DECADES):.3g}"), "layers": chosen}


def _some_gain(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = list(_with_gain(patient.model, None))
    return {"gain": float(f"{10 ** rng.uniform(-2, 1):.3g}"), "layers": some(names, rng)} if names else None


def _some_single(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = [
        n
        for n in _with_eps(patient.model)
        if kind_of(patient.model.get_submodule(n)) or is_row_norm(patient.model.get_submodule(n))
    ]
    return {"layers": some(names, rng)} if names else None


def _with_eps(model: nn.Module) -> list[str]:
    own = [name for name, m in model.named_modules() if name and not list(m.children()) and _eps_of(m) is not None]
    return list(dict.fromkeys((*norms_of(model), *own)))


def _if_tracking(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    return {"batches": round(2 ** rng.uniform(0, 6))} if list(_tracking(patient.model, None)) else None


KINDS = {
    "set-momentum": Kind(set_momentum, _tell_momentum, _some_momentum),
    "set-eps": Kind(set_eps, _tell_eps, _some_eps),
    "set-gains": Kind(set_gains, _tell_gains, _some_gain),
    "in-single-precision": Kind(in_single, _tell_single, _some_single),
    "recalibrate": Kind(recalibrate_first, _tell_recalibrate, _if_tracking),
}

ANSWERS = {
    "stale-running-stats": _momentum,
    "train-eval-gap": _momentum,
    "norm-precision": _precision,
    "vanishing-gradient": _gains,
    "signal-collapse": _gains,
    "frozen-parameters": _gains,
}

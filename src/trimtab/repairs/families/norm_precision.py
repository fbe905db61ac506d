"""The precision of normalizations: an eps that their format can hold, and statistics in single precision."""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.norms._kinds import is_row_norm, kind_of
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.families.norm_kind import norms_of
from trimtab.repairs.families.norm_numbers import each_in_code
from trimtab.repairs.lot import some_of
from trimtab.repairs.named import listed
from trimtab.repairs.patient import Patient
from trimtab.repairs.surgery import replace_module
from trimtab.repairs.walking import Stop, spread_out, walk
from trimtab.report import Finding, Repair

HALF_EPS = (1e-3, 1e-5)
"""What half precision can hold: its smallest normal number is 6e-5, and 1e-5 is held with a digit or two."""


GUARD = 100
"""An eps is to be so much smaller than the variance that it guards."""


DECADES = 4
"""A random eps lies within so many decades of the user's."""


_EPS = ("eps", "epsilon", "variance_epsilon")


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


def _eps_of(module: nn.Module) -> float | None:
    return next((v for a in _EPS if isinstance(v := getattr(module, a, None), float)), None)


def _tell_eps(*, eps: float, layers: Sequence[str]) -> Repair:
    return Repair(
        f"give {listed(layers)} an eps of {eps:g}",
        each_in_code(layers, "", f"module.eps = {eps:g}"),
    )


def _tell_single(*, layers: Sequence[str]) -> Repair:
    return Repair(
        f"compute the normalization in single precision: {listed(layers)}",
        each_in_code(
            layers,
            "",
            "module.float()\n"
            "    module.register_forward_pre_hook(lambda m, args: (args[0].float(),))\n"
            "    # and y.to(x.dtype) behind it; a norm written by hand: torch.nn.LayerNorm(width, eps=1e-5) in its place",
        ),
    )


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


def _some_eps(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = _with_eps(patient.model)
    if not names:
        return None
    chosen = some_of(names, rng)
    now = _eps_of(patient.model.get_submodule(chosen[0])) or 1e-5
    return {"eps": float(f"{now * 10 ** rng.uniform(-DECADES, DECADES):.3g}"), "layers": chosen}


def _some_single(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = [
        n
        for n in _with_eps(patient.model)
        if kind_of(patient.model.get_submodule(n)) or is_row_norm(patient.model.get_submodule(n))
    ]
    return {"layers": some_of(names, rng)} if names else None


def _with_eps(model: nn.Module) -> list[str]:
    own = [name for name, m in model.named_modules() if name and not list(m.children()) and _eps_of(m) is not None]
    return list(dict.fromkeys((*norms_of(model), *own)))


KINDS = {
    "set-eps": Kind(set_eps, _tell_eps, _some_eps),
    "in-single-precision": Kind(in_single, _tell_single, _some_single),
}

ANSWERS = {
    "norm-precision": _precision,
}

"""Which normalization a model has, and where: converted, given fewer groups, left out, put in."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from trimtab._setup import Setup
from trimtab.errors import NormalizationError, RepairError
from trimtab.norms import convert
from trimtab.norms._kinds import is_row_norm, kind_of, names_of
from trimtab.norms.layers import BatchRenorm1d, BatchRenorm2d, BatchRenorm3d
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.lot import some_of
from trimtab.repairs.named import listed
from trimtab.repairs.patient import Patient, at
from trimtab.repairs.surgery import replace_module
from trimtab.report import Finding, Repair

ALONE = ("layer_norm", "group_norm", "rms_norm")
"""Kinds that take nothing from other samples."""

KINDS_OF_NORM = (*ALONE, "batch_norm", "instance_norm", "none")

VALUES = 16
"""Values a group should have at least: below, one of them moves its own statistics by over 6 %."""


_RENORMS: dict[type[nn.Module], Any] = {
    nn.BatchNorm1d: BatchRenorm1d,
    nn.BatchNorm2d: BatchRenorm2d,
    nn.BatchNorm3d: BatchRenorm3d,
}


def convert_norms(setup: Setup, *, to: str, layers: Sequence[str] | None = None) -> None:
    """Turn normalizations into another kind.

    Raises:
        RepairError: There is none, or none of them can be that kind.
    """
    names = norms_of(setup.model) if layers is None else list(layers)
    if not names:
        raise RepairError("the model has no normalization")
    if to == "batch_renorm":
        _renormalize(setup, names)
        return
    try:
        done = convert(setup.model, to, layers=names)
    except NormalizationError as error:
        raise RepairError(str(error)) from error
    if not done.changes:
        raise RepairError(f"no normalization can be turned into {to}")
    for change in done.changes:
        _replace_everywhere(setup, change.names[0], done.model.get_submodule(change.names[0]))


def _renormalize(setup: Setup, names: Sequence[str]) -> None:
    found = False
    for name in names:
        old: Any = setup.model.get_submodule(name)
        kind = _RENORMS.get(type(old))
        if kind is None or old.running_mean is None:
            continue
        new = kind(old.num_features, old.eps, old.momentum, old.affine, warm_up=_warm_up(setup.steps))
        new.load_state_dict(old.state_dict())
        new.weight, new.bias = old.weight, old.bias
        _replace_everywhere(setup, name, new.to(old.running_mean.device))
        found = True
    if not found:
        raise RepairError("no plain BatchNorm with running statistics is there")


def _warm_up(steps: int) -> tuple[int, int, int]:
    """Batches after which the limits of batch renormalization begin to rise, and are reached: the paper's are of 160 000 steps."""
    return steps // 20, steps // 4, steps // 4


def fewer_groups(setup: Setup, *, groups: int, layers: Sequence[str]) -> None:
    """Give group normalizations fewer groups.

    Raises:
        RepairError: The number divides the channels of none of them.
    """
    found = False
    for name in layers:
        norm = setup.model.get_submodule(name)
        if isinstance(norm, nn.GroupNorm) and groups != norm.num_groups and norm.num_channels % groups == 0:
            norm.num_groups, found = groups, True
    if not found:
        raise RepairError(f"no group normalization can have {groups} groups")


def drop_norms(setup: Setup, *, layers: Sequence[str]) -> None:
    """Leave normalizations out.

    Raises:
        RepairError: A name is the model's own, or there is none.
    """
    if not layers:
        raise RepairError("the model has no normalization")
    for name in layers:
        _replace_everywhere(setup, name, nn.Identity())


def _replace_everywhere(setup: Setup, name: str, new: nn.Module) -> None:
    old = setup.model.get_submodule(name)
    for each in names_of(setup.model, old):
        replace_module(setup, each, new)


def norms_of(model: nn.Module) -> list[str]:
    """Names of a model's normalizations.

    Args:
        model: The model.

    Returns:
        The names, those of classes that look like a norm among them.
    """
    return [name for name, m in model.named_modules() if name and (kind_of(m) is not None or is_row_norm(m))]


# How it is told --------------------------------------------------------------------------------------------------------


def _tell_convert(*, to: str, layers: Sequence[str] | None = None) -> Repair:
    words = to.replace("_", " ")
    if to == "batch_renorm":
        code = (
            "from trimtab.norms.layers import BatchRenorm1d  # and 2d, 3d\n"
            f"for name in {_names_in_code(layers)}:\n"
            "    old, (parent, _, child) = model.get_submodule(name), name.rpartition('.')\n"
            "    new = BatchRenorm1d(old.num_features, old.eps, old.momentum)\n"
            "    setattr(model.get_submodule(parent), child, new)  # before the optimizer is made"
        )
        return Repair(f"turn batch normalization into {words}: {listed(layers)}", code)
    only = "" if layers is None else f", layers={list(layers)!r}"
    return Repair(
        f"turn the normalization into {words if to != 'none' else 'a plain scale and shift'}: {listed(layers)}",
        f'model = trimtab.norms.convert(model, to="{to}"{only}).model  # before the optimizer is made',
    )


def _names_in_code(layers: Sequence[str] | None) -> str:
    if layers is None:
        return "[n for n, m in model.named_modules() if isinstance(m, torch.nn.BatchNorm1d)]"
    return repr(list(layers))


def _tell_fewer(*, groups: int, layers: Sequence[str]) -> Repair:
    return Repair(
        f"take {groups} group(s) in {listed(layers)}, so that each has several values",
        f"for name in {list(layers)!r}:\n    model.get_submodule(name).num_groups = {groups}",
    )


def _tell_drop(*, layers: Sequence[str]) -> Repair:
    return Repair(
        f"leave the normalization out: {listed(layers)}",
        f"for name in {list(layers)!r}:\n"
        "    parent, _, child = name.rpartition('.')\n"
        "    setattr(model.get_submodule(parent), child, torch.nn.Identity())",
    )


# Answers and draws -----------------------------------------------------------------------------------------------------


def batch_norms(finding: Finding, patient: Patient) -> list[str] | None:
    """The batch normalizations that a finding is about.

    Args:
        finding: The finding.
        patient: The run.

    Returns:
        Their names; None for all.
    """
    named_ones = at(patient.model, finding.where, (_BatchNorm,))
    every = [name for name, m in patient.model.named_modules() if isinstance(m, _BatchNorm)]
    return None if named_ones == every and len(every) == len(norms_of(patient.model)) else named_ones


def _alone(finding: Finding, patient: Patient) -> Iterator[Change]:
    """A norm that leaves other samples out of it: over the features of a table, over groups of channels of a picture."""
    layers = batch_norms(finding, patient)
    if layers == []:
        return
    with_layers: dict[str, Any] = {} if layers is None else {"layers": layers}
    first = ("group_norm", "layer_norm") if _convolves(patient.model) else ("layer_norm", "group_norm")
    many = {"small-batch-batchnorm": 3, "train-eval-gap": 2}.get(finding.code, 1)  # others are mended by less
    for to in (*first, "batch_renorm")[:many]:
        yield Change("convert-norms", {"to": to, **with_layers})


def _convolves(model: nn.Module) -> bool:
    return any(isinstance(m, nn.modules.conv._ConvNd) for m in model.modules())


def _degenerate(finding: Finding, patient: Patient) -> Iterator[Change]:
    layers = [name for name in finding.where if name and _is_norm(patient.model, name)]
    if not layers:
        return
    grouped = [name for name in layers if isinstance(patient.model.get_submodule(name), nn.GroupNorm)]
    if grouped:
        norm: Any = patient.model.get_submodule(grouped[0])
        yield from (
            Change("fewer-groups", {"groups": g, "layers": grouped})
            for g in _numbers(norm.num_channels, norm.num_groups)
        )
    yield Change("drop-norms", {"layers": layers})


def _numbers(channels: int, now: int) -> list[int]:
    """Numbers of groups with enough values each, of channels alone: the largest, then one."""
    most = next((g for g in range(max(channels // VALUES, 1), 0, -1) if channels % g == 0), 1)
    return [g for g in dict.fromkeys((most, 1)) if g < now]


def _is_norm(model: nn.Module, name: str) -> bool:
    try:
        module = model.get_submodule(name)
    except AttributeError:
        return False
    return not list(module.children())


def _some_kind(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = [name for name in norms_of(patient.model) if kind_of(patient.model.get_submodule(name)) is not None]
    if not names:
        return None
    return {"to": rng.choice((*KINDS_OF_NORM, "batch_renorm")), "layers": some_of(names, rng)}


def _some_groups(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    grouped = {name: m for name, m in patient.model.named_modules() if name and isinstance(m, nn.GroupNorm)}
    if not grouped:
        return None
    name = rng.choice(list(grouped))
    channels = grouped[name].num_channels
    numbers = [g for g in range(1, channels + 1) if channels % g == 0 and g != grouped[name].num_groups]
    return {"groups": rng.choice(numbers), "layers": [name]} if numbers else None


def _some_drop(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    names = norms_of(patient.model)
    return {"layers": some_of(names, rng)} if names else None


KINDS = {
    "convert-norms": Kind(convert_norms, _tell_convert, _some_kind),
    "fewer-groups": Kind(fewer_groups, _tell_fewer, _some_groups),
    "drop-norms": Kind(drop_norms, _tell_drop, _some_drop),
}

ANSWERS = {
    "small-batch-batchnorm": _alone,
    "train-eval-gap": _alone,
    "stale-running-stats": _alone,
    "degenerate-normalization": _degenerate,
}

"""Normalizations put in, behind layers that lack one."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.norms._groups import group_count
from trimtab.norms._kinds import is_row_norm, kind_of
from trimtab.norms.channel_layers import ChannelLayerNorm, ChannelRMSNorm
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.lot import some_of
from trimtab.repairs.named import listed
from trimtab.repairs.patient import Patient
from trimtab.repairs.surgery import replace_module
from trimtab.repairs.walking import Stop, is_weight, walk
from trimtab.report import Finding, Repair

ENOUGH = 16
"""Samples from which on a batch's statistics are worth having (Wu & He 2018)."""


def insert_norms(setup: Setup, *, kind: str, layers: Sequence[str]) -> None:
    """Put a normalization behind linear layers or convolutions.

    Raises:
        RepairError: A layer is the model itself, or of no kind that it can follow.
    """
    if not layers:
        raise RepairError("the model has no linear layer or convolution that lacks a normalization")
    for name in layers:
        layer = setup.model.get_submodule(name)
        norm = _norm_behind(layer, kind).to(layer.weight.device, layer.weight.dtype)  # type: ignore[arg-type]
        replace_module(setup, name, nn.Sequential(layer, norm))


def _norm_behind(layer: nn.Module, kind: str) -> nn.Module:
    if isinstance(layer, nn.Linear):
        flat: dict[str, Callable[[int], nn.Module]] = {
            "layer_norm": nn.LayerNorm,
            "rms_norm": nn.RMSNorm,
            "batch_norm": nn.BatchNorm1d,
        }
        made = flat.get(kind)
        width = layer.out_features
    elif isinstance(layer, nn.modules.conv._ConvNd):
        rank = len(layer.kernel_size)
        deep: dict[str, Callable[[int], nn.Module]] = {
            "layer_norm": ChannelLayerNorm,
            "rms_norm": ChannelRMSNorm,
            "batch_norm": (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 1],
            "group_norm": lambda channels: nn.GroupNorm(group_count(channels), channels),
        }
        made = deep.get(kind)
        width = layer.out_channels
    else:
        made, width = None, 0
    if made is None:
        raise RepairError(f"no {kind} can follow a {type(layer).__name__}")
    return made(width)


def _tell_insert(*, kind: str, layers: Sequence[str]) -> Repair:
    code = (
        f"for name in {list(layers)!r}:\n"
        "    layer, (parent, _, child) = model.get_submodule(name), name.rpartition('.')\n"
    )
    if kind == "group_norm":
        code += "    norm = torch.nn.GroupNorm(max(layer.out_channels // 4, 1), layer.out_channels)  # groups of 4 channels\n"
    elif kind == "batch_norm":
        code += (
            "    flat = isinstance(layer, torch.nn.Linear)\n"
            "    norm = torch.nn.BatchNorm1d(layer.out_features) if flat else torch.nn.BatchNorm2d(layer.out_channels)\n"
        )
    else:
        flat, deep = ("LayerNorm", "ChannelLayerNorm") if kind == "layer_norm" else ("RMSNorm", "ChannelRMSNorm")
        code += (
            "    flat = isinstance(layer, torch.nn.Linear)\n"
            f"    norm = torch.nn.{flat}(layer.out_features) if flat else trimtab.norms.{deep}(layer.out_channels)\n"
        )
    return Repair(
        f"put a {kind.replace('_', ' ')} behind {listed(layers)}",
        code
        + "    setattr(model.get_submodule(parent), child, torch.nn.Sequential(layer, norm))  # before the optimizer is made",
    )


def bare_layers(patient: Patient) -> list[Stop]:
    """Linear layers and convolutions with something behind them that is no norm; all but the last.

    Args:
        patient: The run.

    Returns:
        Their first calls, in the order of the pass.
    """
    try:
        stops = walk(patient.setup)
    except RepairError:
        return []
    found: dict[str, Stop] = {}
    weights = [i for i, stop in enumerate(stops) if is_weight(stop.module)]
    for i in weights[:-1]:
        stop, after = stops[i], stops[i + 1].module
        parent = patient.model.get_submodule(stop.name.rpartition(".")[0])
        fused = isinstance(parent, (nn.TransformerEncoderLayer, nn.MultiheadAttention))  # read the weights themselves
        if stop.name and not fused and kind_of(after) is None and not is_row_norm(after):
            found.setdefault(stop.name, stop)
    return list(found.values())


def _insert(finding: Finding, patient: Patient) -> Iterator[Change]:
    stops = bare_layers(patient)
    layers = [stop.name for stop in stops]
    for kind in _kinds_behind(stops)[:2]:
        yield Change("insert-norms", {"kind": kind, "layers": layers})


def _kinds_behind(stops: Sequence[Stop]) -> list[str]:
    """Kinds that can follow all of these layers, the best first."""
    given = [(isinstance(stop.module, nn.Linear), stop.given) for stop in stops if stop.given is not None]
    if not given:
        return []
    kinds = ["layer_norm", "rms_norm"]
    if not any(flat for flat, _ in given):
        kinds.insert(0, "group_norm")
    if all(x.ndim == 2 or not flat for flat, x in given):  # of a sequence, BatchNorm1d takes the steps for channels
        kinds.insert(0 if len(given[0][1]) >= ENOUGH else len(kinds), "batch_norm")
    return kinds


def _some_place(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    stops = bare_layers(patient)
    kinds = _kinds_behind(stops)
    return {"kind": rng.choice(kinds), "layers": some_of([stop.name for stop in stops], rng)} if kinds else None


KINDS = {
    "insert-norms": Kind(insert_norms, _tell_insert, _some_place),
}

ANSWERS = {
    "vanishing-gradient": _insert,
    "exploding-gradient": _insert,
    "signal-collapse": _insert,
    "saturated-units": _insert,
}

"""Batch statistics without the padded positions of sequences, where the data tells which are padded."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.norms.layers import MaskedBatchNorm1d
from trimtab.recording.walk import tensors
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.lot import some_of
from trimtab.repairs.named import listed
from trimtab.repairs.patient import Patient, at
from trimtab.repairs.surgery import replace_module
from trimtab.repairs.walking import walk
from trimtab.report import Finding, Repair

OFTEN = 0.3
"""Share of the sequences that must end in one and the same token for it to be padding."""


def mask_padding(setup: Setup, *, layers: Sequence[str]) -> None:
    """Let batch normalizations take their statistics over the real positions only.

    Raises:
        RepairError: A layer is no BatchNorm1d over sequences, or nothing tells which positions are padded.
    """
    shapes = _sequences(setup)
    if not layers or any(name not in shapes for name in layers):
        raise RepairError("only a BatchNorm1d with running statistics over sequences (N, C, L) can leave padding out")
    given: list[tuple[Any, ...]] = []
    handle = setup.model.register_forward_pre_hook(lambda m, a, k: given.append((a, k)), with_kwargs=True)
    try:
        walk(setup)
    finally:
        handle.remove()
    if not given or any(real_positions(given[0], shapes[name]) is None for name in layers):
        raise RepairError("nothing that the model is given tells which positions are padded")
    for name in layers:
        old: Any = setup.model.get_submodule(name)
        new = MaskedBatchNorm1d(old.num_features, old.eps, old.momentum, old.affine)
        new.load_state_dict(old.state_dict())
        new.weight, new.bias = old.weight, old.bias
        new.to(old.running_mean.device).register_forward_pre_hook(_with_mask)
        replace_module(setup, name, new)
    setup.model.register_forward_pre_hook(_Given(tuple(layers)), with_kwargs=True)


@dataclass
class _Given:
    """A forward pre-hook of the model that hands what it is given to its masked norms."""

    layers: tuple[str, ...]

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        for name in self.layers:
            module.get_submodule(name).__dict__["given_to_model"] = (args, kwargs)


def _with_mask(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    (x,) = args
    given = module.__dict__.pop("given_to_model", None)
    mask = None if given is None else real_positions(given, (len(x), x.shape[-1]))
    return args if mask is None else (x, mask)


def real_positions(given: Any, shape: tuple[int, int]) -> Tensor | None:
    """Which positions of sequences are real.

    Args:
        given: What a model is given: a mask, lengths, or sequences that end in padding (one token repeated, or zeros).
        shape: Sequences and their length, (N, L).

    Returns:
        True where real, of that shape; None where nothing is padded, or nothing tells.
    """
    samples, length = shape
    held = [t.detach() for t in tensors(given) if t.ndim and len(t) == samples]
    for tensor in held:
        mask = _read(tensor, length)
        if mask is not None and not bool(mask.all()) and bool(mask[:, 0].any()):
            return mask
    return None


def _read(tensor: Tensor, length: int) -> Tensor | None:
    """A mask, lengths or padded sequences, read as the real positions."""
    if tensor.dtype == torch.bool and tensor.shape[1:] == (length,):
        return ~tensor if float(tensor[:, -1].float().mean()) > float(tensor[:, 0].float().mean()) else tensor
    places = torch.arange(length, device=tensor.device)
    whole = not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool
    if whole and tensor.ndim == 1:
        fits = int(tensor.max()) == length and int(tensor.min()) > 0
        return places < tensor[:, None] if fits else None
    if whole and tensor.shape[1:] == (length,):
        last = tensor[:, -1]
        padding = last.mode().values
        return _before_the_end(tensor == padding) if float((last == padding).float().mean()) > OFTEN else None
    if tensor.is_floating_point() and tensor.ndim == 3 and length in tensor.shape[1:]:
        return _before_the_end((tensor == 0).all(2 if tensor.shape[1] == length else 1))
    return None


def _before_the_end(padded: Tensor) -> Tensor:
    """Real is what stands before the run of padding at the end; a sequence of nothing else has none."""
    run = padded.flip(1).long().cumprod(1).flip(1)
    return run == 0


def _sequences(setup: Setup) -> dict[str, tuple[int, int]]:
    """Batch normalizations of sequences, and the shape of these."""
    return {
        s.name: (len(s.given), s.given.shape[-1])
        for s in walk(setup)
        if type(s.module) is nn.BatchNorm1d
        and s.module.track_running_stats
        and s.given is not None
        and s.given.ndim == 3
    }


def _tell(*, layers: Sequence[str]) -> Repair:
    return Repair(
        f"take the statistics over the real positions only: {listed(layers)}",
        "norm = trimtab.norms.layers.MaskedBatchNorm1d(channels)  # in the place of "
        f"{listed(layers)}\ny = norm(x, mask)  # mask (N, L), True where real",
    )


def _answer(finding: Finding, patient: Patient) -> Iterator[Change]:
    layers = at(patient.model, finding.where, (nn.BatchNorm1d,))
    if layers:
        yield Change("mask-padding", {"layers": layers})
        yield Change("convert-norms", {"to": "layer_norm", "layers": layers})


def _some(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    try:
        names = list(_sequences(patient.setup))
    except RepairError:
        return None
    settings = {"layers": some_of(names, rng)} if names else None
    return settings if settings and patient.takes(Change("mask-padding", settings)) else None


KINDS = {"mask-padding": Kind(mask_padding, _tell, _some)}

ANSWERS = {"padding-in-batch-stats": _answer}

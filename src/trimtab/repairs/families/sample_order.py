"""In which order the training samples come."""

import functools
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor

from trimtab._setup import Setup
from trimtab.diagnosis.batches_alike import ALIKE
from trimtab.diagnosis.probes.calls import mapped
from trimtab.errors import RepairError
from trimtab.recording.walk import tensors
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.feeding import change_batches, first_pass
from trimtab.repairs.patient import Patient
from trimtab.report import Finding, Repair

HELD = 4096
"""Batches that are held at once: of a stream without end, so many are shuffled among themselves."""


def shuffle_samples(setup: Setup, *, seed: int = 0) -> None:
    """Shuffle the samples of each pass, and put them into batches of the same sizes.

    Raises:
        RepairError: A pass is one batch, or the tensors of a batch do not share the axis of the samples.
    """
    batches = first_pass(setup, 2)
    if len(batches) < 2:
        raise RepairError("a pass is one batch: there is nothing to shuffle")
    if any(_form(batch) is None for batch in batches):
        raise RepairError("the tensors of a batch have no common axis of samples")
    change_batches(setup, functools.partial(_shuffled, numbers=count(), seed=seed, held=max(HELD, setup.steps)))


def _shuffled(batches: Iterable[Any], numbers: Iterator[int], seed: int, held: int) -> Iterator[Any]:
    """A pass with its samples in another order, another one each pass."""
    number = next(numbers)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        if len(waiting) == held:
            yield from _mixed(waiting, generator)
            waiting = []
    yield from _mixed(waiting, generator)


def _mixed(batches: list[Any], generator: torch.Generator) -> Iterator[Any]:
    """Batches of the same form exchange their samples; one of its own form stays as it is."""
    groups: dict[Any, list[int]] = {}
    for place, batch in enumerate(batches):
        form = _form(batch)
        groups.setdefault(place if form is None else form, []).append(place)
    given: dict[int, Any] = {}
    for places in groups.values():
        if len(places) < 2:
            given[places[0]] = batches[places[0]]
            continue
        sizes = [len(next(tensors(batches[place]))) for place in places]
        order = torch.split(torch.randperm(sum(sizes), generator=generator), sizes)
        columns = [
            torch.cat(column) for column in zip(*(list(tensors(batches[place])) for place in places), strict=True)
        ]
        for place, rows in zip(places, order, strict=True):
            given[place] = mapped(batches[place], _next_of(columns, rows))
    for place in range(len(batches)):
        yield given[place]


def _next_of(columns: list[Tensor], rows: Tensor) -> Callable[[Tensor], Tensor]:
    following = iter(columns)
    return lambda old: next(following)[rows.to(old.device)]


def _form(batch: Any) -> tuple[Any, ...] | None:
    """What batches must have in common to exchange samples; None where one has no axis of samples."""
    held = list(tensors(batch))
    if not held or any(t.ndim == 0 for t in held) or len({len(t) for t in held}) != 1:
        return None
    return tuple((tuple(t.shape[1:]), t.dtype, t.device) for t in held)


def _tell() -> Repair:
    return Repair(
        "shuffle the training samples anew each pass, so that each batch holds a bit of everything",
        "loader = torch.utils.data.DataLoader(loader.dataset, batch_size=loader.batch_size, shuffle=True)",
    )


def unlike(batches: list[Any]) -> bool:
    """Whether the labels of batches differ more than those of shuffled samples would.

    Args:
        batches: Several batches.

    Returns:
        True where the batches' means of a label scatter more than `ALIKE` times as much: of each class by itself for whole numbers.
    """
    held = [list(tensors(batch)) for batch in batches]
    if len(held) < 3 or any(_form(batch) is None for batch in batches) or len({len(h) for h in held}) != 1:
        return False
    for column in zip(*held, strict=True):
        if column[0].numel() == len(column[0]) and _scatter([t.reshape(-1) for t in column]) > ALIKE:
            return True
    return False


def _scatter(parts: list[Tensor]) -> float:
    """Variance of the parts' means, times their size, over the variance of all: 1 for shuffled samples."""
    whole = torch.cat(parts)
    if whole.is_floating_point():
        table = whole.double()[:, None]
    else:
        classes = torch.unique(whole)
        if len(classes) > len(whole) // 4:
            return 0.0
        table = (whole[:, None] == classes).double()
    spread = table.var(0).sum()
    means = torch.stack([part.mean(0) for part in torch.split(table, [len(part) for part in parts])])
    size = len(whole) / len(parts)
    return float(size * means.var(0).sum() / spread) if float(spread) > 0 else 0.0


def _shuffle(finding: Finding, patient: Patient) -> Iterator[Change]:
    if "data" in finding.where or unlike(first_pass(patient.setup)):
        yield Change("shuffle-samples")


def _some_seed(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    return {"seed": rng.randrange(1000)}


KINDS = {"shuffle-samples": Kind(shuffle_samples, lambda seed=0: _tell(), _some_seed)}

ANSWERS = {
    "train-eval-gap": _shuffle,
    "stale-running-stats": _shuffle,
    "small-batch-batchnorm": _shuffle,
}

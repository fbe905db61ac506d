"""Does what the model is fed with help it? The loss beside that with the inputs exchanged between samples.

Karpathy's input-independent baseline: with inputs that tell nothing the loss must be worse. Inputs are exchanged rather than set to
zero, so that they stay as likely as they were; the loss with zeros is measured beside it.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab._setup import Setup
from trimtab.diagnosis.probes.calls import (
    SEED,
    Call,
    Declined,
    Drawn,
    facts_of,
    first_call,
    loss_of,
    still,
    without_dropout,
)
from trimtab.diagnosis.probes.copies import copied, descend, trained
from trimtab.diagnosis.probes.samples import per_sample, sample_axis

LARGE = 10_000_000
"""Parameters from which on one batch is looked at: by their number, not by a clock, so that a diagnosis says the same each time."""

INVARIANT = 1e-6
"""Change of the loss over the loss, up to which it is rounding: a loss of all samples that does not care for their order."""

TRIAL = 3
"""Steps of a trial: a last layer that starts at zero moves at the first, what lies before it at the second."""

STEP = 0.1
"""Length of a trial's first step, relative to the parameters."""


def probe(setup: Setup, drawn: Drawn) -> dict[str, Any]:
    """Exchange inputs between samples and see what becomes of answers and loss.

    Args:
        setup: The setup; everything is as it was afterwards.
        drawn: Its first batches.

    Returns:
        "loss", "exchanged" and "zeroed": mean losses; "scatter": standard error of the mean of exchanged less loss over the batches,
        "batches"; "moved": how far the answers move, relative to their size; "tells": whether the loss can tell at all, which it cannot
        where the target goes through the model with the input, or there is none. Or "declined".
    """
    return facts_of(lambda: _probe(setup, drawn))


def probe_before_training(setup: Setup, drawn: Drawn) -> dict[str, Any]:
    """The same for a net at its start; where answers do not move, again after a few steps of a copy.

    A last layer of zeros answers all samples alike at its start, and learns all the same.

    Args:
        setup: The setup; everything is as it was afterwards.
        drawn: Its first batches.

    Returns:
        As `probe`, with "tried": steps that a copy took before.
    """
    first = probe(setup, Drawn(drawn.batches[:1], drawn.size))
    if first.get("moved", 1.0) > 0.0:
        return first | {"tried": 0}
    return facts_of(lambda: _after_a_few_steps(setup, drawn))


def _after_a_few_steps(setup: Setup, drawn: Drawn) -> dict[str, Any]:
    with copied(setup) as trial:
        trial.model.train()
        without_dropout(trial.model)
        parameters = trained(trial)
        if not parameters:
            raise Declined("no optimizer holds a parameter that needs a gradient")
        size = float(torch.stack([p.detach().norm() for p in parameters]).norm())
        optimizer = torch.optim.Adam(parameters, lr=STEP * size / sum(p.numel() for p in parameters) ** 0.5)
        descend(trial, drawn.batches[0], optimizer, TRIAL)
        return _probe(trial, Drawn(drawn.batches[:1], drawn.size)) | {"tried": TRIAL}


def _probe(setup: Setup, drawn: Drawn) -> dict[str, Any]:
    large = sum(p.numel() for p in setup.model.parameters()) > LARGE
    rows: list[tuple[float, float, float]] = []
    moved = 0.0
    for batch in drawn.batches[: 1 if large else None]:
        plain, exchanged, zeroed, far = _losses(setup, batch, drawn)
        rows.append((plain, exchanged, zeroed))
        moved = max(moved, far)
    plain, exchanged, zeroed = (float(x) for x in np.mean(rows, axis=0))
    worse = np.array([b - a for a, b, _ in rows])
    scatter = float(worse.std(ddof=1) / len(worse) ** 0.5) if len(worse) > 1 else 0.0
    tells = moved == 0.0 or bool((np.abs(worse) > INVARIANT * np.abs([a for a, _, _ in rows])).any())
    return {
        "loss": plain,
        "exchanged": exchanged,
        "zeroed": zeroed,
        "scatter": scatter,
        "batches": len(rows),
        "moved": moved,
        "tells": tells,
    }


def _losses(setup: Setup, batch: Any, drawn: Drawn) -> tuple[float, float, float, float]:
    """The loss as it is, with inputs exchanged and with zeros, and how far exchanged inputs move the answers."""
    with still(setup, training=True):
        call = first_call(setup, batch)
    axis = sample_axis(Drawn([batch], drawn.size), call)
    plain, answers = _loss(setup, batch)
    far, exchanged = 0.0, -math.inf
    sizes = call.tensors[0].shape
    axes = [a for a in ((0, 1) if axis is None else (axis,)) if a < len(sizes) and sizes[a] > 1]
    if not axes:
        raise Declined("the batch has one sample")
    for each in axes:  # where samples or time steps may be first, both are exchanged
        found, others = _loss(setup, batch, functools.partial(_exchanged, axis=each))
        exchanged = max(exchanged, found)
        far = max(far, *(_far(a, b) for a, b in zip(answers, others, strict=False)), 0.0)
    zeroed, _ = _loss(setup, batch, lambda given: given.changed(_zero))
    return plain, exchanged, zeroed, far


def exchanging(setup: Setup, drawn: Drawn) -> Callable[[Call], Call]:
    """A change of every call of a model that gives each sample the inputs of another one.

    Args:
        setup: The setup.
        drawn: Its batches.

    Returns:
        The change.

    Raises:
        Declined: The model is not called as a whole.
    """
    with still(setup, training=True):
        axis = sample_axis(drawn, first_call(setup, drawn.batches[0])) or 0

    return functools.partial(_exchanged, axis=axis)


def _exchanged(given: Call, axis: int) -> Call:
    """A call in which each sample gets the inputs of another one, where there are several."""
    sizes = given.tensors[0].shape
    if axis >= len(sizes) or sizes[axis] < 2:
        return given
    order = _order(sizes[axis])
    return per_sample(given, axis, lambda t: t[_at(axis, order)])


def _loss(setup: Setup, batch: Any, change: Callable[[Call], Call] | None = None) -> tuple[float, list[Tensor]]:
    with still(setup, training=True):
        loss, answers = loss_of(setup, batch, change)
        return float(loss), answers


def _order(count: int) -> Tensor:
    """An order in which no sample keeps its place, and which is no turn by a few: two views may lie half a batch apart."""
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(SEED))
    order = torch.empty_like(shuffled)
    order[shuffled] = shuffled.roll(1)
    return order


def _at(axis: int, order: Tensor) -> tuple[Any, ...]:
    return (*(slice(None),) * axis, order)


def _zero(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.is_floating_point() else tensor


def _far(before: Tensor, after: Tensor) -> float:
    """Root mean square of a difference over that of the answer; 0 only where not a bit differs."""
    if before.shape != after.shape or not before.numel():
        return 0.0
    a, b = before.double(), after.double()
    scale = float(a.square().mean().sqrt())
    difference = float((a - b).square().mean().sqrt())
    return difference / scale if scale > 0 else difference

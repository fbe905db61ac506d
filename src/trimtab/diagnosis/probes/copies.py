"""A copy of a setup to train on, so that the setup's own model and optimizers never move."""

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.diagnosis.probes.calls import Declined, mapped, seeded
from trimtab.norms._passes import own
from trimtab.recording.walk import tensors


@contextmanager
def copied(setup: Setup) -> Iterator[Setup]:
    """A copy of model and optimizers in a block that leaves everything else as it was too.

    Args:
        setup: The setup.

    Yields:
        The setup with copies, without a scheduler.

    Raises:
        Declined: Model and optimizers cannot be copied.
    """
    # A step of the setup's own may hold the setup's own optimizers: their state is kept too.
    held = [kept for optimizer in setup.optimizers for kept in (optimizer.state, optimizer.param_groups)]
    model = setup.model
    with unchanged(model, *model.parameters(), *model.buffers(), *held, used_by=(setup.loss, setup.step)):
        try:
            model, optimizers = copy.deepcopy((setup.model, list(setup.optimizers)))  # together: they share tensors
        except Exception as error:
            raise Declined(f"the model or its optimizer cannot be copied ({type(error).__name__})") from error
        seeded()
        yield replace(setup, model=model, optimizer=optimizers, scheduler=None)


def trained(setup: Setup) -> list[Tensor]:
    """The parameters that the optimizers of a setup hold and that need a gradient, each once."""
    found = {id(p): p for o in setup.optimizers for group in o.param_groups for p in group["params"]}
    return [p for p in found.values() if p.requires_grad]


@dataclass(frozen=True)
class Course:
    """Losses of a trial.

    Attributes:
        losses: The loss before each step.
        ended: "done", "time" (the time was over), "fits" (the goal was reached) or "broke" (a loss was not finite).
    """

    losses: list[float]
    ended: str

    @property
    def lowest(self) -> float:
        """The smallest loss, infinite without any."""
        return min((x for x in self.losses if math.isfinite(x)), default=math.inf)


def descend(
    setup: Setup,
    batch: Any,
    optimizer: torch.optim.Optimizer,
    steps: int,
    *,
    goal: float = -math.inf,
    until: float = math.inf,
    told: Callable[[int, int], None] | None = None,
) -> Course:
    """Train on one batch by the setup's loss, plainly.

    Args:
        setup: A copy.
        batch: The batch.
        optimizer: Of the copy's parameters.
        steps: At most so many.
        goal: A loss at which to stop.
        until: Time (`time.perf_counter`) at which to stop.
        told: Told steps done and all steps.

    Returns:
        The losses.

    Raises:
        Declined: The loss cannot be computed, or does not depend on the copy.
    """
    losses: list[float] = []
    for step in range(steps):
        optimizer.zero_grad(set_to_none=True)
        try:
            with torch.enable_grad():
                loss = setup.loss(setup.model, own(batch))
                value = float(loss.detach())
                losses.append(value)
                if value <= goal:
                    return Course(losses, "fits")
                if not math.isfinite(value):
                    return Course(losses, "broke")
                loss.backward()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise Declined(f"the loss of a copy cannot be computed ({type(error).__name__})") from error
        if all(p.grad is None for group in optimizer.param_groups for p in group["params"]):
            raise Declined("no gradient reaches the copy: the loss uses another model than the one it is given")
        optimizer.step()
        if told is not None:
            told(step + 1, steps)
        if time.perf_counter() > until:
            return Course(losses, "time")
    return Course(losses, "done")


def samples_of(batch: Any, count: int) -> Any | None:
    """The first samples of a batch whose tensors all have their samples along the first axis.

    Args:
        batch: The batch.
        count: How many samples.

    Returns:
        The smaller batch; None where its tensors are of different lengths, or as small already.
    """
    sizes = {t.shape[0] if t.ndim else 0 for t in tensors(batch)}
    if len(sizes) != 1 or max(sizes) <= count:
        return None
    return mapped(batch, lambda t: t[:count])

"""Short runs of copies, by the setup's own step and optimizer."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from trimtab._setup import Setup
from trimtab.diagnosis.probes.calls import Call, Declined, Drawn
from trimtab.diagnosis.probes.copies import copied, trained
from trimtab.norms._passes import own

BROKEN = 10.0
"""Loss over the first one, from which on a trial is given up."""

TAIL = 4
"""A trial ends at the mean of the last quarter of its losses."""

Told = Callable[[int, int], None]


@dataclass(frozen=True)
class Trial:
    """What a short run showed.

    Attributes:
        losses: Loss of each step.
        norms: Norm of the full gradient at each step.
        broke: Whether it was given up: not finite, or far above its start.
    """

    losses: np.ndarray
    norms: np.ndarray
    broke: bool

    @property
    def end(self) -> float:
        """Mean of the last losses, infinite for a run that broke."""
        return math.inf if self.broke else float(self.losses[-max(len(self.losses) // TAIL, 1) :].mean())


def trial(
    setup: Setup,
    drawn: Drawn,
    steps: int,
    *,
    factor: float = 1.0,
    change: Callable[[Call], Call] | None = None,
    prepare: Callable[[Setup], None] | None = None,
    told: Told | None = None,
) -> Trial:
    """Train a copy for a few steps.

    Args:
        setup: The setup; everything is as it was afterwards.
        drawn: Its batches, which are cycled.
        steps: Steps.
        factor: On every learning rate.
        change: What to make of what the model is given.
        prepare: Told the copy before it is trained.
        told: Told steps done and all steps.

    Returns:
        Losses and gradient norms.

    Raises:
        Declined: The copy cannot be made or trained.
    """
    losses: list[float] = []
    norms: list[float] = []
    with copied(setup) as one:
        if prepare is not None:
            prepare(one)
        for optimizer in one.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor
        parameters = trained(one)
        one.model.train()
        handle = None if change is None else one.model.register_forward_pre_hook(_giving(change), with_kwargs=True)
        try:
            for done, batch in enumerate(itertools.islice(itertools.cycle(drawn.batches), steps), 1):
                try:
                    with torch.enable_grad():
                        losses.append(float(one.train_step(own(batch)).detach()))
                except Exception as error:
                    raise Declined(f"a copy cannot be trained ({type(error).__name__}: {error})") from error
                gradients = [p.grad.detach().norm() for p in parameters if p.grad is not None]
                norms.append(float(torch.stack(gradients).norm()) if gradients else 0.0)
                if told is not None:
                    told(done, steps)
                if not math.isfinite(losses[-1]) or losses[-1] > losses[0] + BROKEN * abs(losses[0]):
                    return Trial(np.array(losses), np.array(norms), broke=True)
        finally:
            if handle is not None:
                handle.remove()
    return Trial(np.array(losses), np.array(norms), broke=False)


def _giving(change: Callable[[Call], Call]) -> Callable[..., Any]:
    def give(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        changed = change(Call(args, kwargs))
        return changed.args, dict(changed.kwargs)

    return give

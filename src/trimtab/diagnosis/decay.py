"""What weight decay does to a parameter: its pull at each step, and what the pull alone would have left of it.

The pull is the share of a parameter that a step takes away. SGD adds wd * w to the gradient, so that the pull is lr * wd, with
momentum m in the long run lr * wd / (1 - m); decoupled decay (Loshchilov & Hutter, arXiv:1711.05101, algorithm 2) pulls by lr * wd.
Adam divides wd * w by the size of gradient and decay together: the pull is lr * wd / rms(g + wd * w), large where the gradient is
small.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from trimtab.diagnosis.view import ADAPTIVE, View

DECOUPLED = {"AdamW", "Adafactor", "Muon"}
"""Optimizers of torch that take the decay off the parameter, beside the gradient's step."""

USUAL = 1e-3
"""Pull at a step: usual settings have less (SGD with rate 0.1, momentum 0.9 and decay 5e-4: 5e-4; AdamW with 1e-3 and 0.1: 1e-4).
From here on a parameter that nothing holds is halved within 700 steps."""

GUESSING = 0.2
"""Share of the loss that may be gone for a run to count as one that still guesses, or guesses again."""

FITS = 0.8
"""Share of the loss that is gone in a run that shrunken weights or gains have not hurt."""

CLIMB = 0.1
"""Share of the first loss by which the last lies above the best before a run counts as one that lost what it had learned."""


@dataclass(frozen=True, slots=True)
class Pull:
    """The decay of one parameter.

    Attributes:
        decay: The weight decay of its group.
        rate: Median learning rate.
        momentum: Momentum of the optimizer, 0 without.
        coupled: Whether an adaptive optimizer divides the decay together with the gradient.
        steps: Recorded steps.
        values: The pull at each.
        left: What the pull alone has left of the parameter after each.
    """

    decay: float
    rate: float
    momentum: float
    coupled: bool
    steps: np.ndarray
    values: np.ndarray
    left: np.ndarray

    @property
    def usual(self) -> float:
        """Median pull at a step."""
        return float(np.median(self.values))

    @property
    def halved(self) -> int:
        """The first recorded step after which the pull alone leaves less than half."""
        below = np.flatnonzero(self.left < 0.5)
        return int(self.steps[below[0]]) if len(below) else int(self.steps[-1])


def pull_on(view: View, model: int, name: str) -> Pull | None:
    """The pull of the weight decay on a parameter.

    Args:
        view: The record.
        model: Index of its model.
        name: Its name.

    Returns:
        The pull, None where no decay or no readings are known.
    """
    values = view.series(model, name, "parameter")
    found = _group(view, {name, view.name(model, name)})
    if values is None or found is None:
        return None
    optimizer, group, bases, settings = found
    decay, momentum = _number(settings.get("weight_decay")), _number(settings.get("momentum"))
    rates = _rates(view, optimizer, group, values.steps, _number(settings.get("lr")))
    if decay <= 0 or not np.isfinite(rates).all():
        return None
    adaptive = ADAPTIVE & bases
    coupled = bool(adaptive) and not (DECOUPLED & bases or settings.get("decoupled_weight_decay"))
    if coupled:
        if adaptive & {"Adagrad", "Adadelta"}:  # what they divide by has a memory of the whole run
            return None
        pull = rates * decay / _sizes(view, model, name, values.steps, decay * values.rms)
    elif "SGD" in bases:
        pull = rates * decay * (1 - _number(settings.get("dampening"))) / (1 - momentum)
    else:
        pull, momentum = rates * decay, 0.0
    pull = np.clip(pull, 0.0, 1.0)
    taken = _steps_taken(view, optimizer, values.steps)
    left = np.exp(np.cumsum(np.log1p(-np.minimum(pull, 1 - 1e-9)) * taken))
    return Pull(decay, float(np.median(rates)), momentum, coupled, values.steps, pull, left)


def climbed(view: View) -> bool:
    """Whether the run has lost a good part of what it had learned."""
    p = view.progress
    return p.nonfinite is None and p.last > p.best + max(CLIMB * abs(p.baseline), 2 * p.noise)


def _group(view: View, names: set[str]) -> tuple[int, int, set[str], dict[str, Any]] | None:
    for i, optimizer in enumerate(view.record.optimizers):
        for j, group in enumerate(optimizer.get("groups", [])):
            if names & set(group["parameters"]):
                return i, j, set(optimizer.get("bases", ())), group["settings"]
    return None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _rates(view: View, optimizer: int, group: int, steps: np.ndarray, given: float) -> np.ndarray:
    """Learning rates of a group at some recorded steps; the one it was made with where none was seen."""
    by_step = {}
    for step, info in zip(view.record.steps, view.record.info, strict=True):
        rates = info.get("rates", [])
        if optimizer < len(rates) and group < len(rates[optimizer]):
            by_step[int(step)] = rates[optimizer][group]
    seen = [by_step.get(int(step)) for step in steps]
    return np.array([given if rate is None else rate for rate in seen], dtype=np.float64)


def _sizes(view: View, model: int, name: str, steps: np.ndarray, pulled: np.ndarray) -> np.ndarray:
    """Root mean square of gradient and decay together, at some recorded steps."""
    gradient = view.series(model, name, "parameter-gradient")
    squares = pulled**2
    if gradient is not None:
        _, mine, others = np.intersect1d(steps, gradient.steps, return_indices=True)
        squares[mine] += gradient.second_moment[others]
    sizes: np.ndarray = np.sqrt(np.maximum(squares, 1e-30))
    return sizes


def _steps_taken(view: View, optimizer: int, steps: np.ndarray) -> np.ndarray:
    """How often the optimizer has stepped from each of these steps to before the next one."""
    record = view.record
    stepped = np.cumsum((record.stepped >> optimizer) & 1)
    before = np.concatenate([[0], stepped])
    starts = np.searchsorted(record.loss_steps, steps)
    return np.diff(np.append(before[starts], before[-1]))

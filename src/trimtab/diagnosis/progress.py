"""How the loss went: did the run learn, stand still, blow up? Judged against the loss's own noise."""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.recording import Record


@dataclass(frozen=True, slots=True)
class Progress:
    """The course of the loss over all training steps.

    Attributes:
        steps: Steps with a loss.
        first: Median of the first losses, or the very first one where that is smaller.
        baseline: What a run must beat: `first`, or the loss of the best constant answer where that is known and smaller.
        last: Median of the last losses.
        best: Smallest running median.
        worst: Largest loss after the first.
        noise: Spread of the loss from step to step, robust.
        nonfinite: First step whose loss was NaN or infinite, None when there was none.
    """

    steps: int
    first: float
    baseline: float
    last: float
    best: float
    worst: float
    noise: float
    nonfinite: int | None

    @property
    def gained(self) -> float:
        """Share of the baseline that was taken off, at its best 1; negative when the loss is above it."""
        return (self.baseline - self.last) / abs(self.baseline) if self.baseline else 0.0

    @property
    def given_back(self) -> float:
        """Share of what the run had taken off the loss at its best that it has put on again since."""
        won = self.baseline - self.best
        return max((self.last - self.best) / won, 0.0) if won > 0 else 0.0

    @property
    def rose(self) -> bool:
        """Whether the loss ended clearly above its start."""
        return self.last > self.first + max(0.1 * abs(self.first), 2 * self.noise)


def progress(record: Record, constant_answer: float = math.inf) -> Progress:
    """The course of the loss.

    Args:
        record: The record.
        constant_answer: Loss of the best answer that does not look at the input, where it is known.

    Returns:
        Its summary; NaN where no loss was seen.
    """
    seen = record.loss_seen
    losses, steps = record.losses[seen], record.loss_steps[seen]
    bad = np.flatnonzero(~np.isfinite(losses))
    nonfinite = int(steps[bad[0]]) if len(bad) else None
    finite = losses[np.isfinite(losses)]
    if not len(finite):
        return Progress(0, *(float("nan"),) * 6, nonfinite)
    few = max(1, min(5, len(finite) // 4))
    tail = max(1, min(30, len(finite) // 4))
    noise = float(1.4826 * np.median(np.abs(np.diff(finite)))) if len(finite) > 2 else 0.0
    width = max(1, min(11, len(finite) // 10))
    smooth = np.convolve(finite, np.ones(width) / width, "valid")
    first = float(min(np.median(finite[:few]), finite[0]))
    return Progress(
        steps=len(finite),
        first=first,
        baseline=min(first, constant_answer),
        last=float(np.median(finite[-tail:])),
        best=float(smooth.min()),
        worst=float(finite[1:].max()) if len(finite) > 1 else float(finite[0]),
        noise=noise,
        nonfinite=nonfinite,
    )

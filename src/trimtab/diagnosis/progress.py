"""How the loss went: did the run learn, stand still, blow up? Judged against the loss's own noise."""

from dataclasses import dataclass

import numpy as np

from trimtab.recording import Record


@dataclass(frozen=True, slots=True)
class Progress:
    """The course of the loss over all training steps.

    Attributes:
        steps: Steps with a loss.
        first: Median of the first losses.
        last: Median of the last losses.
        best: Smallest running median.
        worst: Largest loss after the first.
        noise: Spread of the loss from step to step, robust.
        nonfinite: First step whose loss was NaN or infinite, None when there was none.
    """

    steps: int
    first: float
    last: float
    best: float
    worst: float
    noise: float
    nonfinite: int | None

    @property
    def gained(self) -> float:
        """Share of the first loss that was taken off, at its best 1; negative when the loss rose."""
        return (self.first - self.last) / abs(self.first) if self.first else 0.0

    @property
    def stuck(self) -> bool:
        """Whether the last losses do not differ from the first by more than the noise, nor by 3 %."""
        if self.nonfinite is not None or self.steps < 10:
            return False
        return abs(self.first - self.last) <= max(0.03 * abs(self.first), self.noise)

    @property
    def rose(self) -> bool:
        """Whether the loss ended clearly above its start."""
        return self.last > self.first + max(0.1 * abs(self.first), 2 * self.noise)


def progress(record: Record) -> Progress:
    """The course of the loss.

    Args:
        record: The record.

    Returns:
        Its summary; NaN where no loss was seen.
    """
    seen = record.loss_seen
    losses, steps = record.losses[seen], record.loss_steps[seen]
    bad = np.flatnonzero(~np.isfinite(losses))
    nonfinite = int(steps[bad[0]]) if len(bad) else None
    finite = losses[np.isfinite(losses)]
    if not len(finite):
        return Progress(0, *(float("nan"),) * 5, nonfinite)
    few = max(1, min(5, len(finite) // 4))
    tail = max(1, min(30, len(finite) // 4))
    noise = float(1.4826 * np.median(np.abs(np.diff(finite)))) if len(finite) > 2 else 0.0
    width = max(1, min(11, len(finite) // 10))
    smooth = np.convolve(finite, np.ones(width) / width, "valid")
    return Progress(
        steps=len(finite),
        first=float(np.median(finite[:few])),
        last=float(np.median(finite[-tail:])),
        best=float(smooth.min()),
        worst=float(finite[1:].max()) if len(finite) > 1 else float(finite[0]),
        noise=noise,
        nonfinite=nonfinite,
    )

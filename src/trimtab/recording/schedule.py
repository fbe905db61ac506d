"""Which training steps are recorded in full."""

from bisect import bisect_right
from dataclasses import dataclass

FIRST = 10
SOON = 100
CLOSELY = 8
DETAILS = sorted({round(2 ** (k / 2)) for k in range(6, 48)})


@dataclass(frozen=True, slots=True)
class Schedule:
    """Every step at the start, where most faults show, then ever fewer.

    Attributes:
        every: Record every so many steps after the first ten; None for the default: every 10th up to step 100,
            every 50th from there on.
    """

    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None and (not isinstance(self.every, int) or self.every < 1):
            raise ValueError(f"every must be a whole number of steps, at least 1, but it is {self.every!r}")

    def records(self, step: int) -> bool:
        """Whether step `step` (from 0) is recorded in full."""
        if step < FIRST:
            return True
        if self.every is not None:
            return step % self.every == 0
        return step % (10 if step < SOON else 50) == 0 or step in DETAILS

    def details(self, step: int) -> bool:
        """Whether units and links are looked at as well: the first eight steps, then at powers of the root of two.

        Even and odd steps alike, so that optimizers that take turns are all seen. Where a power of the root of two is not
        recorded, the next recorded step stands for it.

        Args:
            step: Number of a recorded step, from 0.

        Returns:
            True where they are.
        """
        passed = bisect_right(DETAILS, step) - bisect_right(DETAILS, step - (self.every or 1))
        return step < CLOSELY or passed > 0 or step % 5000 == 0

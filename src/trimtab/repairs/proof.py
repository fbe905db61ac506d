"""When is a repair proved? Paired differences over seeds, and Student's interval around their mean."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95
"""Confidence of a proof as a whole."""

EARLY = 0.005
"""Error that each look before the last may spend; the last has what is left of 1 - LEVEL. Together they spend no more (Bonferroni), so
that adding seeds until it fits proves nothing that is not there; spending late is the rule of Haybittle (1971) and Peto (1976)."""

MOST_SEEDS = 8


@dataclass(frozen=True, slots=True)
class Gain:
    """The mean of paired differences.

    Attributes:
        mean: The mean.
        low: Lower end of its interval.
        high: Upper end.
    """

    mean: float
    low: float
    high: float

    @property
    def proved(self) -> bool:
        """Whether all of the interval lies above zero."""
        return self.low > 0


def looks(first: int) -> tuple[int, ...]:
    """Numbers of seeds at which is looked.

    Args:
        first: The first of them.

    Returns:
        Up to three numbers, the last of them at least eight: 3, 5, 8 for 3.
    """
    last = max(MOST_SEEDS, first)
    return tuple(sorted({first, (first + last) // 2, last}))


def gain(with_it: Sequence[float], without: Sequence[float], last: bool) -> Gain:
    """Mean gain over seeds with its interval.

    Args:
        with_it: Scores with the repair, a seed each.
        without: Scores on the same seeds without it, in the same order.
        last: Whether this is the last look.

    Returns:
        The gain.
    """
    differences = np.asarray(with_it, dtype=float) - np.asarray(without, dtype=float)
    count, mean = len(differences), float(differences.mean())
    if count < 2:
        return Gain(mean, -math.inf, math.inf)
    error = 1 - LEVEL - 2 * EARLY if last else EARLY
    half = float(stats.t.ppf(1 - error / 2, count - 1)) * float(differences.std(ddof=1)) / math.sqrt(count)
    return Gain(mean, mean - half, mean + half)


def as_numbers(scores: Sequence[float | None], floor: float) -> list[float]:
    """Scores in which a run that broke counts as the worst thing that was seen.

    Args:
        scores: Scores, None for a run that broke.
        floor: The worst score seen on these seeds, the untrained net's among them.

    Returns:
        Numbers.
    """
    return [floor if score is None else score for score in scores]


def no_worse(scores: Sequence[float], untrained: Sequence[float | None]) -> list[float]:
    """Scores of a control, in which a run that ends worse than the untrained net counts as the untrained net.

    One diverged run would else widen the interval without bound. A control can only gain by it, so that a proved gain over these
    scores is one over the true ones as well.

    Args:
        scores: Scores of doing nothing or of random changes, a seed each.
        untrained: Scores of the untrained net on the same seeds, and maybe on more; None where it has none.

    Returns:
        The scores, raised where that applies.
    """
    return [score if least is None else max(score, least) for score, least in zip(scores, untrained, strict=False)]

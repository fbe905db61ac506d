"""When is a repair proved? Paired differences over seeds, and Student's interval around their mean."""

import math
from collections.abc import Mapping
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


def gain(with_it: Mapping[int, float], without: Mapping[int, float], last: bool) -> Gain:
    """Mean gain over seeds with its interval.

    Args:
        with_it: Scores with the repair, by seed.
        without: Scores without it, by seed; pairs are made of the seeds that both have.
        last: Whether this is the last look.

    Returns:
        The gain.
    """
    differences = np.array([with_it[seed] - without[seed] for seed in sorted(with_it.keys() & without.keys())])
    count, mean = len(differences), float(differences.mean())
    if count < 2:
        return Gain(mean, -math.inf, math.inf)
    error = 1 - level(last)
    half = float(stats.t.ppf(1 - error / 2, count - 1)) * float(differences.std(ddof=1)) / math.sqrt(count)
    return Gain(mean, mean - half, mean + half)


def level(last: bool) -> float:
    """Confidence of the intervals of one look, so that all looks together have `LEVEL`.

    Args:
        last: Whether it is the last one.

    Returns:
        The confidence.
    """
    return LEVEL + 2 * EARLY if last else 1 - EARLY


def as_numbers(scores: Mapping[int, float | None], floor: float) -> dict[int, float]:
    """Scores in which a run that broke counts as the worst thing that was seen.

    Args:
        scores: Scores by seed, None for a run that broke.
        floor: The worst score seen on these seeds, the untrained net's among them.

    Returns:
        Numbers.
    """
    return {seed: floor if score is None else score for seed, score in scores.items()}


def no_worse(scores: Mapping[int, float], *least: Mapping[int, float]) -> dict[int, float]:
    """Scores of a control, in which a run that ends worse than the untrained net, or than doing nothing, counts as that.

    One diverged run would else widen the interval without bound. A control can only gain by it, so that a proved gain over these
    scores is one over the true ones as well.

    Args:
        scores: Scores of doing nothing or of random changes, by seed.
        *least: Scores that they are raised to, by seed, where these have the seed.

    Returns:
        The scores, raised where that applies.
    """
    return {seed: max(score, *(of[seed] for of in least if seed in of), score) for seed, score in scores.items()}

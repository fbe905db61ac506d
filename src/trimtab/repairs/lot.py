"""Settings by lot, for the random changes that a repair must beat."""

import random
from collections.abc import Sequence

SPREAD = 2.0
"""Decades that random gains and factors lie within, to either side of one: standard deviations from 0.001 to 10 at a fan-in of 100."""


def some_of(names: Sequence[str], rng: random.Random) -> list[str]:
    """A random part of some names, at least one, in their order.

    Args:
        names: The names.
        rng: The lot.

    Returns:
        Some of them.
    """
    return [names[i] for i in sorted(rng.sample(range(len(names)), rng.randint(1, len(names))))]


def some_number(rng: random.Random, decades: float = SPREAD) -> float:
    """A random factor around one.

    Args:
        rng: The lot.
        decades: How far to either side.

    Returns:
        The factor.
    """
    return float(f"{10 ** rng.uniform(-decades, decades):.3g}")

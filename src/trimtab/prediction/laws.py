"""Distributions of entries that are sums of a Gaussian and of something else, as points with weights."""

import numpy as np
from scipy.special import ndtri

from trimtab.prediction.state import Array, State

COARSE, FINE = 64, 384
NEGLIGIBLE = 0.02
"""Share of a sum's variance below which a term may be taken as Gaussian."""

Law = tuple[Array, Array]


def law_of_sum(a: State, b: State) -> Law | None:
    """The law of x + y for independent entries, None where it is nearly Gaussian.

    A rectified skip connection is the case that matters: x of one sign makes max(0, x + y) larger than a Gaussian of the same
    mean and variance would.

    Args:
        a: The state of x.
        b: The state of y.

    Returns:
        Points and their weights.
    """
    spreads = [max(s.second_moment - s.mean**2, 0.0) for s in (a, b)]
    total = sum(spreads)
    odd = [_own(s) if v > NEGLIGIBLE * total else None for s, v in zip((a, b), spreads, strict=True)]
    if total <= 0 or odd == [None, None]:
        return None
    first, second = (
        coarse(law, COARSE) if law is not None else (s.mean + v**0.5 * _gaussian(COARSE), np.full(COARSE, 1.0 / COARSE))
        for law, s, v in zip(odd, (a, b), spreads, strict=True)
    )
    points = (first[0][:, None] + second[0]).ravel()
    weights = (first[1][:, None] * second[1]).ravel()
    points, weights = coarse((points, weights), FINE)
    mean = float(weights @ points)
    variance = float(weights @ (points - mean) ** 2)
    wanted = a.mean + b.mean
    return wanted + (points - mean) * (total / max(variance, 1e-300)) ** 0.5, weights


def _own(state: State) -> Law | None:
    if state.law is not None:
        return state.law
    field = state.field
    if field is None or np.array_equal(field.values, field.start.mean + field.z * _sigma(field.start)):
        return None
    return field.values, field.weights


def _sigma(state: State) -> float:
    return float(max(state.second_moment - state.mean**2, 0.0) ** 0.5)


def _gaussian(count: int) -> Array:
    """Standard Gaussian points of equal weight."""
    points = np.asarray(ndtri((np.arange(count) + 0.5) / count))
    return np.asarray(points / np.sqrt(np.mean(points**2)))


def coarse(law: Law, count: int) -> Law:
    """Fewer points: the mean of each of `count` slices of equal weight.

    Args:
        law: Points and weights.
        count: How many points there are to be.

    Returns:
        Points in ascending order, and their weights.
    """
    order = np.argsort(law[0])
    points, weights = law[0][order], law[1][order]
    slices = np.minimum((np.cumsum(weights) - 0.5 * weights) * count, count - 1).astype(int)
    mass: Array = np.bincount(slices, weights, count).astype(np.float64)
    means: Array = np.bincount(slices, weights * points, count).astype(np.float64)
    filled = mass > 0
    return means[filled] / mass[filled], mass[filled]

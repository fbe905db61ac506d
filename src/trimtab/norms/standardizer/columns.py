"""Moments of each column as pure functions: empty, merge, finish (Chan, Golub and LeVeque 1979, in float64).

The mean is kept as `shift + offset`: a number near the data, fixed when the column is first seen, and the distance of the mean from
it. Rounding then acts on the offset, which is of the size of the standard deviation, and not on the mean, which may be 1e8 times
larger: neither the number of merges nor the size of the mean costs digits of the variance.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ColumnSums:
    """What has been seen of each of d columns.

    Attributes:
        count: Values that are not NaN and have a weight above zero, float64 of shape (d,), whole numbers.
        weight: Sum of their weights, shape (d,); equal to `count` without weights.
        shift: A number near the mean, shape (d,); zero where nothing was seen.
        offset: Weighted mean minus `shift`, shape (d,).
        m2: Weighted sum of squared deviations from the mean, shape (d,).
        grain: Relative spacing of the coarsest dtype the values were stored in (1.2e-7 for float32), 0 before any value.
    """

    count: Floats
    weight: Floats
    shift: Floats
    offset: Floats
    m2: Floats
    grain: float = 0.0

    @property
    def size(self) -> int:
        """Number of columns."""
        return len(self.weight)

    @property
    def mean(self) -> Floats:
        """Weighted mean; nan where nothing was seen."""
        return np.where(self.weight > 0, self.shift + self.offset, np.nan)

    @property
    def variance(self) -> Floats:
        """Population variance m2 / weight; nan where nothing was seen."""
        seen = self.weight > 0
        # A merge of rows made elsewhere may leave m2 a rounding below zero; a variance never is.
        return np.where(seen, np.maximum(self.m2, 0.0) / np.where(seen, self.weight, 1.0), np.nan)


def empty(size: int) -> ColumnSums:
    """The sums of no values at all, neutral in `merge`.

    Args:
        size: Number of columns.

    Returns:
        Zeros.
    """
    zeros = [np.zeros(size) for _ in range(5)]
    return ColumnSums(zeros[0], zeros[1], zeros[2], zeros[3], zeros[4])


def from_shifted(
    count: Floats, weight: Floats, shift: Floats, rest: Floats, squares: Floats, grain: float
) -> ColumnSums:
    """Sums about any number become sums about the mean.

    With d = x - shift: mean = shift + sum(d) / n, m2 = sum(d²) - sum(d)² / n, which cancels little where the shift is near.

    Args:
        count: Number of values, shape (d,).
        weight: Sum of weights, shape (d,).
        shift: What was subtracted, shape (d,).
        rest: Weighted sum of x - shift, shape (d,).
        squares: Weighted sum of (x - shift)², shape (d,).
        grain: Relative spacing of the dtype the values were stored in.

    Returns:
        The moments.
    """
    seen = weight > 0
    offset = np.where(seen, rest / np.where(seen, weight, 1.0), 0.0)
    m2 = np.where(seen, np.maximum(squares - rest * offset, 0.0), 0.0)
    return ColumnSums(count, weight, np.where(seen, shift, 0.0), offset, m2, grain)


def merge(a: ColumnSums, b: ColumnSums) -> ColumnSums:
    """The moments of two disjoint sets of rows together; order matters only to rounding.

    Args:
        a: Sums over d columns.
        b: Sums over the same d columns.

    Returns:
        Sums over both.
    """
    weight = a.weight + b.weight
    share = b.weight / np.where(weight > 0, weight, 1.0)
    known = a.weight > 0
    shift = np.where(known, a.shift, b.shift)
    start = np.where(known, a.offset, b.offset)
    delta = np.where(known & (b.weight > 0), (b.shift - a.shift) + (b.offset - a.offset), 0.0)
    m2 = a.m2 + b.m2 + delta * delta * a.weight * share
    return ColumnSums(a.count + b.count, weight, shift, start + delta * share, m2, max(a.grain, b.grain))


def merge_all(parts: Iterable[ColumnSums], size: int) -> ColumnSums:
    """Merge any number of sums, one after the other.

    Args:
        parts: Sums over `size` columns each.
        size: Number of columns.

    Returns:
        Their union.
    """
    return reduce(merge, parts, empty(size))

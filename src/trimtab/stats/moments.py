"""Moments of a stream of tensors as pure functions: empty, update, merge, finish."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trimtab.stats import _chan
from trimtab.stats._chan import FIELDS, empty, merge_rows
from trimtab.stats.tape import Tape

__all__ = ["FIELDS", "Moments", "empty", "finish", "merge", "merge_rows", "update"]


@dataclass(frozen=True, slots=True)
class Moments:
    """Statistics of a set of values; those of no finite value at all are nan where a number would be a claim.

    Attributes:
        count: Number of finite values; the next four speak of these alone.
        mean: Their mean.
        m2: Sum of squared deviations from the mean.
        abs_mean: Mean magnitude.
        abs_max: Largest magnitude.
        zeros: Number of exact zeros.
        nonfinite: Number of NaN and infinite values.
        sampled: Whether `abs_mean` and `zeros` come from a sample of blocks.
    """

    count: int
    mean: float
    m2: float
    abs_mean: float
    abs_max: float
    zeros: int
    nonfinite: int
    sampled: bool = False

    @property
    def variance(self) -> float:
        """Population variance, m2 / count."""
        return self.m2 / self.count if self.count else math.nan

    @property
    def std(self) -> float:
        """Population standard deviation."""
        return math.sqrt(self.variance)

    @property
    def second_moment(self) -> float:
        """Mean square, as mean² + variance, which cancels nothing."""
        return self.mean * self.mean + self.variance

    @property
    def rms(self) -> float:
        """Root mean square."""
        return math.sqrt(self.second_moment)

    @property
    def zero_share(self) -> float:
        """Share of exact zeros among the finite values."""
        return self.zeros / self.count if self.count else math.nan

    @property
    def finite(self) -> bool:
        """Whether every value was finite."""
        return self.nonfinite == 0


class SampledRow(np.ndarray[Any, np.dtype[np.float64]]):
    """A row whose `abs_mean` and `zeros` come from a sample: the seven numbers, and the mark."""


def merge(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """The moments of two disjoint sets of values together.

    Args:
        a: Rows of shape (..., 7).
        b: Rows of shape (..., 7); leading axes broadcast.

    Returns:
        The merged rows, of the broadcast shape; a `SampledRow` where one of the two is.
    """
    merged = _chan.merge(a, b)
    return merged.view(SampledRow) if isinstance(a, SampledRow) or isinstance(b, SampledRow) else merged


def update(row: NDArray[np.float64], tensor: Tensor) -> NDArray[np.float64]:
    """Fold one tensor into a row.

    Args:
        row: The moments so far, seven float64.
        tensor: Any tensor; one without values to measure (integers, meta) adds nothing.

    Returns:
        A new row; `row` is left as it is. A `SampledRow` where either was read in part.
    """
    tape = Tape()
    if tape.measure(tensor) < 0:
        return np.array(row, np.float64, subok=True)
    read = tape.rows()[0]
    return merge(row, read.view(SampledRow) if tape.sampled(0) else read)


def finish(row: NDArray[np.float64] | Sequence[float], sampled: bool | None = None) -> Moments:
    """Read a row.

    Args:
        row: Seven numbers in the order of `FIELDS`.
        sampled: Whether its `abs_mean` and `zeros` come from a sample; None asks the row, which `update` has marked.

    Returns:
        The moments by name.
    """
    marked = isinstance(row, SampledRow) if sampled is None else sampled
    count, mean, m2, abs_mean, abs_max, zeros, nonfinite = (float(value) for value in row)
    if count == 0:
        mean = abs_mean = abs_max = math.nan
    # Rounding may leave m2 of a merge a hair below zero in a foreign row; a variance never is.
    return Moments(round(count), mean, max(m2, 0.0), abs_mean, abs_max, round(zeros), round(nonfinite), marked)

"""Rows of seven moments and how they merge: Chan, Golub and LeVeque (1979) in float64."""

import numpy as np
from numpy.typing import NDArray

FIELDS = ("count", "mean", "m2", "abs_mean", "abs_max", "zeros", "nonfinite")
COUNT, MEAN, M2, ABS_MEAN, ABS_MAX, ZEROS, NONFINITE = range(len(FIELDS))


def empty() -> NDArray[np.float64]:
    """The row of no values at all, neutral in `merge`.

    Returns:
        Seven zeros in the order of `FIELDS`.
    """
    return np.zeros(len(FIELDS))


def merge(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """The moments of two disjoint sets of values together.

    With d = mean_b - mean_a: m2 = m2_a + m2_b + d² n_a n_b / n, which cancels nothing, unlike E[x²] - E[x]².

    Args:
        a: Rows of shape (..., 7).
        b: Rows of shape (..., 7); leading axes broadcast.

    Returns:
        The merged rows, of the broadcast shape.
    """
    a, b = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(b, np.float64))
    out = np.asarray(a + b)  # right for m2 up to its cross term, and for the three counts
    weight = b[..., COUNT] / np.maximum(out[..., COUNT], 1.0)
    delta = b[..., MEAN] - a[..., MEAN]
    out[..., MEAN] = a[..., MEAN] + delta * weight
    # Against no values at all there is no deviation: a square that overflows, times zero, would be NaN.
    apart = np.where((a[..., COUNT] > 0) & (b[..., COUNT] > 0), delta, 0.0)
    with np.errstate(over="ignore"):
        out[..., M2] += apart * apart * a[..., COUNT] * weight
    out[..., ABS_MEAN] = a[..., ABS_MEAN] + (b[..., ABS_MEAN] - a[..., ABS_MEAN]) * weight
    out[..., ABS_MAX] = np.maximum(a[..., ABS_MAX], b[..., ABS_MAX])
    return out


def merge_rows(rows: NDArray[np.float64], groups: NDArray[np.integer], size: int) -> NDArray[np.float64]:
    """Merge many rows at once, each into the group it belongs to.

    Args:
        rows: Moment rows of shape (n, 7).
        groups: Group of each row, n integers in [0, size).
        size: Number of groups.

    Returns:
        Rows of shape (size, 7); a group without rows gets the empty row.
    """
    out = np.zeros((size, len(FIELDS)))
    if len(groups) < 2 or np.bincount(groups).max() == 1:  # nothing to merge
        out[groups] = rows
        return out
    columns = np.ascontiguousarray(rows.T)
    count = np.bincount(groups, columns[COUNT], size)
    share = np.maximum(count, 1.0)
    mean = np.bincount(groups, columns[COUNT] * columns[MEAN], size) / share
    spread = columns[MEAN] - mean[groups]
    out[:, COUNT] = count
    out[:, MEAN] = mean
    with np.errstate(over="ignore"):
        out[:, M2] = np.bincount(groups, columns[M2] + columns[COUNT] * spread * spread, size)
    out[:, ABS_MEAN] = np.bincount(groups, columns[COUNT] * columns[ABS_MEAN], size) / share
    np.maximum.at(out[:, ABS_MAX], groups, columns[ABS_MAX])
    out[:, ZEROS] = np.bincount(groups, columns[ZEROS], size)
    out[:, NONFINITE] = np.bincount(groups, columns[NONFINITE], size)
    return out

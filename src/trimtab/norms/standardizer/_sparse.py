"""Column sums and scaling of SciPy's sparse matrices, which stay sparse: O(stored values)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.norms.standardizer.columns import ColumnSums, Floats


def columns_of(matrix: Any) -> NDArray[np.integer]:
    """The column of each stored value.

    Args:
        matrix: CSR or CSC.

    Returns:
        As many integers as there are stored values.
    """
    if matrix.format == "csr":
        return np.asarray(matrix.indices)
    return np.repeat(np.arange(matrix.shape[1]), np.diff(matrix.indptr))


def _rows_of(matrix: Any) -> NDArray[np.integer]:
    """Returns the row of each stored value."""
    if matrix.format == "csc":
        return np.asarray(matrix.indices)
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def sparse_sums(matrix: Any, weight: Floats | None, grain: float) -> ColumnSums:
    """The moments of each column in two passes over the stored values; what is not stored is zero.

    m2 = sum w (v - mean)² over stored values + (weight of the others) mean².

    Args:
        matrix: CSR or CSC of shape (n, d), finite or NaN; NaN is left out.
        weight: One weight a row, or None.
        grain: Relative spacing of the dtype the values were stored in.

    Returns:
        Moments of the d columns.
    """
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    rows, size = matrix.shape
    at = columns_of(matrix)
    shares = np.ones(matrix.nnz) if weight is None else weight[_rows_of(matrix)]
    values = matrix.data.astype(np.float64)
    missing = np.isnan(values)
    values[missing] = 0.0
    lost = np.bincount(at, np.where(missing, shares, 0.0), size)
    kept = np.where(missing, 0.0, shares)
    total = (rows if weight is None else weight.sum()) - lost
    count = 1.0 * (rows if weight is None else np.count_nonzero(weight)) - np.bincount(at, missing & (shares > 0), size)
    safe = np.where(count > 0, total, 1.0)
    mean = np.bincount(at, kept * values, size) / safe
    others = np.maximum(total - np.bincount(at, kept, size), 0.0)
    delta = np.where(missing, 0.0, values - mean[at])
    rest = np.bincount(at, kept * delta, size) - others * mean
    m2 = np.bincount(at, kept * delta * delta, size) + others * mean * mean
    offset = rest / safe  # what rounding of the mean has left over
    return ColumnSums(count, np.where(count > 0, total, 0.0), mean, offset, np.maximum(m2 - rest * offset, 0.0), grain)


def scale_columns(matrix: Any, factor: NDArray[np.floating]) -> Any:
    """Multiply each column in place.

    Args:
        matrix: CSR or CSC with floating values.
        factor: Shape (d,).

    Returns:
        The same matrix.
    """
    matrix.data *= factor.astype(matrix.dtype)[columns_of(matrix)]
    return matrix

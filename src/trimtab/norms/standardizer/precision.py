"""What rounding does to the variance of a column: the spacing of stored numbers, constant columns, lost variance."""

import numpy as np
from numpy.typing import NDArray

from trimtab.norms.standardizer.columns import ColumnSums, Floats

LOST_SHARE = 0.01
"""Rounding to a grid of spacing s adds s²/12 to a variance (Sheppard). Above this share of the variance it is worth a warning:
at 1 % the standard deviation is 2.9 spacings."""

HIDING_SPACING = 8.0
"""Stored numbers this far apart swallow a unit variance whole: all within 4 deviations of a number are stored as it."""


def spacing(columns: ColumnSums) -> Floats:
    """Distance between neighbouring stored numbers at the size of each mean.

    Args:
        columns: The moments; their `grain` is the relative spacing of the storage dtype.

    Returns:
        grain * 2^floor(log2 |mean|), shape (d,); 0 where the mean is 0 or unknown.
    """
    magnitude = np.abs(np.nan_to_num(columns.mean))
    _, exponent = np.frexp(magnitude)
    return np.where(magnitude > 0, np.ldexp(columns.grain, exponent - 1), 0.0)


def constant(columns: ColumnSums) -> NDArray[np.bool_]:
    """Columns whose variance says no more than that one number was rounded in two ways.

    A number that falls between two neighbours of the storage grid, s apart, may be stored as either: the variance is then at most
    (s/2)², reached when each is taken half of the time. The moments themselves add nothing that grows with the mean or with the
    number of rows: deviations from a shift that lies among the values are exact (Sterbenz), and means are merged as offsets. An
    error bound like scikit-learn's n * eps * mean, which calls ever more columns constant as a stream grows, is not needed.

    Args:
        columns: The moments.

    Returns:
        Where std <= spacing / 2, shape (d,); a variance of exactly zero always is.
    """
    return np.asarray(columns.variance <= np.square(0.5 * spacing(columns)), np.bool_)


def lost(columns: ColumnSums) -> NDArray[np.bool_]:
    """Columns of which storage has lost the variance, wholly or in part.

    Args:
        columns: The moments.

    Returns:
        Where rounding makes up more than `LOST_SHARE` of a variance that is not zero, shape (d,).
    """
    variance = columns.variance
    return np.asarray((variance > 0) & (np.square(spacing(columns)) / 12.0 > LOST_SHARE * variance), np.bool_)


def hidden(columns: ColumnSums) -> NDArray[np.bool_]:
    """Columns of one number only, in float32 or less, of which nobody can tell whether they were constant before.

    Args:
        columns: The moments.

    Returns:
        Where two values or more are all the same, and stored numbers lie `HIDING_SPACING` or more apart there (from 6.7e7 in
        float32, 8192 in float16, 1024 in bfloat16), shape (d,).
    """
    coarse = columns.grain > np.finfo(np.float64).eps
    same = (columns.variance == 0.0) & (columns.count > 1)
    return np.asarray(coarse & same & (spacing(columns) >= HIDING_SPACING), np.bool_)

"""Column sums of a dense array on the CPU: compiled where numba is installed, matrix products of numpy otherwise.

Both take deviations from a shift near the mean, add them up in the array's own dtype over a few rows and in float64 from there on,
and give columns that came out doubtful (NaN, infinity, a shift too far away, squares that under- or overflow) to `exact`.
"""

import os
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import NormalizationError
from trimtab.norms.standardizer.columns import ColumnSums, Floats, from_shifted
from trimtab.stats._backend import NO_NUMBA

_SAMPLE = 32  # rows that the shift is taken from: its distance from the mean is then about std / 6
_SLAB = 1 << 17  # values handled at a time, so that temporaries stay in the cache
_LONG = 4096  # rows from which columns are worth a call each
_LANES = 1024  # narrow arrays are read as rows of about this many values: short rows cost more than their arithmetic
# A shift this many variances (squared distance) from the mean costs 2.3 bits of a dtype's digits: float32 may not pay more.
_FAR = {np.dtype(np.float32): 4.0, np.dtype(np.float64): 1e6}
# Below this variance squares of float32 leave its normal range; of float64 none that matters does.
_TINY = {np.dtype(np.float32): 1e-30, np.dtype(np.float64): 0.0}

Sums = tuple[Floats, Floats, Floats, Floats]  # count, weight, rest, squares


@cache
def _load() -> ModuleType | None:
    try:
        from trimtab.norms.standardizer import _numba_columns  # optional, and slow to import
    except Exception:  # not installed, or cannot compile here
        return None
    return _numba_columns


def compiled() -> ModuleType | None:
    """The compiled kernel.

    Returns:
        The module, or None where numba is missing, does not work, or `TRIMTAB_NO_NUMBA` is set to anything but 0.
    """
    return None if os.environ.get(NO_NUMBA, "0") not in {"", "0"} else _load()


def guess(rows: Floats) -> Floats:
    """A shift from some rows: the mean of those that are finite, and of a constant column exactly its value.

    Args:
        rows: Some rows of the array, float64, shape (k, d).

    Returns:
        Shape (d,); zero for a column without finite values.
    """
    finite = np.isfinite(rows)
    first = rows[np.argmax(finite, 0), np.arange(rows.shape[1])]
    first = np.where(np.isfinite(first), first, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        shift = first + np.where(finite, rows - first, 0.0).sum(0) / np.maximum(finite.sum(0), 1)
    return np.where(np.isfinite(shift), shift, first)


def sample(size: int) -> NDArray[np.intp]:
    """Row numbers spread evenly over an array.

    Args:
        size: Number of rows, at least one.

    Returns:
        Up to 32 of them.
    """
    return np.linspace(0, size - 1, min(size, _SAMPLE)).astype(np.intp)


def dense_sums(values: NDArray[np.floating], weight: Floats | None, grain: float) -> ColumnSums:
    """The moments of each column.

    Args:
        values: Shape (n, d) with n >= 1, float32 or float64, any strides; NaN is left out.
        weight: One weight a row, shape (n,), finite and not negative; None weighs all alike.
        grain: Relative spacing of the dtype the values were stored in.

    Returns:
        Moments of the d columns.
    """
    kind = values.dtype
    with np.errstate(over="ignore", invalid="ignore"):
        near = guess(values[sample(len(values))].astype(np.float64)).astype(kind)
        near[~np.isfinite(near)] = 0.0
        shift = near.astype(np.float64)
        count, total, rest, squares = _sums(values, near, weight)
        columns = from_shifted(count, total, shift, rest, squares, grain)
        doubtful = ~np.isfinite(rest) | ~np.isfinite(squares) | (rest * columns.offset > _FAR[kind] * columns.m2)
        doubtful |= (columns.m2 <= _TINY[kind] * total) & (total > 0) & (_TINY[kind] > 0)
    if doubtful.any():
        chosen = np.flatnonzero(doubtful)
        parts = exact(values[:, chosen].astype(np.float64), weight, grain, chosen)
        for name in ("count", "weight", "shift", "offset", "m2"):
            getattr(columns, name)[chosen] = getattr(parts, name)
    return columns


def exact(values: Floats, weight: Floats | None, grain: float, names: NDArray[np.intp]) -> ColumnSums:
    """The moments by two passes in float64, for the few columns that need them.

    Args:
        values: Shape (n, d), float64.
        weight: Shape (n,), or None.
        grain: Relative spacing of the dtype the values were stored in.
        names: The columns' numbers in the whole array, for the message.

    Returns:
        Moments of the d columns.

    Raises:
        NormalizationError: If a value is infinite, or a square of a deviation leaves the range of float64.
    """
    infinite = np.isinf(values).any(0)
    if infinite.any():
        raise NormalizationError(
            f"the data holds infinite values in feature(s) {_listed(names[infinite])}: Input X contains infinity. "
            "NaN is skipped, infinity is not; replace or drop these values"
        )
    valid = ~np.isnan(values)
    shares = np.ones(len(values)) if weight is None else weight
    taken = valid & (shares > 0)[:, None]
    total = shares @ valid
    shift = guess(values)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(2):  # the second pass is about the mean itself
            delta = np.where(valid, values - shift, 0.0)
            rest, squares = shares @ delta, shares @ np.square(delta)
            columns = from_shifted(taken.sum(0, dtype=np.float64), total, shift, rest, squares, grain)
            if not (rest * columns.offset > columns.m2).any():
                break
            shift = np.where(np.isfinite(columns.mean), columns.mean, shift)
    wide = ~np.isfinite(columns.m2)
    if wide.any():
        raise NormalizationError(
            f"feature(s) {_listed(names[wide])} spread so widely that the variance leaves the range of float64; "
            "divide them by a constant first"
        )
    return columns


def _listed(names: NDArray[np.intp]) -> str:
    """Returns the first few feature numbers."""
    more = ", ..." if len(names) > 5 else ""
    return "[" + ", ".join(str(int(name)) for name in names[:5]) + more + "]"


def _sums(values: NDArray[np.floating], shift: NDArray[np.floating], weight: Floats | None) -> Sums:
    """Returns counts, weights, sums and sums of squares of the deviations from `shift`."""
    size = values.shape[1]
    out = (np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size))
    if size > 1 and len(values) >= _LONG and values.strides[0] == values.itemsize:  # each column lies in one piece
        for j in range(size):
            column = _sums(values[:, j : j + 1], shift[j : j + 1], weight)
            for total, one in zip(out, column, strict=True):
                total[j] = one[0]
        return out
    kernel = compiled()
    rows = len(values) if kernel is not None and values.flags.c_contiguous else max(1, _SLAB // size)
    for start in range(0, len(values), rows):
        slab = np.ascontiguousarray(values[start : start + rows])
        part = None if weight is None else weight[start : start + rows]
        if kernel is not None:
            _compiled_slab(kernel, slab, shift, part, out)
        else:
            _numpy_slab(slab, shift, part, out)
    return out


def _compiled_slab(
    kernel: ModuleType, slab: NDArray[np.floating], shift: NDArray[np.floating], weight: Floats | None, out: Sums
) -> None:
    """Adds one slab to `out` in compiled code."""
    if weight is not None:
        kernel.weighted(slab, shift, weight, *out)
        return
    lanes = max(1, 64 // slab.shape[1])
    if lanes > 1 and len(slab) >= 8 * lanes:
        whole = len(slab) // lanes * lanes
        wide = tuple(np.zeros(lanes * slab.shape[1]) for _ in range(4))
        kernel.plain(slab[:whole].reshape(whole // lanes, -1), np.tile(shift, lanes), *wide)
        for total, part in zip(out, wide, strict=True):
            total += part.reshape(lanes, -1).sum(0)
        slab = slab[whole:]
    if len(slab):
        kernel.plain(slab, shift, *out)


def _numpy_slab(slab: NDArray[np.floating], shift: NDArray[np.floating], weight: Floats | None, out: Sums) -> None:
    """Adds one slab to `out`: column sums are products with a row of ones, which BLAS does fastest."""
    if weight is None:
        lanes = max(1, min(_LANES // slab.shape[1], len(slab)))
        whole = len(slab) // lanes * lanes
        delta = slab[:whole].reshape(whole // lanes, -1) - np.tile(shift, lanes)
        ones = np.ones(len(delta), slab.dtype)
        rest = (ones @ delta).reshape(lanes, -1).sum(0, dtype=np.float64)
        squares = (ones @ np.square(delta, out=delta)).reshape(lanes, -1).sum(0, dtype=np.float64)
        if np.isfinite(rest).all() and np.isfinite(squares).all():
            for total, part in zip(out, (whole, whole, rest, squares), strict=True):
                total += part
            slab = slab[whole:]
        if not len(slab):
            return
    shares = np.ones(len(slab)) if weight is None else weight
    wide = slab.astype(np.float64)
    valid = ~np.isnan(wide)
    delta64 = np.where(valid, wide - shift, 0.0)
    out[0][:] += (valid & (shares > 0)[:, None]).sum(0)
    out[1][:] += shares @ valid
    out[2][:] += shares @ delta64
    out[3][:] += shares @ np.square(delta64)

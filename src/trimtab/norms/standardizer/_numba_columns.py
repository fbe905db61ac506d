"""The compiled column sums: one pass, deviations in the array's dtype, eight rows at a time, added in float64.

Eight rows are added up before float64 is touched, which keeps the loop as fast as the memory; a block with a NaN is done again, value
by value.
"""

from typing import Any

import numpy as np

from trimtab.stats.compiling import jit

_BLOCK = 512  # rows: a multiple of eight; what one NaN costs


# Compiled when first called, for the dtypes that come. The GIL is let go: partitions of the data may be summed in threads.
_jit = jit(nogil=True)


@_jit
def _eight(x: Any, shift: Any, rest: Any, squares: Any) -> None:
    rows, size = x.shape
    whole = rows // 8 * 8
    for i in range(0, whole, 8):
        for j in range(size):
            s = shift[j]
            a, b, c, d = x[i, j] - s, x[i + 1, j] - s, x[i + 2, j] - s, x[i + 3, j] - s
            e, f, g, h = x[i + 4, j] - s, x[i + 5, j] - s, x[i + 6, j] - s, x[i + 7, j] - s
            rest[j] += np.float64(((a + b) + (c + d)) + ((e + f) + (g + h)))
            squares[j] += np.float64(((a * a + b * b) + (c * c + d * d)) + ((e * e + f * f) + (g * g + h * h)))
    for i in range(whole, rows):
        for j in range(size):
            one = np.float64(x[i, j] - shift[j])
            rest[j] += one
            squares[j] += one * one


@_jit
def weighted(x: Any, shift: Any, weight: Any, count: Any, total: Any, rest: Any, squares: Any) -> None:
    """Adds the sums of weighted rows, NaN left out, to four arrays of float64: count, weight, rest, squares."""
    rows, size = x.shape
    for i in range(rows):
        w = weight[i]
        one = 1.0 if w > 0.0 else 0.0
        for j in range(size):
            value = np.float64(x[i, j])
            valid = value == value  # false for NaN alone
            delta = value - np.float64(shift[j]) if valid else 0.0
            count[j] += one if valid else 0.0
            total[j] += w if valid else 0.0
            rest[j] += w * delta
            squares[j] += w * delta * delta


@_jit
def plain(x: Any, shift: Any, count: Any, total: Any, rest: Any, squares: Any) -> None:
    """Adds the sums of rows that weigh one each; arguments as in `weighted`."""
    rows, size = x.shape
    near, far = np.empty(size), np.empty(size)
    ones = np.ones(_BLOCK)
    for start in range(0, rows, _BLOCK):
        block = x[start : start + _BLOCK]
        near[:] = 0.0
        far[:] = 0.0
        _eight(block, shift, near, far)
        finite = True
        for j in range(size):
            finite &= abs(far[j]) < np.inf  # squares hold every NaN and infinity of the block
        if finite:
            n = np.float64(len(block))
            for j in range(size):
                count[j] += n
                total[j] += n
                rest[j] += near[j]
                squares[j] += far[j]
        else:
            weighted(block, shift, ones, count, total, rest, squares)

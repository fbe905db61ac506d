"""RMSNorm compiled: one row at a time, which stays in the L1 cache between its two passes.

Arguments are addresses and sizes, as in `trimtab.stats`: numba dispatches integers several times faster than arrays.
"""

from typing import Any

import numpy as np

from trimtab.stats.compiling import carray, float32_at, float64_at, jit

# Rows whose share of the weight's gradient is summed in float32 before it goes to float64.
_PART = 128


@jit(nogil=True)
def _rows(address: int, rows: int, width: int) -> Any:
    """Returns the float32 matrix at an address."""
    return carray(float32_at(address), (rows, width))


@jit("void(int64,int64,int64,int64,int64,int64,float64)", nogil=True)
def forward(x: int, weight: int, y: int, inverse: int, rows: int, width: int, eps: float) -> None:
    """Write y = weight x / rms(x) and the rows' 1 / rms(x); all float32, `weight` 0 where there is none."""
    xs, ys, inverses = _rows(x, rows, width), _rows(y, rows, width), _rows(inverse, 1, rows)[0]
    w = _rows(weight, 1, width)[0]
    for row in range(rows):
        given, out = xs[row], ys[row]
        squares = np.float32(0)
        for i in range(width):
            squares += given[i] * given[i]
        r = np.float32(1.0 / np.sqrt(np.float64(squares) / width + eps))
        inverses[row] = r
        if weight == 0:
            for i in range(width):
                out[i] = given[i] * r
        else:
            for i in range(width):
                out[i] = given[i] * r * w[i]


@jit("void(int64,int64,int64,int64,int64,int64,int64,int64)", nogil=True)
def backward(dy: int, x: int, weight: int, inverse: int, dx: int, dweight: int, rows: int, width: int) -> None:
    """Write dx, and add to the float64 `dweight`; `weight` and `dweight` are 0 where there is none."""
    dys, xs, dxs = _rows(dy, rows, width), _rows(x, rows, width), _rows(dx, rows, width)
    inverses, w = _rows(inverse, 1, rows)[0], _rows(weight, 1, width)[0]
    total = carray(float64_at(dweight), (width,))
    part = np.zeros(width, np.float32)
    for row in range(rows):
        above, given, out = dys[row], xs[row], dxs[row]
        r = inverses[row]
        along = np.float32(0)
        if weight == 0:
            for i in range(width):
                along += above[i] * given[i]
        else:
            for i in range(width):
                along += above[i] * w[i] * given[i]
        share = np.float32(np.float64(along) * r * r * r / width)
        if weight == 0:
            for i in range(width):
                out[i] = above[i] * r - given[i] * share
        else:
            for i in range(width):
                out[i] = above[i] * w[i] * r - given[i] * share
        if dweight != 0:
            for i in range(width):
                part[i] += above[i] * given[i] * r
            if row % _PART == _PART - 1 or row == rows - 1:
                for i in range(width):
                    total[i] += part[i]
                    part[i] = np.float32(0)

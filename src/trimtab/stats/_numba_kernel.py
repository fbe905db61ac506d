"""The compiled kernel: all seven statistics in one pass over blocks that stay in the L1 cache.

Every loop over float32 stays in 32 bits, because LLVM vectorises it only then. Within a piece of a block sums are float32,
taken about the mean so far; pieces are added in float64, and blocks by Chan's merge in float64. Arguments are plain integers (addresses, sizes): numba dispatches those several times faster than arrays.
"""

from typing import Any

import numpy as np

from trimtab.stats.compiling import carray, float32_at, float64_at, int16_at, jit, prefetch

BLOCK = 4096
# Outside these magnitudes squares, or the rounding-level residuals of the block, leave float32's normal range.
_HUGE = np.float32(1e18).view(np.int32)
_TINY = np.float32(1e-11).view(np.int32)
# Deviations may be taken about a centre up to this many variances (squared distance) from the mean.
_FAR = 4.0
# Memory is asked for so many bytes ahead, once for each so many values: a fifth faster on activations just written.
_AHEAD = 2048
_PIECE = 256
_MAGNITUDE32 = np.int32(0x7FFFFFFF)
_INFINITE32 = np.int32(0x7F800000)
_MAGNITUDE64 = np.int64(0x7FFFFFFFFFFFFFFF)
_INFINITE64 = np.int64(0x7FF0000000000000)


@jit()
def _exact(x: Any, top: float, bad: int) -> Any:
    """Returns the moments of a block of finite values in float64; `top` is their largest magnitude."""
    n = x.shape[0]
    if n == 0:
        return 0, 0.0, 0.0, 0.0, 0.0, 0, bad
    total = 0.0
    for i in range(n):
        total += np.float64(x[i])
    centre = total / n
    rest = 0.0
    squares = 0.0
    absolute = 0.0
    for i in range(n):
        delta = np.float64(x[i]) - centre
        rest += delta
        squares += delta * delta
        absolute += abs(np.float64(x[i]))
    zeros = 0
    for i in range(n):
        zeros += x[i] == 0
    # Where squares overflow, so may those of the residuals: infinity, and not the difference of two.
    m2 = np.inf if squares == np.inf else max(squares - rest * rest / n, 0.0)
    return n, centre + rest / n, m2, absolute, top, zeros, bad


@jit()
def _finite_part(x: Any) -> Any:
    """Returns the moments of a block that holds NaN or infinity: the finite values are packed together first."""
    packed = np.empty(x.shape[0], np.float64)
    n = 0
    top = 0.0
    for i in range(x.shape[0]):
        value = np.float64(x[i])
        if abs(value) < np.inf:
            packed[n] = value
            n += 1
            top = max(top, abs(value))
    return _exact(packed[:n], top, x.shape[0] - n)


@jit()
def _sums(x: Any, centre: Any) -> Any:
    """Returns the sums of x - centre, of its square, and of |x|; the bits of the largest magnitude; the zeros."""
    bits = x.view(np.int32)
    rest = np.float32(0)
    squares = np.float32(0)
    absolute = np.float32(0)
    top = np.int32(0)
    zeros = np.int32(0)
    for i in range(x.shape[0]):
        delta = np.float32(x[i] - centre)
        rest += delta
        squares += delta * delta
        absolute += abs(x[i])
        top = max(top, np.int32(bits[i] & _MAGNITUDE32))
        zeros = np.int32(zeros + np.int32(x[i] == np.float32(0)))
    return np.float64(rest), np.float64(squares), np.float64(absolute), top, zeros


@jit()
def _about(x: Any, centre: Any, far: bool) -> Any:
    """Returns what `_sums` does; of a block that may lie in main memory, what comes next is asked for ahead of time."""
    if not far:
        return _sums(x, centre)
    rest, squares, absolute, top, zeros = 0.0, 0.0, 0.0, np.int32(0), np.int32(0)
    address = x.ctypes.data
    for start in range(0, x.shape[0], _PIECE):
        for line in range(0, 4 * _PIECE, 64):
            prefetch(address + 4 * start + _AHEAD + line)
        piece = _sums(x[start : start + _PIECE], centre)
        rest += piece[0]
        squares += piece[1]
        absolute += piece[2]
        top = max(top, piece[3])
        zeros = np.int32(zeros + piece[4])
    return rest, squares, absolute, top, zeros


@jit()
def _block32(x: Any, guess: Any, far: bool) -> Any:
    """Returns the moments of one block of float32: (count, mean, m2, sum of magnitudes, largest, zeros, non-finite).

    Deviations are taken about `guess`, the mean of the values before, which saves a pass where it is near enough; `far` tells
    that the block is not in the cache yet.
    """
    n = x.shape[0]
    rest, squares, absolute, top, zeros = _about(x, guess, far)
    peak = np.int32(top)  # numba views a scalar as another type only where its name has one definition
    if peak >= _INFINITE32:
        return _finite_part(x)
    if peak > _HUGE or 0 < peak < _TINY:
        return _exact(x, np.float64(peak.view(np.float32)), 0)
    m2 = squares - rest * rest / n
    if squares == np.inf or rest * rest / n > _FAR * m2:
        # The guess overflowed, or cost digits: once more about this block's own mean.
        total = np.float32(0)
        for i in range(n):
            total += x[i]
        guess = np.float32(total / np.float32(n))
        rest, squares, absolute, top, zeros = _about(x, guess, False)
        m2 = squares - rest * rest / n
    # `guess` is not the mean: what the residuals add up to corrects both moments exactly.
    return n, guess + rest / n, max(m2, 0.0), absolute, np.float64(peak.view(np.float32)), np.int64(zeros), 0


@jit()
def _block64(x: Any) -> Any:
    """Returns the moments of one block of float64."""
    bits = x.view(np.int64)
    top = np.int64(0)
    for i in range(x.shape[0]):
        top = max(top, bits[i] & _MAGNITUDE64)
    peak = np.int64(top)
    return _finite_part(x) if peak >= _INFINITE64 else _exact(x, peak.view(np.float64), 0)


@jit()
def _fold(row: Any, block: Any) -> None:
    """Chan's merge of one block into the row, whose fourth number is the sum of magnitudes until `_close`."""
    n, mean, m2, absolute, top, zeros, bad = block
    row[6] += bad
    if n == 0:
        return
    count = row[0] + n
    delta = mean - row[1]
    row[2] += m2
    if row[0] > 0:  # a square that overflows, times no values before, would be NaN
        row[2] += delta * delta * row[0] * (n / count)
    row[1] += delta * (n / count)
    row[0] = count
    row[3] += absolute
    row[4] = max(row[4], top)
    row[5] += zeros


@jit()
def _close(row: Any) -> None:
    """Turn the sum of magnitudes into their mean."""
    if row[0] > 0:
        row[3] /= row[0]


@jit()
def _row_at(address: int) -> Any:
    """Returns the seven float64 at an address, set to zero."""
    row = carray(float64_at(address), (7,))
    row[:] = 0.0
    return row


@jit()
def _unpack(values: Any, out: Any) -> None:
    """Bfloat16 is the upper half of a float32."""
    bits = out.view(np.int32)
    for i in range(values.shape[0]):
        bits[i] = np.int32(np.int32(values[i]) << np.int32(16))


@jit("void(int64,int64,int64,int64)")
def float32(address: int, n: int, step: int, out: int) -> None:
    """Measure n float32 in blocks whose starts lie `step` elements apart; seven float64 are written to `out`."""
    row = _row_at(out)
    for start in range(0, n, BLOCK):
        block = carray(float32_at(address + start // BLOCK * step * 4), (min(BLOCK, n - start),))
        _fold(row, _block32(block, np.float32(row[1]), True))
    _close(row)


@jit("void(int64,int64,int64,int64)")
def float64(address: int, n: int, step: int, out: int) -> None:
    """Measure n float64; as `float32` otherwise."""
    row = _row_at(out)
    for start in range(0, n, BLOCK):
        block = carray(float64_at(address + start // BLOCK * step * 8), (min(BLOCK, n - start),))
        _fold(row, _block64(block))
    _close(row)


@jit("void(int64,int64,int64,int64)")
def bfloat16(address: int, n: int, step: int, out: int) -> None:
    """Measure n bfloat16; as `float32` otherwise."""
    row = _row_at(out)
    unpacked = np.empty(min(n, BLOCK), np.float32)
    for start in range(0, n, BLOCK):
        width = min(BLOCK, n - start)
        _unpack(carray(int16_at(address + start // BLOCK * step * 2), (width,)), unpacked[:width])
        _fold(row, _block32(unpacked[:width], np.float32(row[1]), False))
    _close(row)


@jit("void(int64,int64,int64,int64,int64,int64)")
def float32_difference(after: int, before: int, n: int, step_after: int, step_before: int, out: int) -> None:
    """Measure after - before, n float32 each, block by block: the difference never leaves the L1 cache."""
    row = _row_at(out)
    delta = np.empty(min(n, BLOCK), np.float32)
    for start in range(0, n, BLOCK):
        width, number = min(BLOCK, n - start), start // BLOCK
        x = carray(float32_at(after + number * step_after * 4), (width,))
        y = carray(float32_at(before + number * step_before * 4), (width,))
        for i in range(width):
            delta[i] = x[i] - y[i]
        _fold(row, _block32(delta[:width], np.float32(row[1]), False))
    _close(row)


@jit("void(int64,int64,int64,int64,int64,int64)")
def bfloat16_difference(after: int, before: int, n: int, step_after: int, step_before: int, out: int) -> None:
    """Measure after - before of bfloat16, taken in float32; as `float32_difference` otherwise."""
    row = _row_at(out)
    delta = np.empty(min(n, BLOCK), np.float32)
    other = np.empty(min(n, BLOCK), np.float32)
    for start in range(0, n, BLOCK):
        width, number = min(BLOCK, n - start), start // BLOCK
        _unpack(carray(int16_at(after + number * step_after * 2), (width,)), delta[:width])
        _unpack(carray(int16_at(before + number * step_before * 2), (width,)), other[:width])
        for i in range(width):
            delta[i] -= other[i]
        _fold(row, _block32(delta[:width], np.float32(row[1]), False))
    _close(row)

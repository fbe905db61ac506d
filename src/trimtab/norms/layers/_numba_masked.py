"""Masked batch normalization compiled, for channels in front, (N, C, L), and for channels last, (M, C).

Positions that the mask leaves out are passed over by a selection, not by a product with zero: they may hold anything.
Arguments are addresses and sizes, as in `trimtab.stats`; `length` is 0 for channels last. `kept` are int32, the other
numbers of a channel float32, sums float64.
"""

from typing import Any

import numpy as np

from trimtab.stats.compiling import carray, float32_at, float64_at, int32_at, jit

_ZERO = np.float32(0)
# Rows whose sums over the batch are taken in float32 before they go to float64.
_PART = 128


@jit(nogil=True)
def _planes(address: int, rows: int, channels: int, length: int) -> Any:
    """Returns the float32 at an address."""
    return carray(float32_at(address), (rows, channels, length))


@jit(nogil=True)
def _matrix(address: int, rows: int, channels: int) -> Any:
    """Returns the float32 at an address."""
    return carray(float32_at(address), (rows, channels))


@jit(nogil=True)
def _products_of_rows(
    x: int, other: int, kept: int, c: Any, firsts: Any, seconds: Any, rows: int, channels: int
) -> None:
    """Do what `products` does for channels last."""
    xs, others = _matrix(x, rows, channels), _matrix(other, rows, channels)
    mask = carray(int32_at(kept), (rows,))
    a, b = np.zeros(channels, np.float32), np.zeros(channels, np.float32)
    for row in range(rows):
        if mask[row]:
            values = xs[row]
            if other == 0:
                for i in range(channels):
                    d = values[i] - c[i]
                    a[i] += d
                    b[i] += d * d
            else:
                factors = others[row]
                for i in range(channels):
                    a[i] += factors[i]
                    b[i] += factors[i] * (values[i] - c[i])
        if row % _PART == _PART - 1 or row == rows - 1:
            for i in range(channels):
                firsts[i] += a[i]
                seconds[i] += b[i]
                a[i] = _ZERO
                b[i] = _ZERO


@jit("void(int64,int64,int64,int64,int64,int64,int64,int64,int64)", nogil=True)
def products(
    x: int, other: int, kept: int, centre: int, first: int, second: int, rows: int, channels: int, length: int
) -> None:
    """Add the sums of o and of o (x - centre) over the kept positions to `first` and `second`.

    o is `other`, or x - centre itself where the address of `other` is 0.
    """
    c = carray(float32_at(centre), (channels,))
    firsts, seconds = carray(float64_at(first), (channels,)), carray(float64_at(second), (channels,))
    if length == 0:
        _products_of_rows(x, other, kept, c, firsts, seconds, rows, channels)
        return
    xs, others = _planes(x, rows, channels, length), _planes(other, rows, channels, length)
    masks = carray(int32_at(kept), (rows, length))
    for row in range(rows):
        mask = masks[row]
        for channel in range(channels):
            values, mean = xs[row, channel], c[channel]
            a, b = _ZERO, _ZERO
            if other == 0:
                for i in range(length):
                    d = values[i] - mean if mask[i] else _ZERO
                    a += d
                    b += d * d
            else:
                factors = others[row, channel]
                for i in range(length):
                    o = factors[i] if mask[i] else _ZERO
                    a += o
                    b += o * (values[i] - mean) if mask[i] else _ZERO
            firsts[channel] += a
            seconds[channel] += b


@jit(nogil=True)
def _combine_rows(
    x: int, other: int, kept: int, c: Any, a: Any, f: Any, b: Any, out: int, rows: int, channels: int
) -> None:
    """Do what `combine` does for channels last."""
    xs, others, outs = _matrix(x, rows, channels), _matrix(other, rows, channels), _matrix(out, rows, channels)
    mask = carray(int32_at(kept), (rows,))
    for row in range(rows):
        values, result = xs[row], outs[row]
        if not mask[row]:
            for i in range(channels):
                result[i] = _ZERO
        elif other == 0:
            for i in range(channels):
                result[i] = (values[i] - c[i]) * a[i] + b[i]
        else:
            factors = others[row]
            for i in range(channels):
                result[i] = (values[i] - c[i]) * a[i] + factors[i] * f[i] + b[i]


@jit("void(int64,int64,int64,int64,int64,int64,int64,int64,int64,int64,int64)", nogil=True)
def combine(
    x: int,
    other: int,
    kept: int,
    centre: int,
    slope: int,
    factor: int,
    offset: int,
    out: int,
    rows: int,
    channels: int,
    length: int,
) -> None:
    """Write slope (x - centre) + factor other + offset where a position is kept, and 0 elsewhere; `other` may be 0."""
    c, a = carray(float32_at(centre), (channels,)), carray(float32_at(slope), (channels,))
    f, b = carray(float32_at(factor), (channels,)), carray(float32_at(offset), (channels,))
    if length == 0:
        _combine_rows(x, other, kept, c, a, f, b, out, rows, channels)
        return
    xs, others, outs = (
        _planes(x, rows, channels, length),
        _planes(other, rows, channels, length),
        _planes(out, rows, channels, length),
    )
    masks = carray(int32_at(kept), (rows, length))
    for row in range(rows):
        mask = masks[row]
        for channel in range(channels):
            values, result = xs[row, channel], outs[row, channel]
            mean, s, t = c[channel], a[channel], b[channel]
            if other == 0:
                for i in range(length):
                    result[i] = (values[i] - mean) * s + t if mask[i] else _ZERO
            else:
                factors, g = others[row, channel], f[channel]
                for i in range(length):
                    result[i] = (values[i] - mean) * s + factors[i] * g + t if mask[i] else _ZERO

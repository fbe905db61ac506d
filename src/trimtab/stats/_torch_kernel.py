"""The path without numba on the CPU: few torch calls, each at the speed of memory.

Row sums and row norms of 4096 elements are float32 inside a row and float64 across rows: as fast as one long reduction,
whose single float32 accumulator loses up to two digits on 16 million values, and right to 1e-9. The mean magnitude and
the zeros would double that cost, so large tensors give them from every 17th row.
"""

import math
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trimtab.stats._chan import empty, merge
from trimtab.stats._layout import BLOCK

Row: TypeAlias = NDArray[np.float64]

_SMALL = 1 << 13  # below, numpy's cheap calls on a float64 copy win
_SAMPLED_FROM = 1 << 18  # from here on, magnitudes and zeros come from a sample
_STEP = 17  # odd, as layers' shapes are powers of two
_CUTS = 64  # tries at cutting a tensor into even rows
_PART = 1 << 20  # bfloat16 is widened by this many elements at a time
_EXACT_PART = 1 << 15
_CENTRED_ROWS = 64  # a megabyte of float32, which stays in the L2 cache
_FLOAT64_HUGE = 1e150
_FAR = 100.0  # rms² - mean² keeps five digits while mean² is below this many variances
HUGE, TINY = 1e18, 1e-11  # float32 squares, or residuals, leave the normal range outside


def cpu_row(values: Tensor) -> tuple[Row, bool]:
    """All seven statistics of a tensor on the CPU.

    Args:
        values: Float32, float64 or bfloat16 as `_layout.flatten` gives them.

    Returns:
        The moment row, and whether `abs_mean` and `zeros` were sampled.
    """
    n = values.numel()
    if n <= _SMALL:
        return _exact(_wide(values)), False
    flat = values.contiguous().view(-1)
    sample = n >= _SAMPLED_FROM
    if flat.dtype != torch.bfloat16:
        return _rows(flat, sample)
    row, sampled = empty(), False
    widened = torch.empty(min(n, _PART), device="cpu", dtype=torch.float32)
    for part in torch.split(flat, _PART):
        values = widened[: len(part)].copy_(part)
        part_row, part_sampled = _rows(values, sample) if len(part) > _SMALL else (_exact(_wide(values)), False)
        row, sampled = merge(row, part_row), sampled or part_sampled
    return row, sampled


def small_rows(tensors: list[Tensor]) -> Row:
    """All seven statistics of many small tensors at once: a dozen numpy calls altogether, instead of for each.

    Args:
        tensors: Flat and not empty, as for `cpu_row`.

    Returns:
        Moment rows of shape (len(tensors), 7).
    """
    x = torch.cat(tensors).double().numpy()
    sizes = np.array([len(tensor) for tensor in tensors])
    starts = np.cumsum(sizes) - sizes
    magnitude = np.abs(x)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.add.reduceat(x, starts) / sizes
        m2 = np.add.reduceat((x - np.repeat(mean, sizes)) ** 2, starts)
        abs_mean = np.add.reduceat(magnitude, starts) / sizes
    top = np.maximum.reduceat(magnitude, starts)
    zeros = np.add.reduceat(x == 0, starts, dtype=np.float64)
    rows = np.stack((sizes, mean, m2, abs_mean, top, zeros, np.zeros(len(sizes))), axis=1)
    for hard in np.flatnonzero(~(top < _FLOAT64_HUGE)):
        rows[hard] = _exact(x[starts[hard] : starts[hard] + sizes[hard]])
    return rows


def _wide(values: Tensor) -> NDArray[np.float64]:
    """Returns a flat float64 array; numpy converts faster than torch but knows no bfloat16."""
    if values.dtype == torch.bfloat16:
        values = values.float()
    return _float64(values).reshape(-1)


def _exact(x: NDArray[np.float64]) -> Row:
    """Returns the row by two passes in float64 over values of any kind."""
    n = x.size
    if n == 0:
        return empty()
    magnitude = np.abs(x)
    top = np.maximum.reduce(magnitude)
    if not top < _FLOAT64_HUGE:  # also true of NaN
        return _exact_hard(x, magnitude)
    mean = np.add.reduce(x) / n
    delta = x - mean
    abs_mean = np.add.reduce(magnitude) / n
    return np.array((n, mean, delta.dot(delta), abs_mean, top, n - np.count_nonzero(x), 0.0))


def _exact_hard(x: NDArray[np.float64], magnitude: NDArray[np.float64]) -> Row:
    """Returns the row of values with NaN or infinity, or whose float64 squares overflow: m2 is infinite then."""
    finite = magnitude < np.inf
    x, magnitude = x[finite], magnitude[finite]
    row = empty()
    row[6] = finite.size - x.size
    if x.size and np.maximum.reduce(magnitude) < _FLOAT64_HUGE:
        row[:6] = _exact(x)[:6]
    elif x.size:
        n = x.size
        row[:6] = n, (x / n).sum(), np.inf, (magnitude / n).sum(), magnitude.max(), n - np.count_nonzero(x)
    return row


def _exact_parts(flat: Tensor) -> Row:
    row = empty()
    for part in torch.split(flat, _EXACT_PART):
        row = merge(row, _exact(_wide(part)))
    return row


def _rows(flat: Tensor, sample: bool) -> tuple[Row, bool]:
    """Returns the row, by rows of at most 4096, for a long float32 or float64 tensor."""
    rows, tail = _cut(flat)
    low, high, sums, norms = _read(rows)
    top = max(-low, high)
    # NaN is carried along, so that two numbers tell whether the fast formulas hold.
    single = flat.dtype == torch.float32
    if not math.isfinite(low + high) or top > (HUGE if single else _FLOAT64_HUGE) or (single and 0 < top < TINY):
        return _exact_parts(flat), False
    count = float(rows.numel())
    mean, m2 = _mean_and_m2(rows, sums, norms)
    part = rows[::_STEP] if sample else rows
    signed, crossing = low < 0 < high, low <= 0 <= high
    abs_mean = _abs_mean(part) if signed else abs(mean)
    zeros = round(_zero_share(part) * count) if crossing else 0
    row = np.array((count, mean, m2, abs_mean, top, zeros, 0.0))
    return merge(row, _exact(_wide(tail))) if len(tail) else row, sample and crossing


def _cut(flat: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the tensor as rows of 2048 to 4096 elements, and what is left over: nothing, for most layers' shapes."""
    n = flat.numel()
    least = -(-n // BLOCK)
    for blocks in range(least, min(2 * least - 1, least + _CUTS)):
        if n % blocks == 0:
            return flat.view(blocks, n // blocks), flat[n:]
    blocks = n // BLOCK
    return flat[: blocks * BLOCK].view(blocks, BLOCK), flat[blocks * BLOCK :]


def _read(rows: Tensor) -> tuple[float, float, Row, Row]:
    """Returns the smallest and the largest value, and the sums and norms of the rows, of values read from memory once."""
    low, high, sums, norms = [], [], [], []
    for part in _parts(rows):
        values = part.numpy().reshape(-1)
        low.append(np.minimum.reduce(values))  # faster than torch's, whose sums are the faster ones
        high.append(np.maximum.reduce(values))
        sums.append(part.sum(1).numpy())
        norms.append(torch.linalg.vector_norm(part, dim=1).numpy())
    extrema = float(np.minimum.reduce(low)), float(np.maximum.reduce(high))
    return *extrema, np.concatenate(sums, dtype=np.float64), np.concatenate(norms, dtype=np.float64)


def _mean_and_m2(rows: Tensor, sums: Row, norms: Row) -> tuple[float, float]:
    """Returns mean and sum of squared deviations from the sums and norms of rows, combined in float64."""
    width = rows.shape[1]
    mean = sums / width
    square = width * mean * mean
    m2 = norms * norms - square
    far = square > _FAR * m2
    if far.any():
        mean, m2 = _about_own_mean(rows, mean, m2, far)
    total = float(np.add.reduce(mean)) / len(mean)
    spread = mean - total
    return total, max(float(np.add.reduce(m2)) + width * float(spread.dot(spread)), 0.0)


def _about_own_mean(rows: Tensor, mean: Row, m2: Row, far: NDArray[np.bool_]) -> tuple[Row, Row]:
    """Returns means and squared deviations where rms² - mean² has cancelled: those rows once more."""
    centre = torch.from_numpy(mean).to(rows.dtype)
    rest, norm = torch.zeros_like(centre), torch.zeros_like(centre)
    deviation = torch.empty_like(rows[:_CENTRED_ROWS])
    for start in range(0, len(rows), _CENTRED_ROWS):
        part = slice(start, min(start + _CENTRED_ROWS, len(rows)))
        if far[part].any():
            delta = torch.sub(rows[part], centre[part, None], out=deviation[: part.stop - start])
            torch.sum(delta, 1, out=rest[part])
            torch.linalg.vector_norm(delta, dim=1, out=norm[part])
    left, width = _float64(rest), rows.shape[1]
    mean = np.where(far, _float64(centre) + left / width, mean)
    return mean, np.where(far, _float64(norm) ** 2 - left * left / width, m2)


def _float64(values: Tensor) -> NDArray[np.float64]:
    """Returns a float64 array; on a few numbers numpy is four times cheaper than torch."""
    return values.numpy().astype(np.float64)


def _abs_mean(rows: Tensor) -> float:
    """Returns the mean magnitude; abs and sum in the L2 cache are four times faster than the 1-norm."""
    total = sum(float(np.add.reduce(_float64(part.abs().sum(1)))) for part in _parts(rows))
    return total / rows.numel()


def _zero_share(rows: Tensor) -> float:
    """Returns the share of zeros; numpy's comparison and count are vectorised, torch's are not."""
    return sum(np.count_nonzero(part.numpy() == 0) for part in _parts(rows)) / rows.numel()


def _parts(rows: Tensor) -> tuple[Tensor, ...]:
    """Returns the rows in parts that stay in the L2 cache."""
    return (rows,) if len(rows) <= _CENTRED_ROWS else torch.split(rows, _CENTRED_ROWS)

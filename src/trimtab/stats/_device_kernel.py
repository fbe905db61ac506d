"""The path for accelerators: torch reductions with float64 accumulators, no branch on a value, nothing to the host.

Each reduction casts while it reads. What remains is arithmetic on a handful of numbers, and that waits for the host.
"""

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Rows: TypeAlias = NDArray[np.float64]

WIDTH = 7  # sum, sum of magnitudes, largest, non-zeros, non-finite, half pivot, sum of squared half deviations


def device_raw(values: Tensor) -> Tensor:
    """Raw sums of a tensor, on its device.

    Deviations are taken about a pivot, the mean rounded to the tensor's own type, and halved so that the difference
    of two huge numbers cannot overflow; `rows_from_raw` corrects for the pivot exactly.

    Args:
        values: Float32, float64 or bfloat16 as `_layout.flatten` gives them.

    Returns:
        Seven float64 for `rows_from_raw`.
    """
    raw = torch.zeros(WIDTH, dtype=torch.float64, device=values.device)
    n = values.numel()
    if n == 0:
        return raw
    if values.dtype == torch.bfloat16:
        values = values.float()
    values = values.reshape(-1)
    total, absolute, top, nonzeros, bad, half_pivot, squares = raw.unbind()
    clean = torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    torch.sum(clean != values, 0, dtype=torch.float64, out=bad)
    torch.sum(clean, 0, dtype=torch.float64, out=total)
    norm = torch.linalg.vector_norm
    norm(clean, 1, dtype=torch.float64, out=absolute)
    norm(clean, torch.inf, dtype=torch.float64, out=top)
    norm(clean, 0, dtype=torch.float64, out=nonzeros)
    pivot = (total * (0.5 / n)).to(clean.dtype)
    half_pivot.copy_(pivot)
    norm(torch.sub(pivot, clean, alpha=0.5, out=clean), 2, dtype=torch.float64, out=squares)
    return raw


def rows_from_raw(raw: Rows, sizes: Rows) -> Rows:
    """Moment rows from raw sums, on the host.

    Args:
        raw: Shape (n, 7), from `device_raw`.
        sizes: Number of elements of each tensor.

    Returns:
        Rows of shape (n, 7) in the order of `FIELDS`.
    """
    total, absolute, top, nonzeros, bad, half_pivot, norm = raw.T
    count = sizes - bad
    share = np.maximum(count, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        # A non-finite element was read as zero: its deviation is the pivot itself.
        squares = norm * norm - bad * half_pivot * half_pivot
        rest = count * half_pivot - total / 2
        m2 = np.maximum(4 * (squares - rest * rest / share), 0.0)
    m2[count == 0] = 0.0
    return np.stack((count, total / share, m2, absolute / share, top, count - nonzeros, bad), axis=1)

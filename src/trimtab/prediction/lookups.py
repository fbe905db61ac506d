"""How often an index takes the same entry, which its values say and no moment of them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

MOST = 64
"""Rows of an index that are looked at, and places in a row, where each has its own."""


@torch.no_grad()
def repeats(args: Sequence[Any]) -> dict[int, tuple[float, float]]:
    """Of the whole numbers that a lookup takes entries by.

    Args:
        args: The arguments of `index` (a list of indices), `index_select` or `gather` (the dimension and the index).

    Returns:
        By the Python id of the (first) index: how often the entry of a mean place is taken, and the share of pairs of rows
        that take the same one.
    """
    if isinstance(args[1], int):
        index = args[2]
        if index.ndim < 2:
            return {id(index): (_mean_count(index), 1.0)}
        rows = index.movedim(args[1], -1).reshape(-1, index.shape[args[1]])
        some = rows[torch.linspace(0, len(rows) - 1, min(len(rows), MOST), device=rows.device).long()]
        counts = [_mean_count(row) for row in some]
        return {id(index): (sum(counts) / len(counts), _across(some))}
    given = [t for t in args[1] if isinstance(t, Tensor)]
    if any(t.dtype in {torch.bool, torch.uint8} for t in given):
        return {}
    whole = torch.stack([t.reshape(-1) for t in torch.broadcast_tensors(*given)], -1)  # type: ignore[no-untyped-call]
    codes = torch.unique(whole, dim=0, return_inverse=True)[1] if len(given) > 1 else whole[:, 0]
    return {id(given[0]): (_mean_count(codes), 1.0)}


def _mean_count(index: Tensor) -> float:
    counts = torch.unique(index, return_counts=True)[1].double()
    return float(counts.square().sum() / counts.sum()) if counts.numel() else 1.0


def _across(rows: Tensor) -> float:
    if len(rows) < 2:
        return 1.0
    some = rows[:, :MOST]
    equal = (some[:, None] == some).double().mean(-1)
    n = len(rows)
    return float((equal.sum() - n) / (n * (n - 1)))

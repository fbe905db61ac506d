"""What is drawn of a long run: what stands out is kept, where evenly spaced samples would lose it."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

COLUMNS = 1000
"""Recorded steps that a heat map shows, at most."""

POINTS = 2000
"""Points of a curve, at most."""


def columns(values: NDArray[np.float32], most: int = COLUMNS) -> NDArray[np.int64]:
    """Which steps to show: of each stretch of the run the one at which any site strays furthest from that site's median there.

    The first and the last are always among them.

    Args:
        values: Logarithms of what is shown, shape (steps, sites); NaN where nothing was seen.
        most: Steps to choose, at most.

    Returns:
        Their indices, ascending, shape (min(steps, most),).
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(1, count - 1, most - 1).astype(np.int64)
    chosen = [0]
    for begin, end in pairwise(edges):
        stretch = values[begin:end]
        level = np.nan_to_num(stretch, nan=0.0, posinf=1e3, neginf=-1e3)
        strays = np.abs(level - np.median(level, axis=0)).max(axis=1, initial=0.0)
        chosen.append(int(begin + np.argmax(strays)))
    return np.array([*chosen, count - 1], dtype=np.int64)


def points(y: NDArray[np.float64], most: int = POINTS) -> NDArray[np.int64]:
    """Which points of a curve to draw so that its outline stays: of each stretch the lowest and the highest.

    Args:
        y: The curve, shape (n,); NaN where there is none.
        most: Points to choose, at most.

    Returns:
        Their indices, ascending; all of them where there are no more than `most`.
    """
    count = len(y)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, most // 2).astype(np.int64)
    chosen = {0, count - 1}
    for begin, end in pairwise(edges):
        stretch = y[begin:end]
        if np.isnan(stretch).any():
            chosen.add(int(begin + np.argmax(np.isnan(stretch))))  # a gap stays a gap
        if not np.isnan(stretch).all():
            chosen |= {int(begin + np.nanargmin(stretch)), int(begin + np.nanargmax(stretch))}
    return np.array(sorted(chosen), dtype=np.int64)

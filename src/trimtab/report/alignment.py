"""Which layer of one net is which of another: by name, or, where names have shifted, by class and order."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

CLASS, NAME, SHAPE = 1000, 4, 2
"""What makes two layers the same, by weight: their class first; then their name, then the shapes of their parameters. A name alone
counts last: it pairs a layer with the one that has taken its place."""


def aligned(
    a: Sequence[str],
    b: Sequence[str],
    kinds_a: Mapping[str, tuple[Hashable, Hashable]] | None = None,
    kinds_b: Mapping[str, tuple[Hashable, Hashable]] | None = None,
) -> list[tuple[int | None, int | None]]:
    """Line two lists of layers up, both in their order (the heaviest common subsequence; Needleman and Wunsch 1970 without a gap's cost).

    In a `Sequential`, one layer that is put in shifts the names of all that follow; then classes and shapes tell which was which. A layer
    without parameters that has another name is the same only where the one with parameters before it is: nets of two kinds both have
    their ReLUs.

    Args:
        a: Names of layers in their order.
        b: Names of others.
        kinds_a: Class and shapes of each of `a`; of a layer that is not in it, the name alone is known.
        kinds_b: Of each of `b`.

    Returns:
        Rows of both lists in their order: an index into `a`, an index into `b`, None where one has no such layer.
    """
    kinds_a, kinds_b = kinds_a or {}, kinds_b or {}
    table = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int64)
    weights = np.array([[_weight(x, y, kinds_a.get(x), kinds_b.get(y)) for y in b] for x in a], dtype=np.int64)
    weights = weights.reshape(len(a), len(b))
    for i in range(len(a)):
        both = table[i, :-1] + weights[i]
        table[i + 1, 1:] = np.maximum.accumulate(np.maximum(table[i, 1:], both))
    return _known_by_neighbours(_path(table, weights), a, b, kinds_a, kinds_b)


def _weight(x: str, y: str, kind_x: tuple[Hashable, Hashable] | None, kind_y: tuple[Hashable, Hashable] | None) -> int:
    if kind_x is None or kind_y is None:
        return CLASS + NAME if x == y else 0
    if kind_x[0] != kind_y[0]:
        return int(x == y)
    return CLASS + NAME * (x == y) + SHAPE * (kind_x[1] == kind_y[1])


def _path(table: np.ndarray, weights: np.ndarray) -> list[tuple[int | None, int | None]]:
    rows: list[tuple[int | None, int | None]] = []
    i, k = len(table) - 1, table.shape[1] - 1
    while i or k:
        paired = i and k and weights[i - 1, k - 1] and table[i, k] == table[i - 1, k - 1] + weights[i - 1, k - 1]
        if paired:
            i, k = i - 1, k - 1
            rows.append((i, k))
        elif k and table[i, k] == table[i, k - 1]:
            k -= 1
            rows.append((None, k))
        else:
            i -= 1
            rows.append((i, None))
    return rows[::-1]


def _known_by_neighbours(
    rows: list[tuple[int | None, int | None]],
    a: Sequence[str],
    b: Sequence[str],
    kinds_a: Mapping[str, tuple[Hashable, Hashable]],
    kinds_b: Mapping[str, tuple[Hashable, Hashable]],
) -> list[tuple[int | None, int | None]]:
    kept: list[tuple[int | None, int | None]] = []
    sure = True
    for i, k in rows:
        bare = (i is None or _bare(a[i], kinds_a)) and (k is None or _bare(b[k], kinds_b))
        if not bare:
            sure = i is not None and k is not None
        if bare and not sure and i is not None and k is not None and a[i] != b[k]:
            kept += [(i, None), (None, k)]
        else:
            kept.append((i, k))
    return kept


def _bare(name: str, kinds: Mapping[str, tuple[Hashable, Hashable]]) -> bool:
    return name in kinds and not kinds[name][1]

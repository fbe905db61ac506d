"""Which layer of one net is which of another: by name, or, where names have shifted, by class and order."""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

CLASS, NAME, SHAPE = 1000, 4, 2
"""What makes two layers the same, by weight: their class first; then their name, then the shapes of their parameters. A name alone
counts last: it pairs a layer with the one that has taken its place."""


class Kind(NamedTuple):
    """What is known of a layer.

    Attributes:
        name: Its name in the net.
        cls: Its class, None where that is not known.
        shapes: Shapes of its own parameters; empty for one that has none, and where they are not known.
    """

    name: str
    cls: Hashable = None
    shapes: tuple[Hashable, ...] = ()


Rows: TypeAlias = list[tuple[int | None, int | None]]
"""Two lists beside each other: an index into the first, an index into the second, None where one has no such layer."""


def aligned(
    a: Sequence[str],
    b: Sequence[str],
    kinds_a: Mapping[str, Kind] | None = None,
    kinds_b: Mapping[str, Kind] | None = None,
) -> Rows:
    """Line two lists of layers up, both in their order (the heaviest common subsequence; Needleman and Wunsch 1970 without a gap's cost).

    In a `Sequential`, one layer that is put in shifts the names of all that follow; then classes and shapes tell which was which. A layer
    without parameters that has another name is the same only where the one with parameters before it is, in one of the nets at least: nets of
    two kinds both have their ReLUs.

    Args:
        a: Layers in their order, as they are called.
        b: Others.
        kinds_a: What is known of each of `a`; of one that is not in it, what it is called.
        kinds_b: Of each of `b`.

    Returns:
        Rows with all of both in their order.
    """
    kinds = [[(known or {}).get(name, Kind(name)) for name in names] for names, known in ((a, kinds_a), (b, kinds_b))]
    weights = _weights(kinds[0], kinds[1])
    table = np.zeros((len(a) + 1, len(b) + 1), dtype=np.int64)
    for i in range(len(a)):
        both = table[i, :-1] + weights[i]
        table[i + 1, 1:] = np.maximum.accumulate(np.maximum(table[i, 1:], both))
    return _known_by_neighbours(_path(table, weights), kinds[0], kinds[1])


def _weights(a: Sequence[Kind], b: Sequence[Kind]) -> np.ndarray:
    """How much each of `a` is each of `b`, shape (a, b): 0 where it is another layer."""

    def same(mine: Sequence[Hashable], others: Sequence[Hashable]) -> np.ndarray:
        numbers = {value: i for i, value in enumerate(dict.fromkeys([*mine, *others]))}
        one, other = (np.array([numbers[value] for value in those], dtype=np.int64) for those in (mine, others))
        equal: np.ndarray = one[:, None] == other[None, :]
        return equal

    name = same([x.name for x in a], [y.name for y in b])
    cls = same([x.cls for x in a], [y.cls for y in b])
    shapes = same([x.shapes for x in a], [y.shapes for y in b])
    unknown = np.outer([x.cls is None for x in a], [y.cls is None for y in b]).reshape(len(a), len(b)).astype(bool)
    found: np.ndarray = np.where(cls, CLASS + NAME * name + SHAPE * shapes, 1 * name)
    return np.where(unknown, (CLASS + NAME) * name, found)


def _path(table: np.ndarray, weights: np.ndarray) -> Rows:
    rows: Rows = []
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


def _known_by_neighbours(rows: Rows, a: Sequence[Kind], b: Sequence[Kind]) -> Rows:
    """The rows without pairs of bare layers of two names that follow, in either net, a layer which has no partner."""
    kept: Rows = []
    known = [True, True]
    for i, k in rows:
        paired = i is not None and k is not None
        if i is not None and a[i].shapes:
            known[0] = paired
        if k is not None and b[k].shapes:
            known[1] = paired
        strangers = i is not None and k is not None and not (a[i].shapes or b[k].shapes) and a[i].name != b[k].name
        kept += [(i, None), (None, k)] if strangers and not any(known) else [(i, k)]
    return _one_after_the_other(kept)


def _one_after_the_other(rows: Rows) -> Rows:
    """Between two pairs, first what only the first list has and then what only the second has."""
    found: Rows = []
    mine: Rows = []
    others: Rows = []
    for row in [*rows, None]:
        if row is not None and row[1] is None:
            mine.append(row)
        elif row is not None and row[0] is None:
            others.append(row)
        else:
            found += [*mine, *others, *([] if row is None else [row])]
            mine, others = [], []
    return found

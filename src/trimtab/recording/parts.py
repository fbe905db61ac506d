"""What one rank, or several of them together, saw of a step, and how the parts of two become one.

Each site of a part is one of three. Of a *spread* site every rank saw something else (its share of the batch, its shard of a
parameter): the rows merge by Chan. Where groups of ranks each have all of its shards, the first group's stand for all. Of a
*shared* one every rank holds the same (a parameter of a replicated model): the first rank's row stands for all, and where
another rank's differs, that is kept. Under tensor parallelism nobody knows of an output which of the two it is: it may be
*copied*, and among ranks that see the same data equal rows count once.
"""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.stats import FIELDS, merge

LISTED = 8
"""Ranks that are named of those which had something at a site."""

SPREAD, SHARED, COPIED = 0, -1, -2
"""Modes of a site; a number above 0 is `SPREAD` over a group of ranks, of which it is the first."""

NOBODY: tuple[list[int], int] = ([], 0)
"""Ranks that are named, and how many there are, where there are none."""


@dataclass(slots=True)
class Part:
    """What some ranks saw of one step, or of none: the losses since the last.

    Attributes:
        key: What it is part of; the same on all ranks.
        ranks: Whose part it is.
        losses: Step, loss (None if unseen), learning rate and bits of the optimizers.
        rows: Moment rows (sites, 7); count and nonfinite are 0 where nothing was seen.
        modes: Of each site, whether it is `SPREAD` (by group), `SHARED` or `COPIED`.
        bad: Ranks that had non-finite values at a site, by site: at most `LISTED` of them, and how many they were.
        apart: Ranks whose row of a shared site differs from the first rank's, likewise.
        off: How far they do: the largest difference of the means or of the standard deviations, over the root mean square.
        about: Of each rank: "batch" (samples), "place" (ranks at one place see the same data), "loss" of this step, "copies" (ranks that its gradients are averaged over), "halves"
            (whether ranks compute parts of one output), "running" (mean and variance of channels of its batch normalizations,
            where nobody makes the ranks' equal).
    """

    key: str
    ranks: list[int]
    losses: list[tuple[int, float | None, float | None, int]] = field(default_factory=list)
    rows: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, len(FIELDS))))
    modes: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    bad: dict[int, tuple[list[int], int]] = field(default_factory=dict)
    apart: dict[int, tuple[list[int], int]] = field(default_factory=dict)
    off: dict[int, float] = field(default_factory=dict)
    about: dict[int, dict[str, Any]] = field(default_factory=dict)

    def into(self, waiting: dict[str, Any], size: int) -> dict[str, Any]:
        """What the first rank has of a step, as the store takes it, with this part of all ranks in place of its own.

        Args:
            waiting: As `Store.commit` takes it.
            size: How many ranks there are.

        Returns:
            The same with merged readings and losses, and "ranks" among the facts of the step.
        """
        whole = waiting | {"losses": self.losses}
        if "step" in waiting:
            number, seconds, info, _ = waiting["step"]
            whole["step"] = (number, seconds, info | {"ranks": self._facts(size)}, self.rows)
        return whole

    def _facts(self, size: int) -> dict[str, Any]:
        return {
            "missing": sorted(set(range(size)) - set(self.ranks)),
            "batch": [self.about[rank]["batch"] for rank in self.ranks],
            "loss": [self.about[rank]["loss"] for rank in self.ranks],
            "copies": max(self.about[rank]["copies"] for rank in self.ranks),
            "halves": any(self.about[rank]["halves"] for rank in self.ranks),
            "running": _furthest([self.about[rank]["running"] for rank in self.ranks], self.ranks),
            "nonfinite": [[site, *entry] for site, entry in sorted(self.bad.items())],
            "apart": [[site, *entry, self.off[site]] for site, entry in sorted(self.apart.items())],
        }


def join(parts: Sequence[Part]) -> Part:
    """One part of all.

    Args:
        parts: At least one, of the same step; the first rank's comes first.

    Returns:
        Their part. Of parts of several ranks, `COPIED` sites have been settled.
    """
    if len(parts) == 1:
        return parts[0]
    places: dict[Any, list[Part]] = {}
    for part in parts:
        alone = len(part.ranks) == 1 and part.about
        places.setdefault(part.about[part.ranks[0]]["place"] if alone else (part.ranks[0],), []).append(part)
    joined = [reduce(_join, group) for group in places.values()]
    for part in joined:
        part.modes = np.where(part.modes == COPIED, SPREAD, part.modes)
    return reduce(_join, joined)


def _join(a: Part, b: Part) -> Part:
    size = max(len(a.rows), len(b.rows))
    x, y = _padded(a.rows, size), _padded(b.rows, size)
    modes_x, modes_y = _padded(a.modes, size), _padded(b.modes, size)
    seen_x, seen_y = _seen(x), _seen(y)
    both = seen_x & seen_y
    modes = np.where(seen_x, modes_x, modes_y)
    once = both & (modes < SPREAD)
    differ = _differing(x, y, once)
    once[differ[modes[differ] == COPIED]] = False
    rows = x.copy()
    new = np.flatnonzero(seen_y & ~seen_x)
    rows[new] = y[new]
    merged = np.flatnonzero(both & ~once)
    rows[merged] = merge(x[merged], y[merged])
    for site in merged[
        (modes[merged] >= SPREAD) & (modes_x[merged] != modes_y[merged])
    ]:  # two groups have all shards each
        modes[site] = min(modes_x[site], modes_y[site])
        rows[site] = x[site] if modes_x[site] < modes_y[site] else y[site]
    whole = Part(a.key, a.ranks + b.ranks, _losses(a, b), rows, modes, about=a.about | b.about)
    whole.bad = _counted(a.bad, b.bad)
    whole.apart = _counted(a.apart, b.apart)
    whole.off = {site: max(a.off.get(site, 0.0), b.off.get(site, 0.0)) for site in a.off.keys() | b.off.keys()}
    differ = differ[modes[differ] == SHARED]
    for site, off in zip(differ.tolist(), _distances(x[differ], y[differ]).tolist(), strict=True):
        (first, n), (named, m) = whole.apart.get(site, NOBODY), b.apart.get(site, NOBODY)
        rest = [rank for rank in b.ranks if rank not in named]  # those named have been counted
        whole.apart[site] = ((first + rest)[:LISTED], n + len(b.ranks) - m)
        whole.off[site] = max(whole.off.get(site, 0.0), off)
    return whole


def _padded(values: NDArray[Any], size: int) -> NDArray[Any]:
    if len(values) == size:
        return values
    out = np.zeros((size, *values.shape[1:]), values.dtype)
    out[: len(values)] = values
    return out


def _seen(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (rows[:, 0] + rows[:, 6]) > 0
    return found


def _differing(x: NDArray[np.float64], y: NDArray[np.float64], sites: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Equal tensors give equal rows to the last bit, whatever rank measures them: the same kernel reads them in the same order."""
    found = np.flatnonzero(sites & reduce(np.logical_or, (x != y).T))  # quicker than `any` over so short an axis
    equal: NDArray[np.bool_] = ((x[found] == y[found]) | (np.isnan(x[found]) & np.isnan(y[found]))).all(axis=1)
    return np.asarray(found[~equal], np.int64)


def _distances(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):
        spread_x, spread_y = (np.sqrt(np.maximum(rows[:, 2], 0.0) / np.maximum(rows[:, 0], 1.0)) for rows in (x, y))
        scale = np.fmax(np.fmax(np.hypot(x[:, 1], spread_x), np.hypot(y[:, 1], spread_y)), 1e-300)
        found: NDArray[np.float64] = np.fmax(np.abs(x[:, 1] - y[:, 1]), np.abs(spread_x - spread_y)) / scale
    return found


def _counted(
    a: dict[int, tuple[list[int], int]], b: dict[int, tuple[list[int], int]]
) -> dict[int, tuple[list[int], int]]:
    joined = {}
    for site in a.keys() | b.keys():
        (first, n), (second, m) = a.get(site, NOBODY), b.get(site, NOBODY)
        joined[site] = ((first + second)[:LISTED], n + m)
    return joined


def _losses(a: Part, b: Part) -> list[tuple[int, float | None, float | None, int]]:
    """The mean over the ranks that saw a loss, as data parallelism weighs them: each rank alike."""
    mine = {entry[0]: entry for entry in a.losses}
    for step, loss, rate, bits in b.losses:
        before = mine.get(step)
        if before is None:
            mine[step] = (step, loss, rate, bits)
        else:
            both = [(v, n) for v, n in ((before[1], len(a.ranks)), (loss, len(b.ranks))) if v is not None]
            mean = sum(v * n for v, n in both) / sum(n for _, n in both) if both else None
            mine[step] = (step, mean, before[2] if before[2] is not None else rate, before[3] | bits)
    return [mine[step] for step in sorted(mine)]


def _furthest(running: Sequence[dict[str, list[list[float]]]], ranks: Sequence[int]) -> list[list[Any]]:
    """Of each batch normalization, the rank whose running statistics lie furthest from the first rank's.

    Args:
        running: Mean and variance of some channels by layer, one entry a rank.
        ranks: Whose they are.

    Returns:
        Layer, rank, median over the channels of the distance of the means in standard deviations, and of the ratio of the variances.
    """
    found = []
    for layer, (mean, variance) in running[0].items():
        furthest: list[Any] = [layer, ranks[0], 0.0, 1.0]
        for rank, other in zip(ranks[1:], running[1:], strict=True):
            if layer in other and len(other[layer][0]) == len(mean):
                shift, ratio = _apart(np.array([mean, variance]), np.array(other[layer]))
                if max(shift, np.log(ratio)) > max(furthest[2], np.log(furthest[3])):
                    furthest = [layer, rank, shift, ratio]
        found.append(furthest)
    return found


def _apart(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[float, float]:
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = np.abs(a[0] - b[0]) / np.sqrt((a[1] + b[1]) / 2)
        ratio = np.exp(np.abs(np.log(a[1] / b[1])))
    return float(np.median(np.nan_to_num(shift))), float(np.median(np.nan_to_num(ratio, nan=1.0, posinf=1e300)))


def pack(part: Part, new_sites: Sequence[Sequence[Any]]) -> bytes:
    """A part as bytes.

    Args:
        part: The part.
        new_sites: Sites that the reader does not know yet: index, model, name, kind.

    Returns:
        A header in JSON, then rows, modes and indices of the sites that were seen, little-endian.
    """
    seen = np.flatnonzero(_seen(part.rows))
    header = {
        "key": part.key,
        "ranks": part.ranks,
        "losses": part.losses,
        "bad": [[site, *entry] for site, entry in part.bad.items()],
        "apart": [[site, *entry, part.off.get(site, 0.0)] for site, entry in part.apart.items()],
        "about": [[rank, entry] for rank, entry in part.about.items()],
        "sites": list(new_sites),
        "seen": len(seen),
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the blocks lie at multiples of their width, or reading them is slow
    blocks = (
        part.rows[seen].astype("<f8", copy=False),
        part.modes[seen].astype("<i4", copy=False),
        seen.astype("<i4"),
    )
    return b"".join((struct.pack("<q", len(text)), text, *(block.data for block in blocks)))


def unpack(data: bytes, number: Callable[[Sequence[Sequence[Any]]], Sequence[int] | NDArray[np.int64]]) -> Part:
    """What `pack` made.

    Args:
        data: The bytes.
        number: Gives, after it has learnt the new sites, the reader's index of each of the writer's.

    Returns:
        The part, in the reader's numbers.
    """
    (length,) = struct.unpack_from("<q", data)
    header = json.loads(data[8 : 8 + length])
    at, n = 8 + length, header["seen"]
    values = np.frombuffer(data, "<f8", n * len(FIELDS), at).reshape(n, len(FIELDS))
    marks, theirs = np.frombuffer(data, "<i4", 2 * n, at + values.nbytes).reshape(2, n)
    mine = np.asarray(number(header["sites"]), np.int64)
    where = mine[theirs] if n else np.zeros(0, np.int64)
    size = int(mine.max(initial=-1)) + 1
    if n == size and (where == np.arange(n)).all():  # as a rule both number alike, and have seen all: no copy
        rows, modes = values, marks
    else:
        rows, modes = np.zeros((size, len(FIELDS))), np.zeros(size, np.int32)
        rows[where], modes[where] = values, marks
    part = Part(header["key"], header["ranks"], [tuple(entry) for entry in header["losses"]], rows, modes)
    part.bad = {int(mine[site]): (ranks, count) for site, ranks, count in header["bad"]}
    part.apart = {int(mine[site]): (ranks, count) for site, ranks, count, _ in header["apart"]}
    part.off = {int(mine[site]): off for site, _, _, off in header["apart"]}
    part.about = dict(map(tuple, header["about"]))
    return part

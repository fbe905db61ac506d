"""How the ranks of a distributed run put together what each of them saw, without ever waiting for one another.

Each rank leaves its part of a recorded step in the key-value store at which the ranks met, and the first rank takes the parts when
it comes by, at the end of one of its own steps. There is no collective operation: a rank that is late, has died, or that nobody
watches holds up nobody, and the user's own collectives keep their order. Beyond `FAN` ranks the parts go up a tree.
"""

import contextlib
import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from trimtab import _distributed
from trimtab.recording.parts import Part, join, pack, unpack
from trimtab.recording.sites import SiteTable

FAN = 16
"""Ranks that report to one."""
WAITING = 32
"""Steps that wait for parts of other ranks before the oldest is taken as it is."""
GRACE = 10.0
"""Seconds that the first rank waits at the end for those that have reported before."""
AHEAD = 2
"""Steps from the one at which a halt is called to the last."""
PAUSE = 0.005
"""Seconds between two looks while it waits."""

T = TypeVar("T")
_made = 0


def parent(rank: int) -> int:
    """The rank that `rank` reports to; the first rank has none and gives itself."""
    span = FAN
    while rank and rank % span == 0:
        span *= FAN
    return rank - rank % span


def children(rank: int, size: int) -> list[int]:
    """The ranks of `size` that report to `rank`."""
    return [other for other in range(rank + 1, size) if parent(other) == rank]


class Ranks(Generic[T]):
    """One rank's end of it.

    Attributes:
        rank: Of this process.
        size: How many ranks there are.
        last: Key of the last part that came of each rank that reports here.
        error: Why nothing is exchanged any more, if so.
    """

    def __init__(self, store: Any, rank: int, size: int, sites: SiteTable, run: int = 0) -> None:
        """Say that this rank is there.

        Args:
            store: A `torch.distributed.Store`, or anything with its set, get, check and delete_key.
            rank: Of this process.
            size: How many ranks there are.
            sites: This rank's table of sites.
            run: Which watch of this process it is; ranks find one another by it.
        """
        self.rank, self.size = rank, size
        self.last: dict[int, str] = {}
        self.error = ""
        self._store, self._sites, self._run = store, sites, run
        self._children = children(rank, size)
        self._numbers = {child: np.zeros(0, np.int64) for child in self._children}
        self._told = 0
        self._sent: deque[str] = deque()
        self._waiting: deque[tuple[Part, dict[int, Part], T]] = deque()
        self._held: Any = None
        self._try_set("here", rank, b"")

    @classmethod
    def of_this_process(cls, sites: SiteTable) -> "Ranks[T] | None":
        """This rank's end, None in a process that is alone, or where the ranks' store is out of reach."""
        global _made
        if not _distributed.is_running():
            return None
        try:
            connection, store = _distributed.own_store()
        except Exception:  # a process group without a store of this kind
            return None
        _made += 1
        ranks = cls(connection, _distributed.rank(), _distributed.world_size(), sites, _made)
        ranks._held = store
        return ranks

    @property
    def first(self) -> bool:
        """Whether this is the rank at which everything comes together."""
        return self.rank == 0

    @property
    def pending(self) -> bool:
        """Whether parts of other ranks are waited for."""
        return bool(self._waiting)

    def silent(self) -> dict[int, str | None]:
        """The ranks reporting here that are behind: key of their last part, None where none ever came."""
        newest = max((part.key for part, _, _ in self._waiting), key=_order, default=None)
        return {} if newest is None else {c: self.last.get(c) for c in self._children if self.last.get(c) != newest}

    def put(self, part: Part, extra: T) -> None:
        """This rank's own part of a step.

        Args:
            part: The part.
            extra: What is handed back with the whole.
        """
        self._waiting.append((part, {}, extra))

    def take(self, patience: float = 0.0) -> Iterator[tuple[Part, T]]:
        """The steps that are whole by now, in their order; of other ranks' parts, those that have come.

        Args:
            patience: Seconds to wait for ranks that have reported before; those that never have are not waited for.

        Yields:
            Each with what came with it. On a rank that reports to another, the whole has been sent on.
        """
        end = time.monotonic() + patience
        while self._waiting:
            self._look()
            part, found, extra = self._waiting[0]
            missing = [child for child in self._children if child not in found and not self._gone(child, part.key)]
            if missing and len(self._waiting) <= WAITING and not self.error:
                if time.monotonic() >= end or not (patience and any(map(self._here, missing))):
                    if not patience:
                        return
                else:
                    time.sleep(PAUSE)
                    continue
            self._waiting.popleft()
            whole = join([part, *(found[child] for child in sorted(found))])
            if not self.first:
                self._send(whole)
            yield whole, extra

    def call_halt(self, step: int, why: str) -> tuple[int, str]:
        """Tell all ranks that `step` is to be the last, and why; returns both."""
        self._try_set("halt", 0, json.dumps([step, why]).encode())
        return step, why

    def halt(self) -> tuple[int, str] | None:
        """The last step and the reason, if the first rank has called a halt."""
        if self.first or not self._has("halt", 0):
            return None
        try:
            step, why = json.loads(self._store.get(self._key("halt", 0)))
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            return None
        return int(step), str(why)

    def leave(self) -> None:
        """This rank has no more parts."""
        self._try_set("gone", self.rank, b"")

    def _send(self, part: Part) -> None:
        new = self._sites.since(self._told)
        self._told += len(new)
        self._try_set(part.key, self.rank, pack(part, new))
        self._sent.append(part.key)
        if len(self._sent) > 2 * WAITING:  # nobody takes them: what lies in the store must not grow for ever
            self._try_drop(self._sent.popleft())

    def _look(self) -> None:
        """Take what has come for the steps that wait."""
        for child in self._children:
            for part, found, _ in self._waiting:
                if child not in found and not self.error:
                    data = self._try_take(part.key, child)
                    if data is None:
                        continue
                    found[child] = unpack(data, lambda new, child=child: self._number(child, new))  # type: ignore[misc]
                    self.last[child] = part.key

    def _number(self, child: int, new: Sequence[Sequence[Any]]) -> NDArray[np.int64]:
        """This rank's indices of a child's sites, of which some are new."""
        if new:
            learnt = [self._sites.index(model, name, kind) for _, model, name, kind in new]
            self._numbers[child] = np.append(self._numbers[child], learnt)
        return self._numbers[child]

    def _gone(self, child: int, key: str) -> bool:
        """Whether a child has no part of this step: it is further on, or has left. What it put before it left is there before the word."""
        if child in self.last and _order(self.last[child]) > _order(key):
            return True
        return self._has("gone", child) and not self._has(key, child)

    def _here(self, child: int) -> bool:
        return child in self.last or self._has("here", child)

    def _key(self, key: str, rank: int) -> str:
        return f"trimtab/{self._run}/{key}/{rank}"

    def _has(self, key: str, rank: int) -> bool:
        try:
            return not self.error and bool(self._store.check([self._key(key, rank)]))
        except Exception as error:  # whoever serves the store has gone
            self.error = f"{type(error).__name__}: {error}"
            return False

    def _try_set(self, key: str, rank: int, value: bytes) -> None:
        try:
            if not self.error:
                self._store.set(self._key(key, rank), value)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def _try_drop(self, key: str) -> None:
        with contextlib.suppress(Exception):
            self._store.delete_key(self._key(key, self.rank))

    def _try_take(self, key: str, rank: int) -> bytes | None:
        name = self._key(key, rank)
        try:
            if not self._store.check([name]):
                return None
            data = bytes(self._store.get(name))
            self._store.delete_key(name)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            return None
        return data


def _order(key: str) -> tuple[int, str]:
    step, _, what = key.partition("-")
    return int(step), what

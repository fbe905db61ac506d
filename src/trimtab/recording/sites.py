"""The table of sites: every place that has been measured gets a number once. The names of a module's calls."""

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from trimtab.recording.record import Kind

OF_PARAMETERS: frozenset[Kind] = frozenset({"parameter", "raw-gradient", "parameter-gradient", "update"})

MAX_CALLS = 256
"""Calls of one module that are told apart; a loop unrolled in time has no end."""


class SiteTable:
    """Numbers for sites, in the order in which they were first seen.

    Args:
        known: Sites that the store has already, in order.
    """

    def __init__(self, known: Iterable[tuple[int, str, str]] = ()) -> None:
        self._index: dict[tuple[int, str, str], int] = {site: i for i, site in enumerate(known)}
        self._new: list[tuple[int, int, str, str]] = []

    def __len__(self) -> int:
        return len(self._index)

    def index(self, model: int, name: str, kind: Kind) -> int:
        """The number of a site, a new one where it has none yet."""
        key = (model, name, kind)
        found = self._index.get(key)
        if found is None:
            found = self._index[key] = len(self._index)
            self._new.append((found, model, name, kind))
        return found

    def shared(self) -> NDArray[np.bool_]:
        """Of each site, whether the ranks of a distributed run hold the same there, unless they share it out: (sites,)."""
        return np.fromiter((kind in OF_PARAMETERS for _, _, kind in self._index), bool, len(self._index))

    def since(self, first: int) -> list[tuple[int, int, str, str]]:
        """All sites from number `first` on: number, model, name and kind."""
        return [(index, *site) for site, index in islice(self._index.items(), first, None)]

    def take_new(self) -> list[tuple[int, int, str, str]]:
        """The sites that the store does not know yet, as its rows; they count as known from now on."""
        new, self._new = self._new, []
        return new


class CallTable:
    """Numbers for the calls of a module, in the order in which they were first seen.

    Calls whose input comes from the same place are one: those of a loop, of other scopes, of other steps.
    """

    def __init__(self) -> None:
        self._calls: dict[str, dict[tuple[str, ...], int]] = {}

    def number(self, module: str, operations: Sequence[str], sources: Sequence[str]) -> int:
        """The number of a call.

        Args:
            module: The module's name.
            operations: What lies between its input and the sources.
            sources: The calls its input comes from.

        Returns:
            1 for the first, at most `MAX_CALLS`.
        """
        calls = self._calls.setdefault(module, {})
        origin = (*operations, "<-", *sources)
        if origin not in calls and len(calls) >= MAX_CALLS:
            return MAX_CALLS
        return calls.setdefault(origin, len(calls) + 1)


def call_name(module: str, call: int) -> str:
    """The name of one of a module's calls: the module's own for the first, "relu#2" for the next."""
    return module if call == 1 else f"{module}#{call}"


def split_call(name: str) -> tuple[str, int]:
    """Module and number of what `call_name` gave."""
    module, mark, call = name.rpartition("#")
    return (module, int(call)) if mark and call.isdecimal() else (name, 1)

"""What waits to be written: losses and logged numbers of every step, and the step that has just ended.

In a distributed run the first rank writes a step when the parts of the others have come (`recording/ranks.py`); each of the others
writes what it saw itself.
"""

import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from trimtab import _distributed
from trimtab.recording.parts import Part
from trimtab.recording.ranks import AHEAD, GRACE, Ranks
from trimtab.recording.sites import SiteTable
from trimtab.recording.store import Store
from trimtab.recording.window import Window
from trimtab.stats import Tape

WAITING = 50
"""Losses of steps that are not recorded in full, before they are written all the same."""

LATE = 1.0
"""Seconds after which they are written in any case, so that who follows a run of slow steps sees it move."""


class Journal:
    """Writes windows to a store, with what has gathered since the last one.

    Attributes:
        last: Losses and learning rate of the last step that was kept.
    """

    def __init__(self, store: Store, sites: SiteTable, tape: Tape) -> None:
        self._store = store
        self._sites = sites
        self._tape = tape
        self._began = self._written = time.perf_counter()
        self._losses: list[tuple[int, list[float | Tensor], float | Tensor | None, int]] = []
        self._logs: list[tuple[int, str, float | Tensor]] = []
        self._ranks: Ranks[dict[str, Any]] | None = None
        self.last: tuple[list[float | Tensor], float | Tensor | None] = ([], None)

    def restart_clock(self) -> None:
        """The run begins now."""
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the run began; those between two sessions do not count."""
        return self._store.past.seconds + time.perf_counter() - self._began

    def log(self, step: int, name: str, value: float | Tensor) -> None:
        """Keep a number of the user's; a tensor stays on its device until it is written."""
        self._logs.append((step, name, value.detach().clone() if isinstance(value, Tensor) else value))

    def step_ended(self, window: Window) -> None:
        """Keep loss and learning rate of a step; what lies on a device stays there until it is written."""
        self.last = window.losses, window.rate()
        self._losses.append((window.step, *self.last, window.optimizers))
        if not window.recording:
            self.catch_up()
            if len(self._losses) >= WAITING or self._is_late():
                self.flush()

    def _is_late(self) -> bool:
        """Whether losses have waited for long; ranks must all write at the same step, and do not go by the clock."""
        return time.perf_counter() - self._written > LATE and not _distributed.is_running()

    def write(self, window: Window, rates: list[list[float | Tensor]]) -> None:
        """Write a step that is recorded in full, and all that waits.

        Args:
            window: The step.
            rates: Learning rates by optimizer and group, of those that did not step.
        """
        info = {
            "passes": window.passes,
            "optimizers": window.optimizers,
            "uncleared": window.uncleared,
            "training": window.training,
            "dropped": len({scope for _, _, scope in window.forwards}) - len(window.live),
            "rates": [numbers(window.rates.get(i, now)) for i, now in enumerate(rates)],
            "loss_scale": 1.0 if window.loss_scale is None else float(window.loss_scale),
            "sampled": window.sampled(self._tape.samples()),
        }
        seen = [entry for entry in window.details.items() if entry[1]]
        if window.links:
            seen.append(("links", window.links))
        rows = window.rows(self._tape.rows(), len(self._sites))
        waiting = self._take() | {
            "step": (window.step, self.seconds, info, rows),
            "units": [
                (window.step, site, call, row.cpu().numpy())
                for scope, site, call, row in window.units
                if scope in window.live
            ],
            "channels": [
                (window.step, site, b.cpu().numpy()) for scope, site, b in window.channels if scope in window.live
            ],
            "details": [(window.step, key, value) for key, value in seen],
        }
        self._hand_over(waiting, window)
        self._tape.clear()

    def flush(self) -> None:
        """Write what waits."""
        waiting = self._take()
        if any(waiting.values()):
            self._hand_over(waiting)

    def catch_up(self, patience: float = 0.0) -> None:
        """Write the steps of which all ranks' parts have come.

        Args:
            patience: Seconds to wait for the rest.
        """
        if self._ranks is not None and self._ranks.pending:
            for whole, waiting in self._ranks.take(patience):
                if self._ranks.first:
                    self._commit(whole.into(waiting, self._ranks.size))

    def finish(self) -> None:
        """Write what waits, for other ranks' parts too, as long as it takes or may take."""
        self.flush()
        if self._ranks is not None:
            self.catch_up(GRACE)
            self._ranks.leave()
            facts = {"size": self._ranks.size, "last": self._ranks.last, "error": self._ranks.error}
            self._store.facts({"ranks": facts})

    def call_halt(self, step: int, why: str) -> tuple[int, str]:
        """As `Recorder.call_halt`."""
        return (step, why) if self._ranks is None else self._ranks.call_halt(step + AHEAD, why)

    def halt(self) -> tuple[int, str] | None:
        """As `Recorder.halt`."""
        return None if self._ranks is None else self._ranks.halt()

    def _hand_over(self, waiting: dict[str, Any], window: Window | None = None) -> None:
        """Write what a step brought, or in a distributed run let it be put together first."""
        if self._ranks is None:
            self._ranks = Ranks.of_this_process(self._sites)
            if self._ranks is not None:
                self._store.facts({"ranks": {"size": self._ranks.size}})
        if self._ranks is None:
            self._commit(waiting)
            return
        if not self._ranks.first:
            self._commit(waiting)
        step = max((entry[0] for entry in waiting["losses"]), default=-1)
        part = Part(f"{step}-losses", [self._ranks.rank], waiting["losses"])
        if window is not None:
            part = window.part(waiting["step"][3], waiting["losses"], self._sites.shared(), self._ranks.rank)
        self._ranks.put(part, waiting)
        self.catch_up()

    def _commit(self, waiting: dict[str, Any]) -> None:
        self._store.commit(sites=self._sites.take_new(), **waiting)

    def _take(self) -> dict[str, Any]:
        """All that waits, as the store's rows: the loss of a step is the sum over its backward passes, None if unseen."""
        self._written = time.perf_counter()
        steps, self._losses = self._losses, []
        logs, self._logs = self._logs, []
        losses = iter(numbers([loss for _, losses, _, _ in steps for loss in losses]))
        rates = iter(numbers([rate for _, _, rate, _ in steps if rate is not None]))
        values = numbers([value for _, _, value in logs])
        return {
            "losses": [
                (
                    step,
                    sum(islice(losses, len(seen))) if seen else None,
                    None if rate is None else next(rates),
                    optimizers,
                )
                for step, seen, rate, optimizers in steps
            ],
            "logged": [(step, name, value) for (step, name, _), value in zip(logs, values, strict=True)],
        }


def numbers(values: Sequence[float | Tensor]) -> list[float]:
    """Numbers as floats; those in tensors come over together, one copy for each device and type.

    Args:
        values: Numbers, and tensors with one element.

    Returns:
        The floats in the same order.
    """
    found = [0.0 if isinstance(value, Tensor) else float(value) for value in values]
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
    for i, value in enumerate(values):
        if type(value) is Tensor and value.is_floating_point():
            groups.setdefault((value.device, value.dtype), []).append((i, value.reshape(())))
        elif isinstance(value, Tensor):  # a subclass reads itself
            found[i] = float(value)
    for group in groups.values():
        read = torch.stack([value for _, value in group]).cpu().double().tolist()
        for (i, _), number in zip(group, read, strict=True):
            found[i] = number
    return found

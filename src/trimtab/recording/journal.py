"""What waits to be written: losses and logged numbers of every step, and the step that has just ended."""

import time
from typing import Any

from torch import Tensor

from trimtab.recording.sites import SiteTable
from trimtab.recording.store import Store
from trimtab.recording.window import Window
from trimtab.stats import Tape

WAITING = 50
"""Losses of steps that are not recorded in full, before they are written all the same."""


class Journal:
    """Writes windows to a store, with what has gathered since the last one."""

    def __init__(self, store: Store, sites: SiteTable, tape: Tape) -> None:
        self._store = store
        self._sites = sites
        self._tape = tape
        self._began = time.perf_counter()
        self._losses: list[tuple[int, float | None, float | None, int]] = []
        self._logs: list[tuple[int, str, float | Tensor]] = []

    def restart_clock(self) -> None:
        """The run begins now."""
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._began

    def log(self, step: int, name: str, value: float | Tensor) -> None:
        """Keep a number of the user's; a tensor stays on its device until it is written."""
        self._logs.append((step, name, value.detach().clone() if isinstance(value, Tensor) else value))

    def step_ended(self, window: Window, rate: float | None) -> None:
        """Keep loss and learning rate of a step."""
        self._losses.append((window.step, window.loss(), rate, window.optimizers))
        if not window.recording and len(self._losses) >= WAITING:
            self.flush()

    def write(self, window: Window, rates: list[list[float]]) -> None:
        """Write a step that is recorded in full, and all that waits.

        Args:
            window: The step.
            rates: Learning rates by optimizer and group.
        """
        info = {
            "passes": window.passes,
            "optimizers": window.optimizers,
            "uncleared": window.uncleared,
            "training": window.training,
            "dropped": len({scope for _, _, scope in window.forwards}) - len(window.live),
            "rates": rates,
        }
        seen = [entry for entry in window.details.items() if entry[1]]
        if window.links:
            seen.append(("links", window.links))
        rows = window.rows(self._tape.rows(), len(self._sites))
        self._store.commit(
            sites=self._sites.take_new(),
            step=(window.step, self.seconds, info, rows),
            units=[(window.step, site, row.cpu().numpy()) for scope, site, row in window.units if scope in window.live],
            channels=[
                (window.step, site, b.cpu().numpy()) for scope, site, b in window.channels if scope in window.live
            ],
            details=[(window.step, key, value) for key, value in seen],
            **self._take(),
        )
        self._tape.clear()

    def flush(self) -> None:
        """Write what waits."""
        waiting = self._take()
        if any(waiting.values()):
            self._store.commit(**waiting)

    def _take(self) -> dict[str, Any]:
        losses, self._losses = self._losses, []
        logs, self._logs = self._logs, []
        return {"losses": losses, "logged": [(step, name, float(value)) for step, name, value in logs]}

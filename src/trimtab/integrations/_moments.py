"""The recorded steps of a run, each once: from a record, or from the store of a watch that is running."""

import json
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.recording import Record, Site, Store
from trimtab.recording.store import from_disk
from trimtab.runner import Watch


@dataclass(frozen=True, slots=True)
class Moment:
    """One recorded step.

    Attributes:
        step: Its number.
        loss: Its loss, None where none was seen.
        rates: Learning rates by optimizer and group.
        readings: Shape (sites, 7), columns as in a record.
        silent: Share of silent units by site, of the sites whose units were looked at.
    """

    step: int
    loss: float | None
    rates: list[list[float]]
    readings: np.ndarray
    silent: dict[int, float]


class Source:
    """Reads a run's recorded steps as they come.

    Attributes:
        sites: What is measured, as far as it has been read.
        models: Facts of each model.
        optimizers: Facts of each optimizer.
    """

    def __init__(self) -> None:
        self.sites: tuple[Site, ...] = ()
        self.models: list[dict[str, Any]] = []
        self.optimizers: list[dict[str, Any]] = []
        self._last = -1
        self._watch: weakref.ref[Watch] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_watch": None}

    def new(self, run: Watch | Record | str | Path) -> Iterator[Moment]:
        """The recorded steps that have come since the last call.

        Args:
            run: A watch, a record, or the path of a record's file. Another watch than before begins anew.

        Yields:
            Steps in their order.

        Raises:
            TypeError: `run` is something else.
        """
        if isinstance(run, (str, Path)):
            run = Record.open(run)
        if isinstance(run, Watch) and (self._watch is None or self._watch() is not run):
            self._last, self.sites, self._watch = -1, (), weakref.ref(run)
        if isinstance(run, Watch) and not run._ended:
            found = self._of_store(
                run._store
            )  # a record is a snapshot: reading all of it at every step would take ever longer
        elif isinstance(run, (Watch, Record)):
            found = self._of_record(run.record if isinstance(run, Watch) else run)
        else:
            raise TypeError(
                f"run must be a watch (what trimtab.watch gives), a record or the path of one, not {type(run).__name__}"
            )
        for moment in found:
            self._last = moment.step
            yield moment

    def _of_store(self, store: Store) -> Iterator[Moment]:
        ask = store.connection.execute
        after = (self._last,)
        if ask("SELECT 1 FROM steps WHERE step > ? LIMIT 1", after).fetchone() is None:
            return
        if ask("SELECT count(*) FROM sites").fetchone()[0] != len(self.sites):
            self.sites = tuple(Site(*row) for row in ask("SELECT id, model, name, kind FROM sites ORDER BY id"))
            facts = dict(ask("SELECT key, value FROM facts WHERE key IN ('models', 'optimizers')").fetchall())
            self.models = json.loads(facts.get("models", "[]"))
            self.optimizers = json.loads(facts.get("optimizers", "[]"))
        table = (
            "SELECT step, info, readings, loss FROM steps LEFT JOIN losses USING (step) WHERE step > ? ORDER BY step"
        )
        for step, info, readings, loss in ask(table, after).fetchall():
            units = ask("SELECT site, summary FROM units WHERE step = ? ORDER BY call DESC", (step,)).fetchall()
            rows = {site: np.frombuffer(summary, dtype="<f4") for site, summary in units}  # the first call's stays
            yield Moment(
                step,
                None if loss is None else float(loss),
                json.loads(info).get("rates", []),
                from_disk(readings),
                {site: float(row[1] / row[0]) for site, row in rows.items() if row[0] > 0},
            )

    def _of_record(self, record: Record) -> Iterator[Moment]:
        self.sites, self.models, self.optimizers = record.sites, record.models, record.optimizers
        losses = dict(zip(record.loss_steps.tolist(), zip(record.losses, record.loss_seen, strict=True), strict=True))
        silent: dict[int, dict[int, float]] = {}
        for site, looks in record.units.items():
            for look in looks:
                if look.call == 1 and look.units:
                    silent.setdefault(look.step, {})[site] = look.silent / look.units
        for i, step in enumerate(record.steps.tolist()):
            if step > self._last:
                loss, seen = losses.get(step, (0.0, False))
                yield Moment(
                    step,
                    float(loss) if seen else None,
                    record.info[i].get("rates", []),
                    np.asarray(record.readings[i], dtype=np.float64),
                    silent.get(step, {}),
                )

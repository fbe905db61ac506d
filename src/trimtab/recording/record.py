"""The record as its reader sees it: sites, steps, readings, losses and facts. Needs neither the model nor torch."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from trimtab.errors import RecordError
from trimtab.recording.sessions import writer_runs
from trimtab.recording.store import APPLICATION_ID, FORMAT, Store, from_disk
from trimtab.recording.unseen import Unseen, unseen

Kind: TypeAlias = Literal[
    "input",
    "target",
    "output",
    "gradient",
    "parameter",
    "raw-gradient",
    "parameter-gradient",
    "update",
    "batch-statistics",
    "running-statistics",
]
"""What is measured at a site.

- "input", "target": what the training step was fed with;
- "output": a module's output; "gradient": the gradient of the loss at that output;
- "parameter"; "raw-gradient": its gradient at the end of the backward pass; "parameter-gradient": the gradient the optimizer
  used; "update": what the optimizer's step added to the parameter;
- "batch-statistics": what a batch normalization was given by its first call of a step; "running-statistics": its buffers when that
  step began. Per channel only (`Record.channels`), at the steps that are looked at in detail.
"""

COLUMNS = ("count", "mean", "std", "abs_mean", "abs_max", "zeros", "nonfinite")
BLOCK = 512
"""Rows that are read at once."""

SQLITE_HEADER = b"SQLite format 3\x00"


@dataclass(frozen=True, slots=True)
class Site:
    """A place that is measured."""

    index: int
    model: int
    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Units:
    """What the units (channels) of one site did on one batch, at one call of its module.

    Attributes:
        step: Training step.
        units: Number of units.
        silent: Units that were exactly zero on every sample.
        constant: Units that gave the same value on every sample.
        signal: Share of the second moment that varies from sample to sample.
        edge: Share of values within 1.25 % of the ends of the activation's range.
        stuck: Units of which at least 95 % of the values lie there.
        call: Which of the module's calls it was, told apart by where their input comes from: 1 for the first.
    """

    step: int
    units: int
    silent: int
    constant: int
    signal: float
    edge: float
    stuck: int
    call: int = 1


@dataclass(frozen=True, slots=True)
class Series:
    """The readings of one site over the recorded steps at which it was seen.

    Attributes:
        steps: Training steps, shape (n,).
        stored: Readings as they are stored, shape (n, 7) in float32.
    """

    steps: np.ndarray
    stored: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """Readings, shape (n, 7) in float64, columns as in `COLUMNS`."""
        return self.stored.astype(np.float64)

    def __len__(self) -> int:
        return len(self.steps)

    def _column(self, column: int) -> np.ndarray:
        return self.stored[:, column].astype(np.float64)

    @property
    def count(self) -> np.ndarray:
        """Finite values."""
        return self._column(0)

    @property
    def mean(self) -> np.ndarray:
        """Mean of the finite values."""
        return self._column(1)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of the finite values."""
        return self._column(2)

    @property
    def second_moment(self) -> np.ndarray:
        """Mean square of the finite values."""
        moment: np.ndarray = self.mean**2 + self.std**2
        return moment

    @property
    def rms(self) -> np.ndarray:
        """Root of the mean square."""
        root: np.ndarray = np.sqrt(self.second_moment)
        return root

    @property
    def norm(self) -> np.ndarray:
        """Euclidean norm."""
        norm: np.ndarray = np.sqrt(self.second_moment * self.count)
        return norm

    @property
    def abs_max(self) -> np.ndarray:
        """Largest magnitude."""
        return self._column(4)

    @property
    def nonfinite(self) -> np.ndarray:
        """Number of NaN and infinite values."""
        return self._column(6)


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The file of a record, to be read at one moment of it, whatever a run writes meanwhile.

    Args:
        path: The file.

    Yields:
        A connection in a transaction, which ends with the block.

    Raises:
        RecordError: There is no such file, or it is not a record of trimtab, or what is read in the block shows that it is damaged.
    """
    if not path.is_file():
        raise RecordError(f"no record at {path}: give the .db file that `trimtab run` named at its start")
    if not is_record(path):
        raise RecordError(f"{path} is not a record of trimtab: it does not begin as a SQLite file does")
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        try:
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if application != APPLICATION_ID:
                raise RecordError(f"{path} is a SQLite file of another program, not a record of trimtab")
            if version > FORMAT:
                raise RecordError(
                    f"{path} was written by a newer trimtab (format {version}): upgrade trimtab to read it"
                )
            connection.execute("BEGIN")
            yield connection
        finally:
            connection.close()
    except (sqlite3.Error, json.JSONDecodeError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise RecordError(f"the record {path} is damaged: {error}") from error


class Record:
    """What a run left behind, or is leaving: a snapshot of its store at the moment of opening.

    Attributes:
        path: Its file, None for one in memory.
        facts: What models, optimizers and the run are.
        sites: What is measured.
        steps: The recorded steps, shape (n,).
        seconds: When each of them ended, since the start.
        info: Facts of each: "passes" (backward passes), "optimizers" (bits of those that stepped), "uncleared" (those of them
            that used gradients which nobody had cleared), "training" (mode of the root), "dropped" (forward calls that no
            pass reached), "rates" (learning rates by optimizer and group, as the step used them), "sampled" (indices of the
            sites where a large tensor was read in part: its absolute mean and zeros come from blocks of it; all numbers of an
            update do, with counts scaled up to the whole).
        readings: Shape (n, sites, 7) in float32, columns as in `COLUMNS`; count and nonfinite are 0 where a site was not seen.
        loss_steps: All steps, recorded or not, but those that a budget has thinned (the fact "thinned"); `losses`, `loss_seen`, `rates` (of the first group) and `stepped` (bits) belong
            to them.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | None = None) -> None:
        self.path = path
        self._connection = connection
        self.facts: dict[str, Any] = {
            key: json.loads(value) for key, value in self._all("SELECT key, value FROM facts")
        }
        self.sites = tuple(Site(*row) for row in self._all("SELECT id, model, name, kind FROM sites ORDER BY id"))
        self._index = {(site.model, site.name, site.kind): site for site in self.sites}
        self._read_steps()
        self._read_losses()

    def _read_steps(self) -> None:
        """Readings are kept as they are stored, in float32 and site after site, so that a record of 10⁵ steps fits where its file does."""
        count = self._all("SELECT count(*) FROM steps")[0][0]
        by_site = np.zeros((len(self.sites), count, 7), dtype=np.float32)
        self.steps = np.zeros(count, dtype=np.int64)
        self.seconds = np.zeros(count)
        self.info: list[dict[str, Any]] = []
        rows = self._connection.execute("SELECT step, seconds, info, readings FROM steps ORDER BY step")
        block = np.zeros((BLOCK, len(self.sites), 7), dtype=np.float32)
        for first in range(0, count, BLOCK):
            block[:] = 0
            few = rows.fetchmany(BLOCK)
            for i, (step, seconds, info, readings) in enumerate(few):
                self.steps[first + i], self.seconds[first + i] = step, seconds
                self.info.append(json.loads(info))
                found = np.frombuffer(readings, dtype="<f4").reshape(-1, 7)[: len(self.sites)]
                block[i, : len(found)] = found
            by_site[:, first : first + len(few)] = block[: len(few)].transpose(1, 0, 2)
        self.readings = by_site.transpose(1, 0, 2)

    def _read_losses(self) -> None:
        count = self._all("SELECT count(*) FROM losses")[0][0]
        self.loss_steps, self.stepped = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.losses, self.rates = np.full(count, np.nan), np.full(count, np.nan)
        self.loss_seen = np.zeros(count, dtype=bool)
        rows = self._connection.execute("SELECT step, loss, rate, optimizers FROM losses ORDER BY step")
        for first in range(0, count, BLOCK):
            steps, losses, rates, stepped = zip(*rows.fetchmany(BLOCK), strict=True)
            piece = slice(first, first + len(steps))
            self.loss_steps[piece], self.stepped[piece] = steps, stepped
            self.loss_seen[piece] = [loss is not None for loss in losses]
            self.losses[piece] = [np.nan if loss is None else _number(loss) for loss in losses]
            self.rates[piece] = [np.nan if rate is None else rate for rate in rates]

    def _all(self, query: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query).fetchall()

    @classmethod
    def open(cls, path: str | Path) -> "Record":
        """Read a record from its file, which a run may still be writing.

        Args:
            path: The file.

        Returns:
            The record as it stands.

        Raises:
            RecordError: There is no such file, or it is not a record of trimtab, or it is damaged.
        """
        path = Path(path)
        with reading(path) as connection:
            record = cls(connection, path)
            record._load()
            return record

    @classmethod
    def of(cls, store: Store) -> "Record":
        """The record that a store of this process holds so far.

        Args:
            store: Open, or closed after having been written to a file.

        Returns:
            The record as it stands.
        """
        if store.file is not None:
            record = cls.open(store.file)
            record.path = store.path
            return record
        record = cls(store.connection)
        record._load()
        return record

    def _load(self) -> None:
        """Read everything that is otherwise read when asked for, so that the file can be closed."""
        _ = self.units, self.channels, self.details, self.logged

    @cached_property
    def units(self) -> dict[int, list[Units]]:
        """Unit summaries by site index, in the order of steps, and of calls within a step."""
        found: dict[int, list[Units]] = {}
        for step, site, call, blob in self._all("SELECT step, site, call, summary FROM units ORDER BY step, call"):
            units, silent, constant, signal, edge, stuck = np.frombuffer(blob, dtype="<f4").tolist()
            found.setdefault(site, []).append(
                Units(step, int(units), int(silent), int(constant), signal, edge, int(stuck), call)
            )
        return found

    @cached_property
    def channels(self) -> dict[int, list[tuple[int, np.ndarray]]]:
        """Readings per channel, (channels, 7), by site index, with their steps."""
        found: dict[int, list[tuple[int, np.ndarray]]] = {}
        for step, site, blob in self._all("SELECT step, site, readings FROM channels ORDER BY step"):
            found.setdefault(site, []).append((step, from_disk(blob)))
        return found

    @cached_property
    def details(self) -> dict[str, list[tuple[int, Any]]]:
        """What was looked at in detail, by key, with its steps."""
        found: dict[str, list[tuple[int, Any]]] = {}
        for step, key, value in self._all("SELECT step, key, value FROM details ORDER BY step"):
            found.setdefault(key, []).append((step, json.loads(value)))
        return found

    @cached_property
    def logged(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """What the user logged, by name: steps and values."""
        found: dict[str, list[tuple[int, float]]] = {}
        for step, name, value in self._all("SELECT step, name, value FROM logged ORDER BY step"):
            found.setdefault(name, []).append((step, np.nan if value is None else _number(value)))
        return {name: (np.array([s for s, _ in rows]), np.array([v for _, v in rows])) for name, rows in found.items()}

    @property
    def models(self) -> list[dict[str, Any]]:
        """Facts of each model."""
        models: list[dict[str, Any]] = self.facts.get("models", [])
        return models

    @property
    def optimizers(self) -> list[dict[str, Any]]:
        """Facts of each optimizer."""
        optimizers: list[dict[str, Any]] = self.facts.get("optimizers", [])
        return optimizers

    @cached_property
    def unseen(self) -> list[Unseen]:
        """What of the models could not be seen at any recorded step, and why."""
        return unseen(self)

    @property
    def finished(self) -> bool:
        """Whether the run has ended (or the watch was closed)."""
        return "ended" in self.facts

    @property
    def abandoned(self) -> bool:
        """Whether the process that wrote it has ended without closing it: it was killed."""
        return not self.finished and writer_runs(self.facts) is False

    @property
    def step_count(self) -> int:
        """Training steps seen, those among them whose losses were thinned."""
        return int(self.loss_steps[-1]) + 1 if len(self.loss_steps) else 0

    def site(self, model: int, name: str, kind: Kind) -> Site | None:
        """The site of this name and kind, None when there is none."""
        return self._index.get((model, name, kind))

    def of_kind(self, kind: Kind) -> Iterator[Site]:
        """All sites of a kind."""
        return (site for site in self.sites if site.kind == kind)

    def series(self, site: Site) -> Series:
        """The readings of a site at the steps at which it was seen."""
        rows = self.readings[:, site.index]
        seen = (rows[:, 0] > 0) | (rows[:, 6] > 0)
        return Series(self.steps, rows) if seen.all() else Series(self.steps[seen], rows[seen])

    def squares(self, site: int) -> np.ndarray:
        """The sum of squares of a site's finite values at each recorded step, 0 where it was not seen.

        Args:
            site: Its index.

        Returns:
            Shape (n,).
        """
        count, mean, std = self.readings[:, site, :3].astype(np.float64).T
        return np.where(count > 0, count * (mean**2 + std**2), 0.0)

    def label(self, model: int, name: str) -> str:
        """The name of a module or parameter for people: with its model's name where there are several models."""
        if sum(facts.get("active", True) for facts in self.models) < 2:
            return name
        own: str = self.models[model].get("label") or f"model{model}"
        return f"{own}.{name}" if name else own


def _number(value: Any) -> float:
    return float(value)  # SQLite has no NaN: it is stored as the word


def is_record(path: str | Path) -> bool:
    """Whether the file begins as a SQLite file does."""
    try:
        with open(path, "rb") as file:
            return file.read(len(SQLITE_HEADER)) == SQLITE_HEADER
    except OSError:
        return False

"""The record on disk, or in memory: one SQLite file, one row per recorded step.

SQLite because a killed run loses at most the step in flight, and because a viewer can read while training writes. Journal mode
is WAL where the file system can do it, a rollback journal elsewhere. With a budget, the store thins itself (`recording/thinning.py`).
"""

import contextlib
import json
import math
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trimtab import _distributed
from trimtab.errors import RecordError
from trimtab.recording import sessions
from trimtab.recording.thinning import LEAST, Thinning

APPLICATION_ID = 0x7472696D  # "trim"
FORMAT = 1
MEMORY = ":memory:"
MEGABYTE = 1_000_000
BUDGET = 200.0
"""Megabytes that a record may take where nobody says otherwise."""

PAGE = 8192
"""Bytes of a page: a row of readings has some kilobytes, and what it leaves of a page is lost."""

PATIENCE = 2.0
"""Seconds that a write waits for another program that has the file locked."""

WAITING = 100_000
"""Losses and logged numbers that wait in memory while a reader keeps the file from being written within its budget."""

MOST_OF_FILE = 0.9
"""Share of the budget that the file itself may take at most; the rest is for the log beside it."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS sites (id INTEGER PRIMARY KEY, model INTEGER NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY, seconds REAL NOT NULL, info TEXT NOT NULL, readings BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS losses (step INTEGER PRIMARY KEY, loss REAL, rate REAL, optimizers INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS units (step INTEGER NOT NULL, site INTEGER NOT NULL, call INTEGER NOT NULL, summary BLOB NOT NULL, PRIMARY KEY (step, site, call));
CREATE TABLE IF NOT EXISTS channels (step INTEGER NOT NULL, site INTEGER NOT NULL, readings BLOB NOT NULL, PRIMARY KEY (step, site));
CREATE TABLE IF NOT EXISTS details (step INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (step, key));
CREATE TABLE IF NOT EXISTS logged (step INTEGER NOT NULL, name TEXT NOT NULL, value REAL, PRIMARY KEY (step, name));
"""


def to_disk(rows: np.ndarray) -> bytes:
    """Moment rows (n, 7) as one float32 block; the sum of squared deviations is kept as a standard deviation, which fits."""
    block = rows.copy()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        block[:, 2] = np.sqrt(np.where(block[:, 0] > 0, block[:, 2] / block[:, 0], 0.0))
        return bytes(block.astype("<f4").tobytes())


def from_disk(block: bytes, width: int = 7) -> np.ndarray:
    """What `to_disk` wrote, in float64, with the standard deviation in the third column."""
    return np.frombuffer(block, dtype="<f4").reshape(-1, width).astype(np.float64)


def _sql(value: float | None) -> float | str | None:
    return "nan" if value is not None and value != value else value  # SQLite would make NULL of NaN


def bytes_of(budget: float | None) -> int | None:
    """A budget in bytes.

    Args:
        budget: Megabytes (10⁶ bytes); None or 0 for no bound.

    Returns:
        Bytes, None for no bound.

    Raises:
        ValueError: It is no number, or too small for any record.
    """
    if budget is None or (not isinstance(budget, bool) and budget == 0):
        return None
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget * MEGABYTE >= LEAST:
        raise ValueError(
            f"budget must be megabytes, at least {LEAST / MEGABYTE:g}, or None for no bound, but it is {budget!r}"
        )
    return None if budget == float("inf") else int(budget * MEGABYTE)


_open: "weakref.WeakSet[Store]" = weakref.WeakSet()


class Store:
    """One record open for writing. Every call may come from another thread than the last.

    Attributes:
        path: Its file, None for one in memory.
        telling: Called before the record is thinned: the steps that a diagnosis rests on, which stay.
        broke: First step with a loss that is not finite, None as long as there was none.
        past: What the sessions before this one have left; empty for a new record.
    """

    def __init__(
        self, path: str | Path | None = None, *, budget: float | None = None, resume: bool | int = False
    ) -> None:
        """Create the record, or open it to go on.

        Args:
            path: A file that does not exist yet; None keeps the record in memory.
            budget: Megabytes that the record may take; None or 0 for no bound.
            resume: The file exists, and a new session goes on where the last one ended (True) or at this step: what the
                record holds from there on is replaced. Nothing is written before `join`.

        Raises:
            RecordError: The file exists already or cannot be written; or it is to be resumed and is no record, is still being
                written, or ends before the step.
            ValueError: `budget` or `resume` makes no sense.
        """
        size = bytes_of(budget)
        self.path = None if path is None else Path(path)
        self.telling: Callable[[], Iterable[int]] | None = None
        self.broke: int | None = None
        self.past = sessions.Past()
        self._lock = threading.RLock()
        self._losses: list[tuple[int, float | None, float | None, int]] = []
        self._logged: list[tuple[int, str, float]] = []
        self._pid = os.getpid()  # a forked process has the connection too, but SQLite forbids its use there
        self._thinning = None if size is None else Thinning(size)
        resuming = resume is not False
        if resuming:
            if self.path is not None and any(other.writes(self.path) for other in _open):
                raise RecordError(
                    f"cannot resume {self.path}: another watch of this process writes it; close that one first"
                )
            self.past = sessions.past(self.path, resume, (APPLICATION_ID, FORMAT))
        elif (
            self.path is not None and self.path.exists() and not (self.path.is_file() and not self.path.stat().st_size)
        ):
            raise RecordError(
                f"store must name a new file, but {self.path} exists already: choose another name or remove it"
            )
        self._joined = not resuming
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self.connection = sqlite3.connect(
                self.path or MEMORY, isolation_level=None, check_same_thread=False, timeout=PATIENCE
            )
            self.connection.execute("PRAGMA synchronous = OFF")  # a killed process loses nothing; only a power cut may
            if not resuming:
                self.connection.execute(f"PRAGMA page_size = {PAGE}")
                self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self.connection.execute(f"PRAGMA user_version = {FORMAT}")
                self.connection.executescript(SCHEMA)
                self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise RecordError(
                f"cannot write the record to {self.path}: {error}; choose another place with store="
            ) from error
        _open.add(self)

    @classmethod
    def of_this_rank(
        cls, path: str | Path | None, *, budget: float | None = None, resume: bool | int = False
    ) -> "Store":
        """The record of this process: of the ranks of a distributed run the first writes the file, every other keeps its own in memory.

        Args:
            path: As for `Store`.
            budget: As for `Store`.
            resume: As for `Store`; the other ranks read from the file at which step the run goes on.

        Returns:
            The store.

        Raises:
            RecordError: As for `Store`; on other ranks only where the file that is to be resumed cannot be read.
            ValueError: As for `Store`.
        """
        if _distributed.rank() == 0:
            return cls(path, budget=budget, resume=resume)
        store = cls(budget=budget)
        if resume is not False:
            before = sessions.past(None if path is None else Path(path), resume, (APPLICATION_ID, FORMAT))
            store.past = sessions.Past(before.step)
        return store

    def writes(self, path: Path) -> bool:
        """Whether this store has that file open."""
        return self.path is not None and self.path.exists() and path.exists() and self.path.samefile(path)

    def _prepare(self) -> None:
        """Get the file ready to be written."""
        self.connection.execute("PRAGMA journal_mode = WAL")  # last: what the file is stands in the file itself
        if self._thinning is not None:
            self._thinning.prepare(self.connection)
            page = self.connection.execute("PRAGMA page_size").fetchone()[0]
            self.connection.execute(f"PRAGMA max_page_count = {int(MOST_OF_FILE * self._thinning.budget) // page}")

    def join(self) -> None:
        """Begin a new session of a record that was there before: what it replaces goes.

        Raises:
            RecordError: The file cannot be written.
        """
        if self._joined or os.getpid() != self._pid:
            return
        with self._lock:
            try:
                sessions.cut(self.connection, self.path, self.past)
                self._joined = True
                thinned = self.past.facts.get("thinned")
                if self._thinning is not None:
                    if thinned:
                        self._thinning.go_on(thinned)
                    if self._thinning.is_full(self.connection):
                        self._thin()
                        self.connection.execute("VACUUM")  # a file that was larger than it may be now
                self._prepare()
            except sqlite3.Error as error:
                raise RecordError(f"cannot write the record to {self.path}: {error}") from error

    def facts(self, values: dict[str, Any]) -> None:
        """Set facts, each a value that JSON can hold."""
        if os.getpid() != self._pid or not self._joined:
            return
        rows = [(key, json.dumps(value)) for key, value in values.items()]
        with self._lock:
            self.connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)

    def commit(
        self,
        *,
        sites: Sequence[tuple[int, int, str, str]] = (),
        step: tuple[int, float, dict[str, Any], np.ndarray] | None = None,
        losses: Iterable[tuple[int, float | None, float | None, int]] = (),
        units: Iterable[tuple[int, int, int, np.ndarray]] = (),
        channels: Iterable[tuple[int, int, np.ndarray]] = (),
        details: Iterable[tuple[int, str, Any]] = (),
        logged: Iterable[tuple[int, str, float]] = (),
    ) -> None:
        """Write what a step brought, all of it or nothing.

        Args:
            sites: New sites: index, model, name, kind.
            step: Number, seconds since the start, facts of the step and the moment rows (sites, 7).
            losses: Step, loss, learning rate and the optimizers (bits) of every step since the last commit.
            units: Step, site, number of the module's call and unit summary.
            channels: Step, site and moment rows (channels, 7).
            details: Step, key and value of what was looked at in detail.
            logged: Step, name and value of what the user logged.
        """
        if os.getpid() != self._pid or not self._joined:
            return
        losses, units, channels = list(losses), list(units), list(channels)
        if self.broke is None:
            self.broke = next((s for s, v, _, _ in losses if v is not None and not math.isfinite(v)), None)
        with self._lock:
            blocks = [(s, i, to_disk(rows)) for s, i, rows in channels]
            readings = b"" if step is None else to_disk(step[3])
            details = [(s, key, json.dumps(v)) for s, key, v in details]
            if step is not None and not self._has_room(
                len(readings)
                + 64 * len(units)
                + sum(len(b) + 64 for _, _, b in blocks)
                + sum(len(v) for _, _, v in details)
            ):
                step, units, blocks, details = None, [], [], []
            if not sites and step is None and self._waits(losses, logged):
                return
            losses, logged = [*self._losses, *losses], [*self._logged, *logged]
            run = self.connection.executemany
            self.connection.execute("BEGIN")
            try:
                if sites:
                    run("INSERT INTO sites VALUES (?, ?, ?, ?)", sites)
                run("INSERT OR REPLACE INTO losses VALUES (?, ?, ?, ?)", [(s, _sql(v), r, o) for s, v, r, o in losses])
                run(
                    "INSERT OR REPLACE INTO units VALUES (?, ?, ?, ?)",
                    [(s, i, call, row.astype("<f4").tobytes()) for s, i, call, row in units],
                )
                run("INSERT OR REPLACE INTO channels VALUES (?, ?, ?)", blocks)
                run("INSERT OR REPLACE INTO details VALUES (?, ?, ?)", details)
                run("INSERT OR REPLACE INTO logged VALUES (?, ?, ?)", [(s, name, _sql(v)) for s, name, v in logged])
                if step is not None:
                    number, seconds, info, _ = step
                    self.connection.execute(
                        "INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?)",
                        (number, seconds, json.dumps(info), readings),
                    )
                self.connection.execute("COMMIT")
                self._losses, self._logged = [], []
            except BaseException:
                if self.connection.in_transaction:  # SQLite itself may have ended it: a full disk
                    self.connection.execute("ROLLBACK")
                raise

    def _waits(self, losses: list[tuple[int, float | None, float | None, int]], logged: Iterable[Any]) -> bool:
        """Whether losses and logged numbers wait in memory: as long as the file has outgrown its budget, and there are not too many."""
        if not self._is_overgrown(0) or len(self._losses) + len(self._logged) > WAITING:
            return False
        self._losses += losses
        self._logged += logged
        return True

    def _has_room(self, more: int) -> bool:
        """Make room for so many bytes; False where there is none to be made."""
        thinning = self._thinning
        if thinning is None:
            return True
        if thinning.is_full(self.connection, more):
            self._thin(more)
        if not thinning.is_full(self.connection, more) and not self._is_overgrown(more):
            return True
        thinning.left_out += 1
        if thinning.left_out & (thinning.left_out - 1) == 0:
            self.facts({"thinned": thinning.facts()})
        return False

    def _thin(self, more: int = 0) -> None:
        if self._thinning is not None:
            telling = () if self.telling is None else self.telling()
            self._thinning.thin(self.connection, telling, more)
            self.facts({"thinned": self._thinning.facts()})

    def _is_overgrown(self, more: int) -> bool:
        """Whether the file and its log take more than the budget: a reader that does not let go keeps the log from being emptied."""
        if self.path is None or self._thinning is None or size_of(self.path) + more <= self._thinning.budget:
            return False
        self.connection.execute("PRAGMA busy_timeout = 0")
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.connection.execute(f"PRAGMA busy_timeout = {int(1000 * PATIENCE)}")
        return size_of(self.path) + more > self._thinning.budget

    def close(self) -> None:
        """Close the file; a record in memory stays readable as long as its connection is held."""
        _open.discard(self)
        if self.path is not None and os.getpid() == self._pid:
            with self._lock:
                with contextlib.suppress(sqlite3.Error):  # a reader has it open, or it is closed already
                    if self._losses or self._logged:
                        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                        self._thinning, losses, logged = None, self._losses, self._logged
                        self._losses, self._logged = [], []
                        self.commit(losses=losses, logged=logged)
                    if self.connection.in_transaction:  # a signal has come in the middle of it
                        self.connection.execute("ROLLBACK")
                    if self._joined:
                        # one file that can be moved, and read where nothing can be written
                        self.connection.execute("PRAGMA journal_mode = DELETE")
                self.connection.close()


def size_of(path: Path) -> int:
    """Bytes that a record takes on disk, with the log beside it."""
    total = 0
    for suffix in ("", "-wal", "-journal"):
        with contextlib.suppress(OSError):
            total += os.stat(f"{path}{suffix}").st_size
    return total

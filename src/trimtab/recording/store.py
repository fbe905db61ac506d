"""The record on disk, or in memory: one SQLite file, one row per recorded step.

SQLite because a killed run loses at most the step in flight, and because a viewer can read while training writes. Journal mode
is WAL where the file system can do it, a rollback journal elsewhere.
"""

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.errors import RecordError

APPLICATION_ID = 0x7472696D  # "trim"
FORMAT = 1
MEMORY = ":memory:"

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


class Store:
    """One record open for writing. Every call may come from another thread than the last."""

    def __init__(self, path: str | Path | None = None) -> None:
        """Create the record.

        Args:
            path: A file that does not exist yet; None keeps the record in memory.

        Raises:
            RecordError: The file exists already or cannot be written.
        """
        self.path = None if path is None else Path(path)
        self._lock = threading.Lock()
        self._pid = os.getpid()  # a forked process has the connection too, but SQLite forbids its use there
        if self.path is not None and self.path.exists() and not (self.path.is_file() and not self.path.stat().st_size):
            raise RecordError(
                f"store must name a new file, but {self.path} exists already: choose another name or remove it"
            )
        try:
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self.connection = sqlite3.connect(self.path or MEMORY, isolation_level=None, check_same_thread=False)
            self.connection.execute("PRAGMA synchronous = OFF")  # a killed process loses nothing; only a power cut may
            self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.connection.execute(f"PRAGMA user_version = {FORMAT}")
            self.connection.executescript(SCHEMA)
            self.connection.execute("PRAGMA journal_mode = WAL")  # last: what the file is stands in the file itself
        except (OSError, sqlite3.Error) as error:
            raise RecordError(
                f"cannot write the record to {self.path}: {error}; choose another place with store="
            ) from error

    def facts(self, values: dict[str, Any]) -> None:
        """Set facts, each a value that JSON can hold."""
        if os.getpid() != self._pid:
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
        if os.getpid() != self._pid:
            return
        with self._lock:
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
                run(
                    "INSERT OR REPLACE INTO channels VALUES (?, ?, ?)",
                    [(s, i, to_disk(rows)) for s, i, rows in channels],
                )
                run(
                    "INSERT OR REPLACE INTO details VALUES (?, ?, ?)",
                    [(s, key, json.dumps(v)) for s, key, v in details],
                )
                run("INSERT OR REPLACE INTO logged VALUES (?, ?, ?)", [(s, name, _sql(v)) for s, name, v in logged])
                if step is not None:
                    number, seconds, info, rows = step
                    self.connection.execute(
                        "INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?)",
                        (number, seconds, json.dumps(info), to_disk(rows)),
                    )
                self.connection.execute("COMMIT")
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file; a record in memory stays readable as long as its connection is held."""
        if self.path is not None and os.getpid() == self._pid:
            with self._lock:
                with contextlib.suppress(sqlite3.Error):  # a reader has it open, or it is closed already
                    # one file that can be moved, and read where nothing can be written
                    self.connection.execute("PRAGMA journal_mode = DELETE")
                self.connection.close()

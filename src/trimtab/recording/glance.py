"""A quick look at a record that is being written: how far its run is, without its readings."""

import json
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from trimtab.recording.record import reading
from trimtab.recording.sessions import writer_runs

Signature: TypeAlias = tuple[tuple[int, int, int], ...]

TICK = 0.05
"""Seconds within which a file system may give two writes the same time."""


@dataclass(frozen=True, slots=True)
class Glance:
    """How far a run is.

    Attributes:
        steps: Training steps in the record so far.
        loss: Loss of the last of them, None where none was seen.
        ended: Whether the run has ended.
        closed: Whether nothing more will be written: a setup that was trained is looked at further after its run has ended.
        abandoned: Whether its process has ended without closing it.
    """

    steps: int
    loss: float | None
    ended: bool
    closed: bool
    abandoned: bool


def glance(path: Path) -> Glance:
    """See how far a run is.

    Args:
        path: Its record.

    Returns:
        What is known without reading more than a few rows.

    Raises:
        RecordError: There is no record, or it is damaged.
    """
    with reading(path) as connection:
        facts = _facts(connection)
        last = connection.execute("SELECT step, loss FROM losses ORDER BY step DESC LIMIT 1").fetchone()
    ended = "ended" in facts
    gone = writer_runs({key: value for key, value in facts.items() if key != "ended"}) is False
    logged = Path(f"{path}-wal").exists()
    return Glance(
        steps=0 if last is None else int(last[0]) + 1,
        loss=None if last is None or last[1] is None else float(last[1]),
        ended=ended,
        closed=ended and (gone or not logged),
        abandoned=gone and not ended,
    )


def _facts(connection: sqlite3.Connection) -> dict[str, Any]:
    rows = connection.execute("SELECT key, value FROM facts WHERE key IN ('ended', 'pid', 'host', 'born')")
    return {key: json.loads(value) for key, value in rows}


def signature(path: Path) -> Signature | None:
    """What changes with every write to a record.

    Args:
        path: Its file.

    Returns:
        Number, size and time of change of the file and of the log beside it; None where there is no file.
    """
    found = []
    for part in (path, Path(f"{path}-wal")):
        try:
            facts = part.stat()
        except OSError:
            continue
        found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
    return tuple(found) if path.is_file() else None


def is_settled(found: Signature) -> bool:
    """Whether a further write would have given another signature: not so where the last one is only just over.

    Args:
        found: What `signature` has just given.

    Returns:
        True where it can be relied on.
    """
    return abs(time.time() - max(at for _, _, at in found) / 1e9) > TICK

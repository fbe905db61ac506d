"""A record that a later run goes on writing: what it may go on from, and where the two are joined."""

import json
import os
import platform
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimtab.errors import RecordError

BY_STEP = ("steps", "losses", "units", "channels", "details", "logged")


@dataclass
class Past:
    """What a record held before the session that goes on with it.

    Attributes:
        step: The step at which the session begins.
        sites: Model, name and kind of each site, in order.
        facts: Its facts.
        replaced: Steps from there on that it holds already, and which the session replaces.
        seconds: Seconds that the sessions before have taken.
        spent: Seconds of these that watching took.
    """

    step: int = 0
    sites: list[tuple[int, str, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    replaced: int = 0
    seconds: float = 0.0
    spent: float = 0.0

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """The sessions so far."""
        found: list[dict[str, Any]] = self.facts.get("sessions", [])
        return found


def past(path: Path | None, resume: bool | int, marks: tuple[int, int]) -> Past:
    """Look at a record that is to be gone on with, and change nothing.

    Args:
        path: Its file.
        resume: True to go on after its last step, or the step at which to go on.
        marks: Application id and format of a record.

    Returns:
        What it holds.

    Raises:
        RecordError: There is no such record, a run still writes it, or it ends before the step.
        ValueError: `resume` is no step.
    """
    if resume is not True and (not isinstance(resume, int) or resume < 0):
        raise ValueError(f"resume must be True or the step at which to go on, but it is {resume!r}")
    if path is None:
        raise RecordError("resume goes on with the record in a file: name it with store=")
    if not path.is_file():
        raise RecordError(f"cannot resume {path}: there is no such record")
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
        try:
            found = (
                connection.execute("PRAGMA application_id").fetchone()[0],
                connection.execute("PRAGMA user_version").fetchone()[0],
            )
            if found != marks:
                raise RecordError(f"cannot resume {path}: it is not a record of this version of trimtab")
            facts = {key: json.loads(value) for key, value in connection.execute("SELECT key, value FROM facts")}
            sites = connection.execute("SELECT model, name, kind FROM sites ORDER BY id").fetchall()
            last = connection.execute("SELECT max(step) FROM losses").fetchone()[0]
            seconds = connection.execute("SELECT max(seconds) FROM steps").fetchone()[0]
        finally:
            connection.close()
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise RecordError(f"cannot resume {path}: it is no record of trimtab, or damaged ({error})") from error
    if facts.get("pid") != os.getpid() and writer_runs(facts):
        raise RecordError(
            f"cannot resume {path}: the run that writes it (process {facts['pid']}) has not ended; wait for it or end it"
        )
    end = 0 if last is None else int(last) + 1
    step = end if resume is True else int(resume)
    if step > end:
        raise RecordError(f"cannot resume {path} at step {step}: it ends before, with {end} steps")
    return Past(
        step,
        sites,
        facts,
        end - step,
        float(facts.get("seconds") or seconds or 0.0),
        float(facts.get("spent") or 0.0),
    )


def writer_runs(facts: dict[str, Any]) -> bool | None:
    """Whether the process that wrote a record last, and never ended it, still runs.

    Args:
        facts: The record's facts.

    Returns:
        None where that cannot be told: a process of another machine, or none that is known.
    """
    pid = facts.get("pid")
    if "ended" in facts:
        return False
    if not isinstance(pid, int) or facts.get("host") != platform.node():
        return None
    if pid == os.getpid():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs, and is another user's
        pass
    return _born(pid) == facts.get("born")  # else another program has its number by now


def _born(pid: int) -> str | None:
    """When a process began, in ticks since the machine did; None where the system has no such file."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError, ValueError):
        return None


def cut(connection: sqlite3.Connection, path: Path | None, past: Past) -> None:
    """Drop what a new session replaces, and what the end of the last one said.

    Args:
        connection: The record, open for writing.
        path: Its file.
        past: What it holds.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        for table in BY_STEP if past.replaced else ():
            connection.execute(f"DELETE FROM {table} WHERE step >= ?", (past.step,))
        connection.execute("DELETE FROM facts WHERE key IN ('ended', 'how', 'fault')")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def opened(past: Past) -> dict[str, Any]:
    """Facts of a session that begins.

    Args:
        past: What there was before.

    Returns:
        "sessions" with this one as the last, and whose they are: "pid", "host" and "born".
    """
    session = {"began": time.time(), "first": past.step, "replaced": past.replaced}
    pid = os.getpid()
    return {"sessions": [*past.sessions, session], "pid": pid, "host": platform.node(), "born": _born(pid)}


def difference(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> str:
    """How the models of a record differ from those that are to go on with it.

    Args:
        before: Facts of the record's models.
        now: Facts of the models at hand.

    Returns:
        The first difference in words, "" where names and shapes of all parameters are the same.
    """
    for old, new in zip(before, now, strict=False):
        theirs, ours = ({n: p["shape"] for n, p in facts["parameters"].items()} for facts in (old, new))
        for name in [*theirs, *(n for n in ours if n not in theirs)]:
            if theirs.get(name) != ours.get(name):
                return f"{name} is {_shape(theirs, name)} there and {_shape(ours, name)} here"
    return ""


def _shape(shapes: dict[str, list[int]], name: str) -> str:
    return f"of shape {tuple(shapes[name])}" if name in shapes else "missing"

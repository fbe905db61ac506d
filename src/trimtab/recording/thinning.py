"""How a record keeps within its budget: where room runs out, what takes the most of it is thinned evenly over the run.

Of each stretch of so many steps one is kept, and the stretches double in length as often as it takes, so that what is left depends on the
length of the stretches alone and not on when thinning happened. Steps of optimizers that take turns are thinned apart. Rows that stay are
written anew, since SQLite does not join pages that are half empty.
"""

import math
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

FULL = 0.75
"""Share of the budget that the record may fill: the rest is for SQLite's log of what is being written."""

AFTER = 0.6
"""Share of the budget that is full after thinning."""

LEAST = 1_000_000
"""Bytes: with less there is no room for the first steps of any net."""

FIRST, LAST = 10, 20
"""Recorded steps that stay, at either end."""

FIRST_DETAILS, LAST_DETAILS = 8, 3
"""Steps looked at in detail that stay, at either end."""

ENDS = 1000
"""Losses and logged numbers that stay, at either end."""

BEFORE, BEHIND = 20, 5
"""Recorded steps that stay around one that a diagnosis rests on."""

DETAILED = "(SELECT step FROM units UNION SELECT step FROM channels UNION SELECT step FROM details)"


@dataclass(frozen=True)
class Kind:
    """One kind of row that can be thinned.

    Attributes:
        tables: Where the rows lie.
        source: SQL: what has one row for each step or number.
        room: SQL: bytes that they take, about.
        key: Column of the source that says which rows stay, and of the tables.
        turns: SQL: what of a stretch is thinned apart.
        always: SQL: which rows of the source stay whatever the stretch.
    """

    tables: tuple[str, ...]
    source: str
    room: str
    key: str = "step"
    turns: str = "(SELECT optimizers FROM losses WHERE losses.step = rows.step)"
    always: str = "0"


def _finite(column: str) -> str:
    """SQL: whether a number is missing (0), finite (1) or not (2; NaN is stored as a word)."""
    return (
        f"CASE WHEN {column} IS NULL THEN 0 WHEN typeof({column}) = 'text' OR abs({column}) >= 9e999 THEN 2 ELSE 1 END"
    )


KINDS = {
    "steps": Kind(("steps",), "steps", "SELECT total(length(readings) + length(info) + 24) FROM steps"),
    "details": Kind(
        ("units", "channels", "details"),
        DETAILED,
        "SELECT (SELECT 64 * count(*) FROM units) + (SELECT total(length(readings) + 40) FROM channels)"
        " + (SELECT total(length(value) + 2 * length(key) + 40) FROM details)",
    ),
    "losses": Kind(
        ("losses",),
        "losses",
        "SELECT 32.0 * count(*) FROM losses",
        turns=f"optimizers, {_finite('loss')}",
        always=f"step < :first + {ENDS} OR step > :last - {ENDS} OR step IN (:least, :largest) OR step IN (SELECT step FROM steps)",
    ),
    "logged": Kind(
        ("logged",),
        "logged",
        "SELECT total(2 * length(name) + 40) FROM logged",
        key="rowid",
        turns=f"name, {_finite('value')}",
        always=f"step < :first + {ENDS} OR step > :last - {ENDS}",
    ),
}


@dataclass
class Thinning:
    """The budget of one open store, and how far it has been thinned.

    Attributes:
        budget: Bytes.
        gaps: Steps of which one is kept, by kind of row.
        removed: Steps, losses and numbers that are gone, by kind.
        left_out: Recorded steps that were not written, for want of room.
    """

    budget: int
    gaps: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 1))
    removed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    left_out: int = 0

    def facts(self) -> dict[str, object]:
        """What the record says of it."""
        return {"budget": self.budget, "gaps": self.gaps, "removed": self.removed, "left_out": self.left_out}

    def go_on(self, facts: dict[str, Any]) -> None:
        """Go on from what `facts` gave in the session before."""
        self.gaps |= {kind: gap for kind, gap in facts["gaps"].items() if kind in self.gaps}
        self.removed |= {kind: removed for kind, removed in facts["removed"].items() if kind in self.removed}
        self.left_out = facts["left_out"]

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Bound the file, and the log beside it."""
        page = _number(connection, "PRAGMA page_size")
        log = max(min(1000, self.budget // 32 // page), 16)
        connection.execute(f"PRAGMA wal_autocheckpoint = {log}")
        connection.execute(f"PRAGMA journal_size_limit = {log * page}")
        connection.execute("PRAGMA temp_store = MEMORY")  # rows on their way are at most a thirty-second of the budget

    def used(self, connection: sqlite3.Connection) -> int:
        """Bytes in use; free pages, which are used again, do not count."""
        pages = _number(connection, "PRAGMA page_count") - _number(connection, "PRAGMA freelist_count")
        return pages * _number(connection, "PRAGMA page_size")

    def is_full(self, connection: sqlite3.Connection, more: int = 0) -> bool:
        """Whether `more` bytes would overfill the record."""
        return self.used(connection) + more > FULL * self.budget

    def thin(self, connection: sqlite3.Connection, telling: Iterable[int] = (), more: int = 0) -> None:
        """Make room: what takes the most of it first.

        Args:
            connection: The open store, outside of any transaction.
            telling: Steps that a diagnosis rests on.
            more: Bytes that are to be written next.
        """
        telling = sorted(telling)
        keep = {"steps": self._kept_steps(connection, telling), "details": _kept_details(connection, telling)}
        ends = _ends(connection)
        tried: set[str] = set()
        connection.execute("CREATE TEMP TABLE IF NOT EXISTS kept (id INTEGER PRIMARY KEY)")
        while self.used(connection) + more > AFTER * self.budget and len(tried) < len(KINDS):
            room = {name: _number(connection, kind.room) for name, kind in KINDS.items() if name not in tried}
            name = max(room, key=room.__getitem__)
            gap = max(self.gaps[name], _usual_gap(connection, name, ends["last"]))
            while not (removed := self._thin(connection, name, gap, room[name], ends, keep)) and gap <= ends["last"]:
                gap *= 2
            if removed:
                self.gaps[name] = gap
                self.removed[name] += removed
            else:
                tried.add(name)

    def _kept_steps(self, connection: sqlite3.Connection, telling: list[int]) -> set[int]:
        """Recorded steps that stay: at both ends, and around those a diagnosis rests on as far as a quarter of the budget goes."""
        steps = [row[0] for row in connection.execute("SELECT step FROM steps ORDER BY step")]
        if not steps:
            return set()
        mean = _number(connection, KINDS["steps"].room) / len(steps)
        most = max(int(self.budget / 4 / mean), 4)
        kept = {*steps[: max(min(FIRST, most // 4), 1)], *steps[-max(min(LAST, most // 2), 1) :]}
        for wide in (False, True):
            for step in telling:
                if len(kept) < most:
                    kept |= _around(connection, "steps", step, wide)
        return kept

    def _thin(
        self,
        connection: sqlite3.Connection,
        name: str,
        gap: int,
        room: int,
        ends: dict[str, int],
        keep: dict[str, set[int]],
    ) -> int:
        """Keep one row of each stretch, and what is to stay in any case; how many steps or numbers are gone."""
        kind, removed = KINDS[name], 0
        rows = _number(connection, f"SELECT count(*) FROM {kind.source}")
        few = max(int(rows * self.budget / 64 / max(room, 1)), 1)
        low: int | None = 0  # a few at a time: neither a reader nor the log beside the file nor memory has to hold more
        while low is not None:
            following = connection.execute(
                f"SELECT step FROM {kind.source} WHERE step >= ? ORDER BY step LIMIT 1 OFFSET ?", (low, few)
            ).fetchone()
            high = None if following is None else (following[0] // gap + 1) * gap
            between = f"step >= {low}" if high is None else f"step >= {low} AND step < {high}"
            connection.execute("BEGIN IMMEDIATE")
            try:
                removed += _thin_piece(connection, kind, between, {"gap": gap, **ends}, keep.get(name, set()))
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            low = high
        return removed


def _usual_gap(connection: sqlite3.Connection, name: str, last: int) -> int:
    """The largest power of two that is no longer than the mean distance between rows: shorter stretches hold one row each."""
    rows = _number(connection, f"SELECT count(*) FROM {KINDS[name].source}")
    return int(2 ** max(math.floor(math.log2(last / rows)), 0)) if rows and last else 1


def _thin_piece(
    connection: sqlite3.Connection, kind: Kind, between: str, values: dict[str, int], keep: set[int]
) -> int:
    connection.execute("DELETE FROM temp.kept")
    source = f"(SELECT {kind.key} AS id, * FROM {kind.source} WHERE {between})"
    for sql in (
        f"SELECT id FROM (SELECT id, min(step) FROM {source} AS rows GROUP BY step / :gap, {kind.turns})",
        f"SELECT id FROM {source} WHERE {kind.always}",
    ):
        connection.execute(
            f"INSERT OR IGNORE INTO temp.kept {sql}", {k: v for k, v in values.items() if f":{k}" in sql}
        )
    connection.executemany("INSERT OR IGNORE INTO temp.kept VALUES (?)", [(step,) for step in keep])
    stays = f"SELECT count(*) FROM {source} WHERE id IN (SELECT id FROM temp.kept)"
    removed = _number(connection, f"SELECT count(*) FROM {source}") - _number(connection, stays)
    for table in kind.tables if removed else ():
        kept = f"SELECT * FROM {table} WHERE {between} AND {kind.key} IN (SELECT id FROM temp.kept)"
        connection.execute(f"CREATE TEMP TABLE moved AS {kept}")
        connection.execute(f"DELETE FROM {table} WHERE {between}")
        connection.execute(f"INSERT INTO {table} SELECT * FROM temp.moved")
        connection.execute("DROP TABLE temp.moved")
    return removed


def _ends(connection: sqlite3.Connection) -> dict[str, int]:
    """First and last step, and those of the least and the largest finite loss."""
    first, last = connection.execute("SELECT ifnull(min(step), 0), ifnull(max(step), 0) FROM losses").fetchone()
    finite = f"SELECT step FROM losses WHERE {_finite('loss')} = 1 ORDER BY loss"
    least, largest = (connection.execute(f"{finite} {order} LIMIT 1").fetchone() for order in ("ASC", "DESC"))
    return {
        "first": first,
        "last": last,
        "least": -1 if least is None else least[0],
        "largest": -1 if largest is None else largest[0],
    }


def _kept_details(connection: sqlite3.Connection, telling: Iterable[int]) -> set[int]:
    """Steps whose details stay: the first, the last, and those next to what a diagnosis rests on."""
    steps = [row[0] for row in connection.execute(f"SELECT step FROM {DETAILED} ORDER BY step")]
    kept = {*steps[:FIRST_DETAILS], *steps[-LAST_DETAILS:]}
    for step in telling:
        kept |= _around(connection, DETAILED, step, wide=False)
    return kept


def _around(connection: sqlite3.Connection, table: str, step: int, wide: bool) -> set[int]:
    """The steps of a table next to a step, or all those around it."""
    if wide:
        query = f"SELECT step FROM {table} WHERE step BETWEEN {step - BEFORE} AND {step + BEHIND}"
        return {row[0] for row in connection.execute(query)}
    query = (
        f"SELECT max(step) FROM {table} WHERE step <= {step} UNION SELECT min(step) FROM {table} WHERE step >= {step}"
    )
    return {row[0] for row in connection.execute(query) if row[0] is not None}


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])

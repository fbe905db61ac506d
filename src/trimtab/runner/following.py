"""A run seen from outside while it trains: its record is looked at only when it has changed, and seldom enough to leave the run its processor."""

import json
import secrets
import sqlite3
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from trimtab._messages import say
from trimtab.diagnosis import diagnose
from trimtab.errors import RecordError
from trimtab.recording import Glance, Record, Signature, glance, is_settled, signature
from trimtab.report import Diagnosis
from trimtab.report.charts import Charts
from trimtab.report.html.served import Live, served_changes, served_page
from trimtab.report.outline import count
from trimtab.report.words import number

REST = 5.0
"""Seconds without a look for each second of the processor that the last one took: a sixth of one core at most."""

PATIENCE = 0.3
"""Seconds that one who asks for news waits for a look that is under way."""

SOON, LATER = 500, 2000
"""Milliseconds until a page asks again: while the run goes on, and where it stands still."""

NOTICED = 2.0
"""Seconds between looks at whether the run's process is still there."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the last look has shown.

    Attributes:
        number: How many looks before it have shown something else.
        diagnosis: What was found, without the record.
        charts: What there is to see.
        changes: The same for a page that is open, as JSON without its closing brace.
    """

    number: int
    diagnosis: Diagnosis
    charts: Charts
    changes: str


class Follower:
    """Follows one record for any number of readers. Every call may come from another thread.

    Args:
        path: The record.

    Raises:
        RecordError: There is no record, or it is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.looks = 0
        self._name = secrets.token_hex(4)  # a version of another server's, at the same address, is none of this one's
        self._lock = threading.Lock()
        self._glance: Glance = glance(path)
        self._glanced: Signature | None = None
        self._noticed = 0.0
        self._beat = 0
        self._trouble: str | None = None
        self._fault: str | None = None
        self._seen: Seen | None = None
        self._looked: Signature | None = None
        self._next = 0.0
        self._took = 0.0
        self._looking: threading.Thread | None = None
        self._page: tuple[str, bytes, str] | None = None

    def state(self, since: str | None = None, patience: float = PATIENCE) -> bytes | None:
        """What is new.

        Args:
            since: The version that the reader knows, None for none.
            patience: Seconds to wait for a look that is under way.

        Returns:
            JSON: "live" (of `Live`), and "html" and "charts" where a look has shown something else; None where nothing is new.
        """
        self._follow(patience)
        with self._lock:
            live, seen = self._live(), self._seen
        if since == live.version:
            return None
        told = json.dumps({"live": asdict(live)})
        known = (since or "").rpartition(".")[0]
        if seen is None or known == live.version.rpartition(".")[0]:
            return told.encode()
        return f"{seen.changes}, {told[1:]}".encode()

    def page(self) -> tuple[bytes, str] | None:
        """The page as it stands, and its policy.

        Returns:
            HTML, and the content-security policy to serve it with; None where the record could not be read even once.
        """
        self._follow(None if self._seen is None else PATIENCE)
        with self._lock:
            live, seen, page = self._live(), self._seen, self._page
        if seen is None:
            return None
        if page is None or page[0] != live.version:
            html, policy = served_page(seen.diagnosis, seen.charts, live)
            page = self._page = (live.version, html.encode(), policy)
        return page[1:]

    @property
    def trouble(self) -> str:
        """Why the record cannot be read, "" where it can."""
        return self._trouble or self._fault or ""

    def _follow(self, patience: float | None) -> None:
        """See whether the record has changed, and begin a look where it has and it is time to."""
        with self._lock:
            found = signature(self.path)
            self._notice(found)
            due = found is not None and found != self._looked and time.monotonic() >= self._next
            if due and self._looking is None:
                self._looking = threading.Thread(target=self._look, args=(found,), daemon=True)
                self._looking.start()
            looking = self._looking
        if looking is not None:
            looking.join(patience)

    def _notice(self, found: Signature | None) -> None:
        """How far the run is, of which a few rows tell; also whether its process is still there."""
        now = time.monotonic()
        standing = found == self._glanced and found is not None
        if standing and (self._glance.closed or now < self._noticed + NOTICED):
            return
        before = (self._glance, self._trouble)
        try:
            self._trouble = None if found is not None else say("{path} is no longer there", path=self.path)
            self._glance = self._glance if found is None else glance(self.path)
        except RecordError as error:
            if not is_locked(error):
                self._trouble = str(error)
        self._glanced = found if found is not None and is_settled(found) else None
        self._noticed = now
        if before != (self._glance, self._trouble):
            self._beat += 1

    def _look(self, found: Signature) -> None:
        """Read and diagnose the record."""
        begin = time.thread_time()  # of the processor: where others keep it busy, nobody has to rest the longer
        settled, fault, seen = is_settled(found), None, None
        try:
            diagnosis = diagnose(Record.open(self.path))
            charts = diagnosis.charts
            diagnosis = replace(diagnosis, draw=None)  # which holds the record
            changes = json.dumps(served_changes(diagnosis, charts), ensure_ascii=False, allow_nan=False)[:-1]
            seen = Seen(0, diagnosis, charts, changes)
        except RecordError as error:
            settled = settled and not is_locked(error)
            fault = None if is_locked(error) else str(error)
        except Exception as error:
            fault = say("the diagnosis failed ({error})", error=f"{type(error).__name__}: {error}")
        with self._lock:
            self.looks += 1
            self._took = (
                time.thread_time() - begin if self.looks > 1 else 0.0
            )  # the first look has loaded what looks need
            self._next = time.monotonic() + REST * self._took
            self._looked = found if settled else None
            self._looking = None
            if fault != self._fault:
                self._fault = fault
                self._beat += 1
            if seen is not None and (self._seen is None or self._seen.changes != seen.changes):
                self._seen = replace(seen, number=0 if self._seen is None else self._seen.number + 1)

    def _live(self) -> Live:
        run, seen = self._glance, self._seen
        complete = run.closed and seen is not None and self._looked is not None and self._looked == self._glanced
        again: int | None = SOON
        state, text = "following", say("Following the run.")
        if self._trouble is not None:
            state, text = "lost", say("{error}. What is shown is the last that was read.", error=self._trouble)
            again = LATER
        elif self._fault is not None:
            state, text = "lost", say("{error}. What is shown is the last that was read.", error=self._fault)
        elif complete:
            state, text, again = "over", say("The run has ended; this is all of it."), None
        elif run.ended:
            text = say("The run has ended; its last numbers are being read.")
        elif run.abandoned:
            state, text = "still", say("The run's process has ended without closing its record.")
            again = LATER
        elif self._took * (1 + REST) > 2 * NOTICED:
            text = say(
                "Following the run; of so long a record charts and findings are renewed every {n} seconds.",
                n=round(self._took * (1 + REST)),
            )
        far = count(run.steps, "step")
        if run.loss is not None:
            far = say("{far}, loss {loss}", far=far, loss=number(run.loss))
        version = f"{self._name}.{-1 if seen is None else seen.number}.{self._beat}{state[0]}"
        return Live(version, state, text, far, again)


def is_locked(error: RecordError) -> bool:
    """Whether a record could not be read only because it is being written: where the file system knows no log beside it."""
    cause = error.__cause__
    return isinstance(cause, sqlite3.Error) and cause.sqlite_errorcode & 255 in {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    }

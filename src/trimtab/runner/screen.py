"""The lower lines of a terminal, held for a panel: what a program prints scrolls above it, untouched.

The terminal is told to scroll its upper lines only (DECSTBM); nothing stands between the program and its own output. Each frame is one
write that begins by saving the cursor and ends by putting it back. Written through a description of our own, which never waits: where the
terminal takes nothing, as after Ctrl-S, a frame is left out.
"""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from typing import TextIO

from trimtab.runner.guard import Guard

SAVE, RESTORE = "\x1b7", "\x1b8"
WHOLE = "\x1b[r"
DOWN = "\x1bD"
"""Down one line in the same column; the last line scrolls."""

LET_GO = f"{SAVE}{WHOLE}{RESTORE}{DOWN}\x1b[A{SAVE}\x1b[B\r\x1b[J{RESTORE}"
"""Scroll the whole window again, and clear all below the cursor, wherever that is."""

PATIENCE = 1.0
"""Seconds that the terminal may take to be cleared."""


def frame(lines: Sequence[str], rows: int, *, anew: bool) -> str:
    """What puts lines at the bottom of a terminal.

    Args:
        lines: Each shorter than the terminal is wide.
        rows: Lines of the terminal, more than there are lines.
        anew: Make room first: the line of the cursor and those above it scroll up as far as it takes, and what stands below goes. It
            needs to know neither what the terminal shows nor where the cursor is.

    Returns:
        Text that leaves the cursor in the place it had in what was printed.
    """
    height = len(lines)
    upper = f"\x1b[1;{rows - height}r"
    if anew:
        room = f"{SAVE}{WHOLE}{RESTORE}{DOWN * height}\x1b[{height}A{SAVE}\x1b[B\r\x1b[J{upper}"
    else:
        room = f"{SAVE}{upper}"  # again: the program may have reset the terminal
    drawn = (f"\x1b[{rows - height + 1 + i};1H\x1b[0m{line}\x1b[0m\x1b[K" for i, line in enumerate(lines))
    return f"{room}{''.join(drawn)}{RESTORE}"


class Screen:
    """The terminal behind a stream.

    Args:
        stream: One that `can_show` is true of.

    Attributes:
        encoding: The stream's.

    Raises:
        OSError: The terminal cannot be opened.
    """

    def __init__(self, stream: TextIO) -> None:
        self.encoding = stream.encoding or "ascii"
        number = stream.fileno()
        try:  # not to wait is said to a description of our own: the program's writes are to wait as ever
            self._terminal = os.open(os.ttyname(number), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:
            self._terminal = os.dup(number)
        self._pid = os.getpid()
        self._guard = Guard(LET_GO, number)
        self._held = False
        self._shape: tuple[int, int, int] | None = None
        self._rest = b""
        self._thread = threading.get_ident()
        self._heed_ctrl_z()

    @staticmethod
    def can_show(stream: TextIO) -> bool:
        """Whether a stream is a terminal that can be steered.

        Args:
            stream: Standard error, say.

        Returns:
            False also for `TERM=dumb`, and where there are no terminals of POSIX's kind.
        """
        try:
            return os.name == "posix" and stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")
        except ValueError:  # it is closed
            return False

    def size(self) -> tuple[int, int]:
        """Columns and lines; asked for each time, since a handler of SIGWINCH would take the program's place."""
        try:
            return os.get_terminal_size(self._terminal)
        except OSError:
            return 0, 0

    def draw(self, lines: Sequence[str]) -> bool:
        """Put lines at the bottom.

        Args:
            lines: Empty to give the room back; else fewer than the terminal has, and each shorter than it is wide.

        Returns:
            Whether they are there: not in a forked process, in the background, nor where the terminal is stopped or slow.

        Raises:
            OSError: The terminal is gone.
        """
        if os.getpid() != self._pid:
            return False
        if not self._is_in_front():
            self._shape = None  # whoever is in front may do anything to the window
            return False
        if not lines:
            self.release()
            return True
        columns, rows = self.size()
        if rows <= len(lines) or not self._takes() or not self._push():
            return False
        shape = (columns, rows, len(lines))
        text = frame(lines, rows, anew=shape != self._shape)
        self._held, self._shape = True, shape
        self._guard.shown(True)
        return self._push(text.encode(self.encoding, "replace"))

    def follow(self) -> None:
        """Clear the lower lines where the terminal has got another size: what it made of them is not where it was."""
        if self._held and self._shape is not None and self.size() != self._shape[:2] and self._is_in_front():
            self.release()

    def release(self) -> None:
        """Give the lines back, cleared, and let the whole window scroll."""
        if os.getpid() != self._pid or not self._held:
            return
        until = time.monotonic() + PATIENCE
        with contextlib.suppress(OSError):  # nobody sees it any more
            done = self._push(LET_GO.encode())
            while not done and time.monotonic() < until:
                time.sleep(0.01)
                done = self._push()
            self._held, self._shape = False, None
            self._guard.shown(not done)

    def close(self) -> None:
        """Leave the terminal as it was found; again it does nothing."""
        if os.getpid() != self._pid or self._terminal < 0:
            return
        self.release()
        self._guard.close()
        os.close(self._terminal)
        self._terminal = -1
        if threading.get_ident() == self._thread and signal.getsignal(signal.SIGTSTP) == self._stopped:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def _takes(self) -> bool:
        """Whether the terminal takes anything at all just now."""
        return bool(select.select((), (self._terminal,), (), 0)[1])

    def _push(self, data: bytes = b"") -> bool:
        """Write, behind what is left of the frame before, as much as there is room for; whether that is all of it."""
        self._rest += data
        if self._rest:
            with contextlib.suppress(BlockingIOError):
                self._rest = self._rest[os.write(self._terminal, self._rest) :]
        return not self._rest

    def _is_in_front(self) -> bool:
        try:
            return os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:  # another session's terminal, as under torchrun: nobody can put us into its background
            return True

    def _heed_ctrl_z(self) -> None:
        """Clear the screen before Ctrl-Z hands it to the shell; a handler of the program's own is left alone, also a later one."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._stopped)

    def _stopped(self, number: int, at: object) -> None:
        self.release()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        if signal.getsignal(number) is signal.SIG_DFL:  # it goes on
            signal.signal(number, self._stopped)

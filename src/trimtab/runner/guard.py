"""Who clears the terminal when a process is killed and cannot."""

import contextlib
import os
import socket
import subprocess
import weakref

WAITS = """exec 3<&0 </dev/null
(
  trap '' HUP INT QUIT TERM TSTP
  while read -r said <&3; do last=$said; done
  test "$last" = shown && printf %s "$1"
) &"""
"""Reads until all of the other end is gone; away from its parent at once, so that no program finds a child it did not start."""

_waiting: "weakref.WeakSet[Guard]" = weakref.WeakSet()


def _forked() -> None:
    for guard in list(_waiting):
        guard.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Guard:
    """A shell that waits for the end of this process, and then writes what clears its terminal; nothing where no shell can be had.

    It is what is left at SIGTERM or SIGKILL, a crash of the interpreter and `os._exit`.

    Args:
        clearing: What to write.
        terminal: Descriptor of the terminal.
    """

    def __init__(self, clearing: str, terminal: int) -> None:
        self._shown = False
        self._end: socket.socket | None = None
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                ["/bin/sh", "-c", WAITS, "trimtab-guard", clearing],
                stdin=theirs.fileno(),
                stdout=terminal,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
                timeout=5,
            )
            self._end = ours
        if self._end is None:
            ours.close()
        _waiting.add(self)

    def shown(self, shown: bool) -> None:
        """Say whether there is anything to clear."""
        if self._end is not None and shown != self._shown:
            self._shown = shown
            with contextlib.suppress(OSError):  # somebody has ended the shell; a pipe would raise a signal
                self._end.send(b"shown\n" if shown else b"clear\n", getattr(socket, "MSG_NOSIGNAL", 0))

    def leave(self) -> None:
        """Another process than the one that is waited for."""
        end, self._end = self._end, None
        if end is not None:
            end.close()

    close = leave

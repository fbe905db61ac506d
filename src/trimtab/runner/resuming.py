"""Where a repair keeps its finished runs, so that one that was interrupted goes on where it was."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from trimtab.errors import UsageError
from trimtab.repairs.running import Journal
from trimtab.runner.run import FOLDER, own_folder


class Kept:
    """The journal of one repair in `.trimtab/`.

    Args:
        say: Shows a line to the user.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.path: Path | None = None
        self._key = ""

    def open(self, name: str, key: str, fresh: bool) -> None:
        """Find the journal of an earlier call, or begin one.

        Args:
            name: What its file is called by.
            key: What is repaired: runs of anything else are left out.
            fresh: Whether to forget what was done.

        Raises:
            UsageError: It cannot be written.
        """
        self._key = key
        try:
            self.path = own_folder() / f"{name}.repair.jsonl"
            if fresh:
                self.path.unlink(missing_ok=True)
            elif self._is_of_another():
                self._say("trimtab: the file has changed since its runs were kept, so all of them are done anew")
                self.path.unlink()
            with self.path.open("ab"):
                pass
        except OSError as error:
            raise UsageError(f"cannot write {self.path or Path(FOLDER).absolute()}: {error.strerror}") from error

    @property
    def journal(self) -> Journal:
        """The journal as it stands."""
        return Journal(self.path, self._key)

    @property
    def told(self) -> str:
        """What is kept, in words."""
        if self.path is None:
            return "no run was finished"
        place = os.path.relpath(self.path)
        count = len(self.journal)
        if not count:
            return f"finished runs are kept in {place}"
        return f"{count} finished run{'s are' if count > 1 else ' is'} kept in {place}: the same command goes on from there, --fresh begins anew"

    def _is_of_another(self) -> bool:
        if self.path is None or not self.path.is_file():
            return False
        lines = [line for line in self.path.read_bytes().splitlines() if line]
        return bool(lines) and not any(_name(line) == self._key for line in lines)


def _name(line: bytes) -> str:
    try:
        return str(json.loads(line)["name"])
    except (ValueError, KeyError, TypeError):
        return ""

"""A folder to run a script in, so that runs side by side do not write over one another's files, nor over the user's."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SMALL = 2**20
"""Bytes of a file that is copied; a larger one, which is likely to be data, is linked."""

MANY = 3000
"""Entries of a folder that is copied; of a larger one, each entry is linked as it is."""

LEFT_OUT = frozenset({".trimtab", "__pycache__"})


@contextmanager
def scratch(folder: str) -> Iterator[str]:
    """A copy of a folder, deleted afterwards.

    Args:
        folder: The folder.

    Yields:
        The copy: folders are made anew, small files copied, large files and hidden folders linked.
    """
    place = tempfile.mkdtemp(prefix="trimtab-")
    try:
        with suppress(OSError):  # an entry that cannot be read is not there
            _mirror(folder, place, deep=not _is_large(folder))
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as found:
        yield from (entry for entry in found if entry.name not in LEFT_OUT)


def _is_copied(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")


def _is_large(folder: str) -> bool:
    count, waiting = 0, [folder]
    while waiting:
        for entry in _entries(waiting.pop()):
            count += 1
            if count > MANY:
                return True
            if _is_copied(entry):
                waiting.append(entry.path)
    return False


def _mirror(folder: str, place: str, deep: bool) -> None:
    for entry in _entries(folder):
        target = os.path.join(place, entry.name)
        if deep and _is_copied(entry):
            os.mkdir(target)
            _mirror(entry.path, target, deep)
        elif deep and entry.is_file(follow_symlinks=False) and entry.stat().st_size <= SMALL:
            with suppress(OSError):
                shutil.copy2(entry.path, target)
        else:
            os.symlink(Path(entry.path).absolute(), target)

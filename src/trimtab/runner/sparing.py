"""What a run writes over, deletes or renames in its own folder is its own: a link to the user's file becomes a copy just before."""

import functools
import os
import shutil
import sys
import threading
from contextlib import suppress
from typing import Any

import torch

MANY = 30_000
"""Entries of a linked folder from which on it is left as it is."""

WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC

OF_PARENTS = {"os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.mkdir": 1, "os.link": 2, "os.symlink": 2}
"""Events that change a folder, and how many paths they begin with."""

OF_ENTRIES = {"os.truncate", "shutil.rmtree"}
"""Events that change what a path leads to."""


def spare(folder: str) -> None:
    """From now on, for good, what this process opens to write below a folder is no link out of it any more.

    What is not written by Python itself is not seen, `torch.save` excepted.

    Args:
        folder: The folder, a full path.
    """
    busy = threading.local()

    def own(path: Any, last: bool, empty: bool = False) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)) or getattr(busy, "now", False):
            return
        busy.now = True
        try:
            with suppress(OSError, ValueError):
                _unlink(folder, os.path.abspath(os.fsdecode(path)), last, empty)
        finally:
            busy.now = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            if isinstance(args[2], int) and args[2] & WRITES:
                own(args[0], last=True, empty=bool(args[2] & os.O_TRUNC))
        elif event in OF_PARENTS:
            for path in args[: OF_PARENTS[event]]:
                own(path, last=False)
        elif event in OF_ENTRIES:
            own(args[0], last=True)

    sys.addaudithook(hook)
    torch.save = _saving(torch.save, own)


def _saving(save: Any, own: Any) -> Any:
    @functools.wraps(save)
    def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        own(f, last=True, empty=True)
        return save(obj, f, *args, **kwargs)

    return saved


def _unlink(folder: str, path: str, last: bool, empty: bool) -> None:
    """Make a copy, or a new folder of links, of each link on the way to a path, and of what it leads to where that is asked for."""
    inside = os.path.relpath(path, folder)
    if inside == os.curdir or inside.split(os.sep)[0] == os.pardir:
        return
    parts, place = inside.split(os.sep), folder
    for depth, part in enumerate(parts, 1):
        place = os.path.join(place, part)
        if (depth == len(parts) and not last) or not os.path.lexists(place):
            return
        if os.path.islink(place) and os.path.exists(place):
            _replace(place, empty)


def _replace(link: str, empty: bool) -> None:
    target, aside = os.path.realpath(link), f"{link}.{threading.get_ident()}.trimtab"
    if os.path.isdir(target):
        entries = os.listdir(target)
        if len(entries) > MANY:
            return
        os.mkdir(aside)
        for entry in entries:
            os.symlink(os.path.join(target, entry), os.path.join(aside, entry))
        os.unlink(link)
    elif not os.path.isfile(target):  # a device, a pipe
        return
    elif empty:
        os.unlink(link)
        return
    else:
        shutil.copyfile(target, aside)
        shutil.copymode(target, aside)
    os.rename(aside, link)

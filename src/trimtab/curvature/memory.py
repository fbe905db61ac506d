"""How much memory a graph that is kept will need, and how much there is."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab._torch import weak_storage

KEPT_PER_SAVED = 3.0
"""Bytes that the graph of a gradient keeps, for each byte that a forward pass saves for its backward; see `docs/curvature.md`."""


@contextmanager
def saved_bytes() -> Iterator[list[int]]:
    """Count what forward passes keep for a backward pass, and keep none of it: the graph can be looked at, not run.

    Yields:
        A list whose one number is the bytes so far, each storage once.
    """
    seen: set[Any] = (
        set()
    )  # weak references: what is freed meanwhile gives its place in memory to others, not its identity
    count = [0]
    # Ctrl-C as torch takes the hooks away leaves them in place for good; graphs of others must still run then.
    counting = True

    def pack(tensor: Tensor) -> Tensor | None:
        if not counting:
            return tensor
        storage = weak_storage(tensor)
        if storage is not None and storage not in seen:
            seen.add(storage)
            count[0] += tensor.untyped_storage().nbytes()
        return None

    def unpack(packed: Tensor | None) -> Tensor:
        if packed is not None:
            return packed
        raise RuntimeError("this graph was made to be counted")

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        try:
            yield count
        finally:
            counting = False


def available_bytes(device: torch.device) -> int | None:
    """Memory that can still be had on a device.

    Args:
        device: Of the parameters.

    Returns:
        Bytes; None where it cannot be told.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    found = []
    try:
        found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found = [int(line.split()[1]) * 1024]
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        found += [int(limit) - int(used)] if limit != "max" else []
    except (AttributeError, OSError, ValueError):  # not Linux, or no such limit
        pass
    return max(0, min(found)) if found else None


def in_words(count: float | None) -> str:
    """Bytes for people."""
    if count is None:
        return "unknown"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"

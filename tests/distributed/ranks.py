"""Runs a function on several ranks: forked processes, which need not import torch again, with a gloo group between them."""

import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LIMIT = 120.0
"""Seconds until a run that hangs is ended."""


def on_ranks(folder: Path, function: Callable[..., Any], *args: Any, size: int = 2, **kwargs: Any) -> list[Any]:
    """What `function(*args, **kwargs)` returns on each of `size` ranks; `Died` where a rank ended without a word."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_rank, args=(folder, rank, size, port, function, args, kwargs)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT)
    hung = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
    assert not hung, f"ranks {hung} hang"
    found = []
    for rank in range(size):
        path = folder / f"rank{rank}.pickle"
        kind, value = pickle.loads(path.read_bytes()) if path.exists() else ("value", Died)
        assert kind == "value", f"rank {rank}:\n{value}"
        found.append(value)
    return found


class Died:
    """Stands for the answer of a rank that was killed."""


def _rank(
    folder: Path, rank: int, size: int, port: int, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]
) -> None:
    path = folder / f"rank{rank}.pickle"
    path.unlink(missing_ok=True)
    try:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
        answer = ("value", function(*args, **kwargs))
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        answer = ("error", traceback.format_exc())
    path.write_bytes(pickle.dumps(answer))
    os._exit(0)

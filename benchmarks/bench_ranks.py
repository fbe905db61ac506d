"""Cost of putting the ranks' readings together: milliseconds of each rank's training thread a recorded step, and bytes sent.

Ranks are forked processes that met over TCP on this machine. A part is that of a net with so many modules, each a linear layer:
output and gradient of each, four sites for weight and bias each. "put" is what a rank that is not the first pays (pack and send),
"take" what the first pays (fetch, join); both wall clock, each rank alone on the line: they take turns. The plain exchange of the
same bytes by one `all_gather` of torch.distributed stands beside it, and the joining alone.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trimtab.recording.parts import SHARED, SPREAD, Part, join, pack
from trimtab.recording.ranks import Ranks
from trimtab.recording.sites import SiteTable
from trimtab.stats import FIELDS

WARM_UP = 3


def sites(modules: int) -> SiteTable:
    """Numbers for the sites of so many linear layers."""
    table = SiteTable()
    for i in range(modules):
        name = f"encoder.layers.{i // 6}.block.linear{i % 6}"
        table.index(0, name, "output")
        table.index(0, name, "gradient")
        for parameter in ("weight", "bias"):
            for kind in ("parameter", "raw-gradient", "parameter-gradient", "update"):
                table.index(0, f"{name}.{parameter}", kind)
    return table


def part(table: SiteTable, rank: int, step: int) -> Part:
    """A part as a recorded step gives it."""
    rows = np.random.default_rng(rank).random((len(table), len(FIELDS)))
    rows[:, [5, 6]] = 0
    modes = np.where(table.shared(), SHARED, SPREAD).astype(np.int32)
    rows[modes == SHARED] = 1.0
    about = {rank: {"batch": 32, "loss": 1.0, "copies": 2, "halves": False, "place": rank, "running": {}}}
    return Part(str(step), [rank], [(step, 1.0, 0.1, 1)], rows, modes, about=about)


def on_a_rank(rank: int, size: int, port: int, modules: int, steps: int, answers: Any) -> None:
    """Exchange parts, and put the times into a queue."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    table = sites(modules)
    ranks: Any = Ranks.of_this_process(table)
    own, gathered, joined = [], [], []
    for step in range(steps + WARM_UP):
        mine = part(table, rank, step)
        for turn in reversed(range(size)):  # the first rank comes last, when all parts are there
            dist.barrier()
            if turn == rank:
                time.sleep(0.05)  # what was sent arrives when it does: nobody waits for the answer
                begin = time.perf_counter()
                ranks.put(mine, None)
                assert len(list(ranks.take())) == 1
                own.append(time.perf_counter() - begin)
        dist.barrier()
        block = torch.from_numpy(mine.rows)
        all_blocks = [torch.empty_like(block) for _ in range(size)]
        begin = time.perf_counter()
        dist.all_gather(all_blocks, block)
        gathered.append(time.perf_counter() - begin)
        others = [part(table, other, step) for other in range(size)]
        begin = time.perf_counter()
        join(others)
        joined.append(time.perf_counter() - begin)
    answers.put((rank, own[WARM_UP:], gathered[WARM_UP:], joined[WARM_UP:], len(pack(mine, []))))
    dist.barrier()
    dist.destroy_process_group()


def measure(size: int, modules: int, steps: int) -> dict[str, float]:
    """Medians over the steps, in milliseconds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    processes = [
        context.Process(target=on_a_rank, args=(rank, size, port, modules, steps, answers)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    found = sorted(answers.get() for _ in processes)
    for process in processes:
        process.join()

    def middle(times: list[float]) -> float:
        return 1e3 * statistics.median(times)

    return {
        "ranks": size,
        "modules": modules,
        "bytes": found[0][4],
        "first": middle(found[0][1]),
        "others": middle([t for answer in found[1:] for t in answer[1]]),
        "join": middle(found[0][3]),
        "all_gather": middle(found[0][2]),
    }


def simulated(size: int, modules: int, steps: int) -> dict[str, float]:
    """Many ranks, one after the other in this process, over a real store: what the first rank and the one behind most of them pay."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    tables = [sites(modules) for _ in range(size)]
    crew = [Ranks(store, rank, size, table) for rank, table in enumerate(tables)]
    times: dict[int, list[float]] = {rank: [] for rank in range(size)}
    for step in range(steps + 1):  # the first brings the names of all sites
        for ranks in reversed(crew):
            mine = part(tables[ranks.rank], ranks.rank, step)
            begin = time.perf_counter()
            ranks.put(mine, None)
            assert len(list(ranks.take(patience=1.0))) == 1
            times[ranks.rank].append(time.perf_counter() - begin)
    middle = {rank: 1e3 * statistics.median(found[1:]) for rank, found in times.items()}
    own = len(pack(part(tables[0], 0, 0), []))
    return {
        "ranks": size,
        "modules": modules,
        "bytes": own,
        "first": middle[0],
        "leader": middle[16],
        "leaf": statistics.median(middle[rank] for rank in range(1, 16)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--simulate", type=int, metavar="RANKS", help="so many ranks, more than 16, in one process")
    parser.add_argument("--modules", type=int, default=300, help="modules of the simulated run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.simulate:
        row = simulated(options.simulate, options.modules, min(options.steps, 5))
        print(
            f"{row['ranks']} ranks, {row['modules']} modules: {row['bytes'] / 1e3:.0f} kB a rank and step; the first rank {row['first']:.1f} ms, "
            f"one that 15 report to {row['leader']:.1f} ms, one that none reports to {row['leaf']:.2f} ms a recorded step"
        )
        return
    rows = [
        measure(size, modules, options.steps) for size, modules in ((2, 30), (2, 300), (2, 2000), (4, 300), (8, 300))
    ]
    if options.json:
        print(json.dumps(rows))
        return
    print(
        "| ranks | modules | kB a rank and step | first rank, ms | others, ms | of it joining, ms | one all_gather, ms |"
    )
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['ranks']} | {row['modules']} | {row['bytes'] / 1e3:.0f} | {row['first']:.2f} | {row['others']:.2f} "
            f"| {row['join']:.2f} | {row['all_gather']:.2f} |"
        )


if __name__ == "__main__":
    main()

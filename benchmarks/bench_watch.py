"""Cost of watching: the time of a training step with a monitor over the time of the same step without one.

The watched net and its plain twin live in one process of their own and take turns, a few steps each (A B, B A, ...). Time
is CPU time of the thread that trains, with one torch thread: neither what other jobs on the machine do is counted, except
for the caches and the memory they share with us, nor what a monitor does in threads and processes of its own. The figure
is the median of the rounds, with the least and the largest beside it. Two rows say what the figures are worth: two plain
twins, and a monitor that only reads each tensor once, with `torch.sum`.

On Linux the script starts itself again with a large MALLOC_TOP_PAD_. Without it glibc hands memory back to the system
and takes it again at every step: 0 to 9000 page faults a step of the CNN, up to a seventh of its time, by the luck of
the heap's layout, which any hook changes. With it there are next to none, for all monitors alike.
"""

import argparse
import contextlib
import gc
import importlib.metadata
import io
import itertools
import json
import logging
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from peers import FLOOR, PEERS, TRIMTAB, Rival
from workloads import WORKLOADS

SHOWN = ("cnn", "transformer", "mlp")
WAYS = ("half", "accumulated", "checkpointed", "many")
WARM_UP = 13  # trimtab looks closer at the first eight steps, and the numba kernel loads
ROUND = 4
LONG_ROUND = 50  # holds one step that the default schedule records
LONG = 600
STEADY = 100  # the default schedule is in its long run from here on
GROWTH = 500
TOP_PAD = "MALLOC_TOP_PAD_", str(2**28)
SETTLE = 40
RIVALS = FLOOR | TRIMTAB | PEERS
NONE, READING = FLOOR
EVERY, WITHOUT, DEFAULT = TRIMTAB


class Loop:
    """A training loop with one monitor."""

    def __init__(self, workload: str, rival: str, folder: Path) -> None:
        torch.manual_seed(0)
        self.training = WORKLOADS[workload]()
        self.monitor = RIVALS[rival].attach(self.training.model, self.training.optimizer, folder)
        self.step = 0

    def run(self, steps: int) -> list[float]:
        """CPU seconds of each step."""
        training, monitor, times = self.training, self.monitor, []
        for _ in range(steps):
            x, y = training.at(self.step)
            begin = time.thread_time()
            training.optimizer.zero_grad()
            loss = training.backward(x, y)
            monitor.after_backward(loss)
            training.optimizer.step()
            monitor.after_step(self.step, loss)
            times.append(time.thread_time() - begin)
            self.step += 1
        return times


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def turns(folder: Path, workload: str, rival: str, steps: int, count: int) -> list[tuple[list[float], list[float]]]:
    """CPU seconds of each step, plain and watched, by round; who begins changes from round to round."""
    plain, watched = Loop(workload, NONE, folder), Loop(workload, rival, folder)

    def plain_run(steps: int) -> list[float]:
        with watched.monitor.aside():
            return plain.run(steps)

    def one_round(steps: int, plain_first: bool) -> tuple[list[float], list[float]]:
        if plain_first:
            before = plain_run(steps)
            return before, watched.run(steps)
        after = watched.run(steps)
        return plain_run(steps), after

    if rival != DEFAULT:
        one_round(WARM_UP, plain_first=True)
    return [one_round(steps, plain_first=number % 2 == 0) for number in range(count)]


def readings(folder: Path, workload: str, rival: str) -> int:
    """Sites that one recorded step measures."""
    loop = Loop(workload, rival, folder)
    loop.run(WARM_UP)
    return loop.monitor.readings()


def gained(folder: Path, workload: str, rival: str) -> tuple[float, float]:
    """MiB that a process gains in the first and in the second half of `GROWTH` steps, after the allocator has settled.

    Memory comes in pieces as large as an activation, a few MiB: the heap's layout gives or takes one; a leak would show in
    both halves.
    """
    loop = Loop(workload, rival, folder)
    loop.run(SETTLE)
    seen = []
    for steps in (0, GROWTH // 2, GROWTH // 2):
        loop.run(steps)
        gc.collect()
        seen.append(resident())
    return seen[1] - seen[0], seen[2] - seen[1]


def serve(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Answer with what a function returns, in a forked process; what a monitor prints goes nowhere."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    ):
        try:
            connection.send(function(Path(folder), *arguments))
        except Exception as error:
            connection.send(RuntimeError(f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"))
    os._exit(0)  # some monitors' threads and atexit functions do not come to an end in a forked process


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function(folder, *arguments)` returns, in a fresh process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    answer = ours.recv()
    process.join(5)
    if process.is_alive():
        process.kill()
        process.join()
    if isinstance(answer, Exception):
        raise answer
    return answer


@dataclass
class Cost:
    """Ratios over rounds, and milliseconds of the plain and of the watched step."""

    ratio: float
    least: float
    largest: float
    rounds: int
    plain_ms: float
    ms: float

    def __str__(self) -> str:
        return f"{self.ratio:.3f} ({self.least:.2f}-{self.largest:.2f})"


def cost(rounds: list[tuple[float, float]]) -> Cost:
    """From pairs of seconds per step, plain and watched."""
    ratios = [watched / plain for plain, watched in rounds]
    plain, watched = (1e3 * statistics.median(side) for side in zip(*rounds, strict=True))
    return Cost(statistics.median(ratios), min(ratios), max(ratios), len(rounds), plain, watched)


def every_step(workload: str, rival: str, rounds: int) -> Cost:
    """Rounds of a few steps, the median step of each."""
    found = apart(turns, workload, rival, ROUND, rounds)
    return cost([(statistics.median(plain), statistics.median(watched)) for plain, watched in found])


def long_run(workload: str) -> dict[str, Cost]:
    """The default schedule: steps 0 to 600 as one sum, and rounds of 50 steps once it has become sparse."""
    found = apart(turns, workload, DEFAULT, 10, LONG // 10)
    plain, watched = (list(itertools.chain.from_iterable(turn[side] for turn in found)) for side in (0, 1))

    def rounds(begin: int) -> list[tuple[float, float]]:
        starts = range(begin, LONG, LONG_ROUND)
        return [tuple(statistics.fmean(side[at : at + LONG_ROUND]) for side in (plain, watched)) for at in starts]

    whole = cost(rounds(0))
    whole.ratio = sum(watched) / sum(plain)
    return {"0-600": whole, "steady": cost(rounds(STEADY))}


def fixed_cost(rival: str, rounds: int) -> dict[str, float]:
    """Microseconds per reading on a net whose tensors are next to nothing."""
    found = every_step("tiny", rival, rounds)
    count = apart(readings, "tiny", rival)
    microseconds = 1e3 * (found.ms - found.plain_ms)
    return {"readings": count, "us_a_reading": microseconds / count, "us_a_module": microseconds / 31}


def version(rival: Rival) -> str:
    return importlib.metadata.version(rival.package)


def conditions() -> dict[str, Any]:
    return {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "top_pad": os.environ.get(TOP_PAD[0]),
        "versions": {name: version(rival) for name, rival in (TRIMTAB | PEERS).items() if rival.installed},
    }


def row(name: str, cells: list[str]) -> None:
    print("| " + " | ".join([name, *cells]) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="alternated rounds (default 12; at least 8 to publish)")
    parser.add_argument("--peers", action="store_true", help="beside the other monitors that are installed")
    parser.add_argument(
        "--only", choices=(*SHOWN, *WAYS), action="append", help="this workload alone; may be given again"
    )
    parser.add_argument("--ways", action="store_true", help=f"other ways to train instead: {', '.join(WAYS)}")
    parser.add_argument("--quick", action="store_true", help="every step only: no long runs, no memory")
    parser.add_argument("--json", type=Path, help="write all figures here")
    arguments = parser.parse_args()
    if sys.platform == "linux" and TOP_PAD[0] not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | dict([TOP_PAD]))
    shown = arguments.only or (WAYS if arguments.ways else SHOWN)
    rivals = [*FLOOR, *(name for name in (EVERY, WITHOUT) if TRIMTAB[name].installed)]
    rivals += [name for name, rival in PEERS.items() if arguments.peers and rival.installed]
    result: dict[str, Any] = {"conditions": conditions(), "step": {}, "fixed": {}, "growth": {}}

    print(f"Step time over the plain step's, {arguments.rounds} rounds: median (least-largest)\n")
    row("monitor", list(shown))
    row("---", ["---"] * len(shown))
    plain: dict[str, list[float]] = {workload: [] for workload in shown}
    for name in rivals:
        cells = []
        for workload in shown:
            try:
                found = every_step(workload, name, arguments.rounds)
            except (RuntimeError, EOFError) as error:
                cells.append(f"failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
                continue
            plain[workload].append(found.plain_ms)
            result["step"].setdefault(name, {})[workload] = asdict(found)
            cells.append(str(found))
        row(name, cells)
    if not arguments.quick and TRIMTAB[DEFAULT].installed:
        runs = {workload: long_run(workload) for workload in shown}
        for key, label in (("0-600", "steps 0 to 600"), ("steady", "from step 100 on")):
            name = f"{DEFAULT}, {label}"
            result["step"][name] = {workload: asdict(runs[workload][key]) for workload in shown}
            row(name, [str(runs[workload][key]) for workload in shown])
    row("plain step, ms of CPU", [f"{statistics.median(plain[workload]):.1f}" for workload in shown])

    print("\nFixed cost, 30 Linear(16, 16), batch 8\n")
    for name in (EVERY, WITHOUT):
        if TRIMTAB[name].installed:
            found = result["fixed"][name] = fixed_cost(name, 2 * arguments.rounds)
            print(
                f"{name}: {found['us_a_reading']:.1f} us a reading ({found['readings']:.0f} readings a step), "
                f"{found['us_a_module']:.0f} us a module"
            )

    if not arguments.quick:
        print(f"\nResident memory gained over {GROWTH} steps, MiB: first half + second half\n")
        row("monitor", list(shown))
        row("---", ["---"] * len(shown))
        for name in (NONE, *(name for name in (EVERY, WITHOUT) if TRIMTAB[name].installed)):
            result["growth"][name] = {workload: apart(gained, workload, name) for workload in shown}
            row(name, ["{:.1f} + {:.1f}".format(*result["growth"][name][workload]) for workload in shown])
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Does watching a long run cost memory or disk that grows? A tiny net trains for 200,000 steps under the default schedule.

Resident memory is read every thousand steps, the record's size on disk (its log included) every hundred. Flat means: behind the
warm-up (the first quarter of the run, in which the record is thinned for the first time) memory never lies more than 5 MiB above what it was then, and the record stays within its budget.
The budget is far below the default one, so that the record is thinned many times over. Exits with 1 where either fails.
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import trimtab
from trimtab.recording.store import size_of

ALLOWED = 5.0
"""MiB."""


@dataclass
class Soaked:
    """What a soak has shown."""

    grown: float
    largest: float
    recorded: int
    losses: int
    thinned: dict
    seconds: float


def resident() -> float:
    """MiB of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(steps: int, budget: float, path: Path | None, looks: bool = False) -> Soaked:
    """Train a tiny net under watch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    grown = start = largest = 0.0
    begin = time.perf_counter()
    more = {"on_finding": lambda finding: None} if looks else {}
    with trimtab.watch(net, optimizer, store=path, budget=budget, **more) as watch:
        for step in range(steps):
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), x[:, :4].argmax(1)).backward()
            optimizer.step()
            if path is not None and step % 100 == 0:
                largest = max(largest, size_of(path))
            if step % 1000 == 0 and step >= steps // 4:
                now = resident()
                start = start or now
                grown = max(grown, now - start)
    record = watch.record
    return Soaked(
        grown,
        largest / 1e6,
        len(record.steps),
        len(record.losses),
        record.facts.get("thinned", {}),
        time.perf_counter() - begin,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--budget", type=float, default=1.0, help="megabytes")
    parser.add_argument("--in-memory", action="store_true", help="no file")
    parser.add_argument("--looks", action="store_true", help="diagnose while it trains")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = None if options.in_memory else Path(folder) / "soak.db"
        found = soak(options.steps, options.budget, path, options.looks)
    print(
        f"{options.steps:,} steps in {found.seconds:.0f} s, {found.recorded:,} recorded steps and {found.losses:,} losses left"
    )
    print(f"memory behind the warm-up: +{found.grown:.2f} MiB (at most {ALLOWED:g} allowed)")
    print(f"record, at its largest: {found.largest:.2f} MB of {options.budget:g}; thinned: {found.thinned}")
    sys.exit(found.grown > ALLOWED or found.largest > options.budget)


if __name__ == "__main__":
    main()

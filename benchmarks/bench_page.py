"""The page of a long record: how large it is, and how long it takes to read, diagnose, draw and write it.

    python benchmarks/bench_page.py            # 300 modules x 1,000 steps, and 100,000 recorded steps (about three minutes)
    python benchmarks/bench_page.py --steps 5000

Asked: at most 3 MB for 300 modules at 1,000 recorded steps, and under 10 s for the page of a record of 100,000 steps.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import trimtab
from trimtab.recording import Record


def record(path: Path, layers: int, width: int, steps: int) -> None:
    """Train a stack of linear layers on noise, every step recorded."""
    torch.manual_seed(0)
    stack = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.Tanh())]
    model = nn.Sequential(*stack, nn.Linear(width, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with trimtab.watch(model, optimizer, every=1, store=path, budget=0):
        for _ in range(steps):
            x = torch.randn(16, width)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
            optimizer.step()


def main() -> None:
    """Make the records, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="recorded steps of the long record")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| record | read, s | diagnose, s | page, s | in all, s | page, MB |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for layers, width, steps in ((150, 8, 1000), (4, 16, arguments.steps)):
            path = Path(folder) / f"{layers}.db"
            record(path, layers, width, steps)
            marks = [time.perf_counter()]
            opened = Record.open(path)
            marks.append(time.perf_counter())
            diagnosis = trimtab.diagnose(opened)
            marks.append(time.perf_counter())
            page = diagnosis.to_html(Path(folder) / "page.html")
            marks.append(time.perf_counter())
            read, judged, written = (later - sooner for sooner, later in itertools.pairwise(marks))
            name = f"{2 * layers + 1} modules, {steps:,} recorded steps, {path.stat().st_size / 1e6:.0f} MB"
            print(
                f"| {name} | {read:.1f} | {judged:.1f} | {written:.1f} | {marks[-1] - marks[0]:.1f} | {len(page) / 1e6:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Cost of the layers of trimtab.norms: forward and backward beside the PyTorch layer that each stands in for.

Ours and theirs take turns in one process, A B, B A, ...; time is CPU time of the process with one torch thread. The figure
is the median of the rounds' ratios, with the least and the largest. On Linux the script starts itself again with a large
MALLOC_TOP_PAD_, without which page faults by the luck of the heap's layout decide (tensors above 32 MiB are mapped anew at
each step all the same, for both alike).
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norms import layers
from trimtab.norms.transformer import TransformerLayer

TOP_PAD = "MALLOC_TOP_PAD_", str(2**28)
NO_NUMBA = "TRIMTAB_NO_NUMBA"
IMAGES, SEQUENCES, TOKENS, SQUARE = (64, 64, 56, 56), (32, 768, 512), (32, 512, 768), (4096, 4096)
SMALL = (64, 32)  # all that a layer costs there is fixed


@dataclass
class Case:
    """Ours beside theirs."""

    name: str
    shape: tuple[int, ...]
    ours: Callable[[], nn.Module]
    theirs: Callable[[], nn.Module]
    keywords: dict[str, Any]
    numba: bool = False
    training: bool = True


def padded(rows: int, length: int) -> Tensor:
    """A mask of sequences of 1 to `length` positions."""
    lengths = torch.randint(1, length + 1, (rows, 1), generator=torch.Generator().manual_seed(0))
    return torch.arange(length) < lengths


def cases() -> list[Case]:
    found: list[Case] = []
    for width, shape in ((shape[-1], shape) for shape in (TOKENS, SQUARE)):
        ours, native = partial(layers.RMSNorm, width), partial(nn.RMSNorm, width)
        found += [Case("RMSNorm", shape, ours, native, {}, numba) for numba in (True, False)]
    for shape, kind in ((IMAGES, "2d"), (SEQUENCES, "1d")):
        native = partial(getattr(nn, f"BatchNorm{kind}"), shape[1])
        for name in ("GhostBatchNorm", "BatchRenorm", "CheckpointedBatchNorm", "MaskedBatchNorm"):
            ours = partial(getattr(layers, name + kind), shape[1])
            found.append(Case(f"{name}{kind}", shape, ours, native, {}))
        mask = padded(shape[0], torch.Size(shape[2:]).numel()).view(shape[0], *shape[2:])
        found += [Case(f"{name}{kind}, mask", shape, ours, native, {"mask": mask}, numba) for numba in (True, False)]
    for name in ("GhostBatchNorm1d", "BatchRenorm1d", "CheckpointedBatchNorm1d"):
        found.append(Case(name, SMALL, partial(getattr(layers, name), 32), partial(nn.BatchNorm1d, 32), {}))
    found += [
        Case("WSConv2d(64, 64, 3)", IMAGES, partial(layers.WSConv2d, 64, 64, 3), partial(nn.Conv2d, 64, 64, 3), {}),
        Case("WSConv2d(64, 64, 1)", IMAGES, partial(layers.WSConv2d, 64, 64, 1), partial(nn.Conv2d, 64, 64, 1), {}),
        Case("WSLinear(768, 768)", TOKENS, partial(layers.WSLinear, 768, 768), partial(nn.Linear, 768, 768), {}),
        Case("WSLinear(768, 768)", (64, 768), partial(layers.WSLinear, 768, 768), partial(nn.Linear, 768, 768), {}),
    ]
    for placement, training in itertools.product(("pre", "post"), (True, False)):
        ours = partial(TransformerLayer, 256, 4, 1024, placement=placement)
        native = partial(nn.TransformerEncoderLayer, 256, 4, 1024, batch_first=True, norm_first=placement == "pre")
        name = f"TransformerLayer {placement}, {'training' if training else 'evaluation'}"
        found.append(Case(name, (16, 128, 256), ours, native, {}, training=training))
    return found


def seconds(module: nn.Module, x: Tensor, dy: Tensor, keywords: dict[str, Any], repeats: int) -> float:
    begin = time.process_time()
    for _ in range(repeats):
        if module.training:
            x.grad = None
            module.zero_grad()
            module(x, **keywords).backward(dy)
        else:
            with torch.no_grad():
                module(x, **keywords)
    return (time.process_time() - begin) / repeats


@dataclass
class Ratio:
    """Ours over theirs, and milliseconds of both."""

    ratio: float
    least: float
    largest: float
    ours: float
    theirs: float


def measure(case: Case, rounds: int) -> Ratio:
    os.environ[NO_NUMBA] = "0" if case.numba else "1"
    torch.manual_seed(0)
    ours, theirs = (make().train(case.training) for make in (case.ours, case.theirs))
    x = torch.randn(case.shape, requires_grad=case.training)
    dy = torch.randn_like(theirs(x))
    plain: dict[str, Any] = {}
    sides = ((ours, case.keywords), (theirs, plain))
    for module, keywords in sides:
        seconds(module, x, dy, keywords, 1)
    repeats = max(1, round(0.05 / seconds(theirs, x, dy, plain, 1)))
    found: list[tuple[float, float]] = []
    for number in range(rounds):
        times = [0.0, 0.0]
        for side in (0, 1) if number % 2 else (1, 0):
            times[side] = seconds(sides[side][0], x, dy, sides[side][1], repeats)
        found.append((times[0], times[1]))
    ratios = [a / b for a, b in found]
    mine, other = (1e3 * statistics.median(side) for side in zip(*found, strict=True))
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), mine, other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", help="cases whose name holds this")
    parser.add_argument("--json", type=Path, help="write all figures here")
    arguments = parser.parse_args()
    if sys.platform == "linux" and TOP_PAD[0] not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | dict([TOP_PAD]))
    torch.set_num_threads(1)
    print(f"{date.today().isoformat()}, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}\n")
    print(
        "| layer | input | path | ours / PyTorch's | ours, ms | PyTorch's, ms |\n|---|---|---|---|---|---|", flush=True
    )
    result = []
    for case in cases():
        if arguments.only and arguments.only not in case.name:
            continue
        found = measure(case, arguments.rounds)
        result.append({"name": case.name, "shape": case.shape, "numba": case.numba, **asdict(found)})
        print(
            f"| {case.name} | {case.shape} | {'numba' if case.numba else 'torch'} | "
            f"{found.ratio:.2f} ({found.least:.2f}-{found.largest:.2f}) | {found.ours:.2f} | {found.theirs:.2f} |",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

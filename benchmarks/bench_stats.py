"""Cost of the statistics: time per call for small tensors, ratio to the memory-read limit for large ones.

CPU process time, one thread; the rivals take turns within one run, and the table gives the median of the rounds.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from trimtab import stats

SHAPES = ((64, 64, 56, 56), (32, 512, 768), (4096, 4096))
SMALL = (2, 200, 4096, 65536)


def tape(numba: bool) -> stats.Tape:
    os.environ["TRIMTAB_NO_NUMBA"] = "0" if numba else "1"
    return stats.Tape()


def naive(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
    magnitude = t.abs()
    return (t.mean(), t.var(), magnitude.mean(), magnitude.max(), (t == 0).float().mean(), t.isfinite().all())


def read(t: torch.Tensor) -> torch.Tensor:
    # bfloat16 is read as half as many float32: the limit is that of its bytes.
    return (t.view(-1).view(torch.float32) if t.dtype == torch.bfloat16 else t).sum()


def alternate(
    rivals: dict[str, Callable[[], object]], tapes: dict[str, stats.Tape], rounds: int, repeats: int
) -> dict[str, float]:
    """Median CPU seconds per call of each rival."""
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, call in rivals.items():
            start = time.process_time()
            for _ in range(repeats):
                call()
            times[name].append((time.process_time() - start) / repeats)
        for one in tapes.values():
            one.clear()
    return {name: statistics.median(values) for name, values in times.items()}


def rivals(t: torch.Tensor, tapes: dict[str, stats.Tape]) -> dict[str, Callable[[], object]]:
    ours = {name: partial(one.measure, t) for name, one in tapes.items()}
    return {"read": partial(read, t), **ours, "naive": partial(naive, t)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    start = time.perf_counter()
    compiled = stats.warm_up()
    print(f"warm-up {time.perf_counter() - start:.2f} s, numba {'in use' if compiled else 'missing'}")
    tapes = {"numba": tape(True), "torch": tape(False)}

    print(f"\n{'small tensors, us per call':34}" + "".join(f"{name:>10}" for name in ("torch.sum", *tapes, "naive")))
    for n in SMALL:
        t = torch.randn(n)
        result = alternate(rivals(t, tapes), tapes, arguments.rounds, max(20, 200_000 // (n + 100)))
        print(f"{n:<34}" + "".join(f"{value * 1e6:10.2f}" for value in result.values()))
    p, q = torch.nn.Parameter(torch.randn(200)), torch.randn(200)
    calls: dict[str, Callable[[], object]] = {
        name: partial(one.measure_difference, p, q) for name, one in tapes.items()
    }
    result = alternate(calls, tapes, arguments.rounds, 1000)
    print(f"{'difference of 200':34}{'':10}" + "".join(f"{value * 1e6:10.2f}" for value in result.values()))

    print(f"\n{'large tensors, times the read limit':44}{'GB/s':>8}" + "".join(f"{n:>8}" for n in (*tapes, "naive")))
    for shape in SHAPES:
        normal = torch.randn(shape)
        cases = {"float32": normal, "relu": normal.relu(), "1000 + N": normal + 1000, "bfloat16": normal.bfloat16()}
        for name, t in cases.items():
            result = alternate(rivals(t, tapes), tapes, arguments.rounds, 1)
            limit = result.pop("read")
            speed = t.numel() * t.element_size() / limit / 1e9
            label = f"{shape!s:24}{name}"
            print(f"{label:44}{speed:8.1f}" + "".join(f"{value / limit:8.2f}" for value in result.values()))


if __name__ == "__main__":
    main()

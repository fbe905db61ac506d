"""Cost of fitting a `Standardizer` on a stream: times the memory-read limit, beside scikit-learn and what torch offers.

CPU process time, one thread; the rivals take turns within one run, and the table gives the median of the rounds. The last column is the
largest relative error of a variance against float64.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy loads its BLAS

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

from trimtab.norms.standardizer import Standardizer  # noqa: E402

Array = np.ndarray
Rival = Callable[[Array, int], Array | None]


def chunks(x: Array, size: int) -> Iterator[Array]:
    for start in range(0, len(x), size):
        yield x[start : start + size]


def read(x: Array, size: int) -> None:
    for chunk in chunks(x, size):
        torch.from_numpy(chunk).sum()


def ours(numba: bool, tensors: bool = False) -> Rival:
    def run(x: Array, size: int) -> Array:
        os.environ["TRIMTAB_NO_NUMBA"] = "0" if numba else "1"
        fitted = Standardizer()
        for chunk in chunks(x, size):
            fitted.partial_fit(torch.from_numpy(chunk) if tensors else chunk)
        return fitted.var_

    return run


def scikit_learn(x: Array, size: int) -> Array:
    fitted = StandardScaler()
    for chunk in chunks(x, size):
        fitted.partial_fit(chunk)
    return fitted.var_


def var_mean_and_chan(x: Array, size: int) -> Array:
    n, mean, m2 = 0, torch.zeros(x.shape[1], dtype=torch.float64), torch.zeros(x.shape[1], dtype=torch.float64)
    for chunk in chunks(x, size):
        variance, middle = torch.var_mean(torch.from_numpy(chunk), 0, correction=0)
        k = len(chunk)
        delta = middle.double() - mean
        mean += delta * k / (n + k)
        m2 += variance.double() * k + delta * delta * n * k / (n + k)
        n += k
    return (m2 / n).numpy()


def batch_norm(x: Array, size: int) -> Array:
    norm = torch.nn.BatchNorm1d(x.shape[1], momentum=None, affine=False)
    with torch.no_grad():
        for chunk in chunks(x, size):
            norm(torch.from_numpy(chunk))
    return norm.running_var.numpy()


RIVALS: dict[str, Rival] = {
    "read (torch.sum)": read,
    "trimtab, numba": ours(True),
    "trimtab, numba, tensors": ours(True, tensors=True),
    "trimtab, no numba": ours(False),
    "torch BatchNorm1d(momentum=None)": batch_norm,
    "torch.var_mean and Chan": var_mean_and_chan,
    "sklearn StandardScaler.partial_fit": scikit_learn,
}


def cases(rows: int, features: int) -> Iterator[tuple[str, Array, tuple[str, ...]]]:
    """Name, data, and who is left out."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, features), dtype=np.float32) + np.arange(features, dtype=np.float32)
    torch_only = ("torch BatchNorm1d(momentum=None)", "torch.var_mean and Chan")
    yield f"{rows} x {features} float32", x, ()
    yield f"{rows * features // 4} x 4 float32", x.reshape(-1, 4), torch_only
    yield f"{rows} x {features} float32, columns contiguous", np.asfortranarray(x), torch_only
    gaps = x.copy()
    gaps[::1000, 0] = np.nan
    yield f"{rows} x {features} float32, NaN in every thousandth row", gaps, torch_only
    yield f"{rows // 4} x {features} float64", x[: rows // 4].astype(np.float64), torch_only


def truth(x: Array) -> Array:
    return np.array([np.nanvar(column.astype(np.float64)) for column in x.T])


def measure(x: Array, rivals: dict[str, Rival], size: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Median CPU seconds and error of each."""
    exact = truth(x)
    errors = {}
    for name, run in rivals.items():  # the first run compiles and loads
        found = run(x, size)
        errors[name] = 0.0 if found is None else float(np.max(np.abs(found / exact - 1)))
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(rounds):
        for name in list(rivals) if number % 2 == 0 else reversed(rivals):
            start = time.process_time()
            rivals[name](x, size)
            times[name].append(time.process_time() - start)
    return {name: (statistics.median(values), errors[name]) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--chunk", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--first", action="store_true", help="only the first table")
    parser.add_argument("--json", type=Path, help="write all figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = {}
    for title, x, without in cases(arguments.rows, arguments.features):
        rivals = {name: run for name, run in RIVALS.items() if name not in without}
        found = measure(x, rivals, arguments.chunk, arguments.rounds)
        limit, slow = found["read (torch.sum)"][0], found["sklearn StandardScaler.partial_fit"][0]
        print(f"\n{title}, chunks of {arguments.chunk}")
        print(f"{'':36}{'s':>8}{'GB/s':>8}{'x read':>8}{'x sklearn':>11}{'error':>10}")
        for name, (seconds, error) in found.items():
            speed = x.nbytes / seconds / 1e9
            print(f"{name:36}{seconds:8.3f}{speed:8.2f}{seconds / limit:8.1f}{slow / seconds:11.1f}{error:10.0e}")
        result[title] = {name: {"seconds": seconds, "error": error} for name, (seconds, error) in found.items()}
        if arguments.first:
            break
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What curvature costs beside other tools: CPU seconds, alternated in one run, and peak memory of a process that does it alone.

Batch normalization is in evaluation mode, the only one that every peer has. Peers that do not stop by themselves, or at another
accuracy than they are asked for, get the cheapest setting that reaches it, which a user does not know ("tuned"). The truth is
trimtab's own run to 1e-7 in float64; the tests hold that against a dense Hessian.
"""

import argparse
import contextlib
import copy
import io
import multiprocessing
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "curvature"))
import curvature_workloads as workloads

from trimtab.curvature import density, eigenvalues, ggn_trace, hessian, trace

Result = Any
Method = Callable[[], Result]


class Case:
    """One network, and every method on it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.model, self.batch = workloads.make(name)
        self.model.eval()
        self.criterion = nn.CrossEntropyLoss()
        tight = hessian(self.model, workloads.loss, [self.batch], mode="eval", dtype=torch.float64)
        self.truth = eigenvalues(tight, 5, 1e-7).values
        self.steps = 60 if name == "W1" else 30
        self.tuned: dict[str, Any] = {}

    def error(self, values: Any) -> float:
        """The largest relative error of the five."""
        found = np.array(sorted(map(float, values), key=lambda v: -abs(v)))[:5]
        return float(np.max(np.abs(found - self.truth) / np.abs(self.truth)))

    def operator(self) -> Any:
        return hessian(self.model, workloads.loss, [self.batch], mode="eval")

    # ------------------------------------------------------------------------------------------------ trimtab

    def top(self) -> Result:
        return eigenvalues(self.operator(), 5, 1e-3).values

    def top_again(self) -> Result:
        return eigenvalues(
            hessian(self.model, workloads.loss, [self.batch], mode="eval", method="recompute"), 5, 1e-3
        ).values

    def slq(self) -> Result:
        return density(self.operator(), self.steps, 1)

    def trace_48(self) -> Result:
        return trace(self.operator(), 48)

    def exact_trace(self) -> Result:
        return ggn_trace(self.model, workloads.loss, [self.batch], mode="eval")

    def forward_backward(self) -> Result:
        return torch.autograd.grad(workloads.loss(self.model, self.batch), list(self.model.parameters()))

    # ------------------------------------------------------------------------------------------------ peers

    def curvlinops(self) -> Any:
        from curvlinops import HessianLinearOperator

        return HessianLinearOperator(self.model, self.criterion, list(self.model.parameters()), [self.batch])

    def curvlinops_top(self) -> Result:
        from scipy.sparse.linalg import eigsh

        return eigsh(self.curvlinops().to_scipy(), 5, which="LM", tol=1e-3, return_eigenvectors=False)

    def curvlinops_slq(self) -> Result:
        from curvlinops.papyan2020traces.spectrum import fast_lanczos

        return fast_lanczos(self.curvlinops(), self.steps)

    def curvlinops_trace(self) -> Result:
        from curvlinops import xtrace

        return xtrace(self.curvlinops(), 48)

    def eigenthings(self) -> Any:
        from hessian_eigenthings import HessianOperator

        return HessianOperator(self.model, [self.batch], lambda m, b: self.criterion(m(b[0]), b[1]))

    def eigenthings_top(self) -> Result:
        from hessian_eigenthings import algorithms

        def run(steps: int) -> Any:
            return algorithms.lanczos(self.eigenthings(), k=5, max_iter=steps, tol=1e-3, seed=0).eigenvalues

        return run(self._tuned("eigenthings", run, (10, 13, 16, 18, 20, 24, 28, 32, 40, 50, 64)))

    def eigenthings_slq(self) -> Result:
        from hessian_eigenthings import algorithms

        return algorithms.spectral_density(self.eigenthings(), num_runs=1, lanczos_steps=self.steps, seed=0)

    def eigenthings_trace(self) -> Result:
        from hessian_eigenthings import algorithms

        return algorithms.trace(self.eigenthings(), num_matvecs=48, seed=0)

    def pyhessian_top(self) -> Result:
        import pyhessian

        def run(tol: float) -> Any:
            torch.manual_seed(0)
            return pyhessian.hessian(
                copy.deepcopy(self.model), self.criterion, data=self.batch, cuda=False
            ).eigenvalues(maxIter=600, tol=tol, top_n=5)[0]

        return run(self._tuned("pyhessian", run, (1e-3, 1e-4, 1e-5, 1e-6)))

    def _tuned(self, peer: str, run: Callable[[Any], Any], settings: tuple[Any, ...]) -> Any:
        """The cheapest setting that reaches 1e-3, found once."""
        if peer not in self.tuned:
            self.tuned[peer] = next((s for s in settings if self.error(run(s)) <= 1e-3), settings[-1])
        return self.tuned[peer]


TASKS: dict[str, list[tuple[str, str, str | None]]] = {
    "top 5 at 1e-3": [
        ("trimtab", "top", None),
        ("trimtab, recompute", "top_again", None),
        ("curvlinops + eigsh", "curvlinops_top", "curvlinops"),
        ("PyHessian, tuned", "pyhessian_top", "pyhessian"),
        ("hessian-eigenthings, tuned", "eigenthings_top", "hessian_eigenthings"),
    ],
    "density, 1 draw": [
        ("trimtab", "slq", None),
        ("curvlinops", "curvlinops_slq", "curvlinops"),
        ("hessian-eigenthings", "eigenthings_slq", "hessian_eigenthings"),
    ],
    "trace, 48 products": [
        ("trimtab", "trace_48", None),
        ("curvlinops xtrace", "curvlinops_trace", "curvlinops"),
        ("hessian-eigenthings hutch++", "eigenthings_trace", "hessian_eigenthings"),
    ],
    "exact tr(GGN)": [("trimtab", "exact_trace", None), ("one forward-backward", "forward_backward", None)],
}


def cpu_seconds(method: Method) -> tuple[float, Result]:
    begun = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        result = method()
    return time.process_time() - begun, result


def peak_memory(method: Method) -> float:
    """MiB that a process of its own needs beyond what it begins with."""
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe()

    def work() -> None:
        torch.set_num_threads(1)
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        before = _rss()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            method()
        peak = next(
            int(line.split()[1])
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith("VmHWM")
        )
        its.send(peak / 1024 - before)

    process = context.Process(target=work)
    process.start()
    process.join()
    return float(mine.recv()) if process.exitcode == 0 and mine.poll() else float("nan")


def _rss() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def run(name: str, rounds: int, only: str) -> None:
    case = Case(name)
    count = sum(p.numel() for p in case.model.parameters())
    print(f"{name}: {count} parameters; top five {np.array2string(case.truth, precision=5)}")
    for task, methods in TASKS.items():
        if only not in task or (task.startswith("exact") and name == "W3"):
            continue
        there = [
            (label, getattr(case, method))
            for label, method, package in methods
            if package is None or find_spec(package)
        ]
        seconds: dict[str, list[float]] = {label: [] for label, _ in there}
        last: dict[str, Result] = {}
        for _, method in there:  # once before: ladders are climbed, libraries loaded
            cpu_seconds(method)
        for _ in range(rounds):
            for label, method in there:
                spent, last[label] = cpu_seconds(method)
                seconds[label].append(spent)
        own = statistics.median(seconds["trimtab"])
        for label, method in there:
            mid = statistics.median(seconds[label])
            accuracy = f"  error {case.error(last[label]):.1e}" if task.startswith("top") else ""
            tuned = next(
                (
                    f"  setting {v:g}"
                    for k, v in case.tuned.items()
                    if k[:6] in label.lower().replace("hessian-eigen", "eigen")
                ),
                "",
            )
            memory = f"{peak_memory(method):7.0f} MiB"
            print(
                f"  {task:20s} {label:28s} {mid:8.3f} s  trimtab/it {own / mid:5.2f}  {memory}{accuracy}{tuned}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of a task's name")
    parser.add_argument("--nets", nargs="*", default=["W1", "W2", "W3"])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in arguments.nets:
        run(name, arguments.rounds, arguments.only)


if __name__ == "__main__":
    main()

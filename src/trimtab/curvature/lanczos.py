"""Eigenvalues by Lanczos, each with an error bound, which is what stops the iteration."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.curvature._checks import require_choice, require_count, require_seed, require_tolerance
from trimtab.curvature.krylov import Array, Flags, Krylov
from trimtab.curvature.operator import Operator, random_vector, require_operator
from trimtab.curvature.result import Certificate, certified

LEAST = 12
"""Steps before the bounds are believed: from fewer, a large eigenvalue that the start hardly contains may not have shown yet."""

RUNNING = 4
"""Checks in a row that must pass, for the same reason: in one of sixty runs on real networks the fifth value came two steps after the others had settled, the start being nearly orthogonal to it."""

ROUNDING = 16
"""Rounding of products moves eigenvalues by some units in the last place of the largest one: by 1 to 5 in float32 where it was measured."""


@dataclass(frozen=True, kw_only=True)
class Eigenvalues(Certificate):
    """Some eigenvalues.

    Attributes:
        values: In the order that was asked for.
        error: A bound on each one's absolute error: some eigenvalue lies within |H x - theta x|, whatever the others are; and an
            allowance for rounding, 16 units in the last place of the largest value or what the symmetry test shows.
        expected: What the error is where no eigenvalue was missed, far less: |H x - theta x|^2 over the gap to the next value.
        vectors: One eigenvector a row, (k, n), of unit length.
        converged: Whether each error is within the tolerance.
        tolerance: What was asked for, relative to each value.
        which: "LM" by magnitude, "LA" largest first, "SA" smallest first.
    """

    values: Array
    error: Array
    expected: Array
    vectors: Tensor
    converged: Flags
    tolerance: float
    which: str

    def __str__(self) -> str:
        pairs = ", ".join(f"{v:.5g} ± {e:.1g}" for v, e in zip(self.values, self.error, strict=True))
        missed = len(self.converged) - int(np.sum(self.converged))
        note = f"; {missed} not within the tolerance {self.tolerance:g}" if missed else ""
        return f"eigenvalues {pairs}{note}\n  of the {self.operator}\n  {self.certificate()}"


def eigenvalues(
    operator: Operator,
    k: int = 1,
    tol: float = 1e-3,
    *,
    which: str = "LM",
    max_products: int = 400,
    seed: int = 0,
) -> Eigenvalues:
    """The largest eigenvalues of an operator, and their eigenvectors.

    The iteration stops by itself: when |H x - theta x| of every wanted pair is below `tol` times the value, four times running, and no
    Ritz value behind them can still move past the last one by its own residual. The sharper estimate |H x - theta x|^2 / gap
    (Parlett 1980, section 11.7), by which many codes stop, holds where the gap is known: of two close eigenvalues of which one has not
    shown yet, it passes at a point between them. What is certain is that an eigenvalue lies within the bound of each value. That none
    was missed is not: one whose eigenvector the start hardly contains shows up late, and of one that occurs several times one
    copy is seen.

    Args:
        operator: Of `hessian`, `ggn` or `fisher`.
        k: How many.
        tol: Relative error of each.
        which: "LM" largest by magnitude, "LA" largest, "SA" smallest.
        max_products: Where to give up, `k` at the earliest; values that have not converged by then are marked.
        seed: Of the start.

    Returns:
        Values, bounds, vectors and certificate.
    """
    require_operator(operator)
    require_count("k", k)
    require_count("max_products", max_products)
    require_tolerance("tol", tol)
    require_seed("seed", seed)
    require_choice("which", which, ("LM", "LA", "SA"))
    begun, before = time.perf_counter(), operator.products
    size = operator.shape[0]
    k = min(k, size)
    krylov = Krylov(operator, random_vector(operator, seed))
    passed = 0
    while True:
        krylov.step()
        finished = krylov.complete or len(krylov) >= max(k, max_products)
        if len(krylov) < min(size, max(LEAST, k + 2)) + krylov.renewed and not finished:
            continue
        theta, s = _ordered(krylov, which)
        residuals = np.zeros(len(theta)) if krylov.complete else np.abs(krylov.beta[-1] * s[-1])
        rounding = max(krylov.asymmetry, ROUNDING * float(torch.finfo(operator.dtype).eps) * float(np.abs(theta).max()))
        good = residuals[:k] <= np.maximum(tol * np.abs(theta[:k]), rounding)
        settled = bool(good.all()) and not _may_pass(theta, residuals, k, which, tol)
        passed = passed + 1 if settled else 0
        if passed == RUNNING or finished:
            break
    vectors = torch.from_numpy(s[:, :k].T.copy()).to(operator.device, operator.dtype) @ krylov.basis
    more: dict[str, Any] = certified(operator, krylov.symmetry, operator.products - before, time.perf_counter() - begun)
    return Eigenvalues(
        values=theta[:k],
        error=residuals[:k] + rounding,
        expected=_expected(theta, residuals, k) + rounding,
        vectors=vectors,
        converged=good,
        tolerance=tol,
        which=which,
        **more,
    )


def _ordered(krylov: Krylov, which: str) -> tuple[Array, Array]:
    theta, s = krylov.ritz()
    key = {"LM": -np.abs(theta), "LA": -theta, "SA": theta}[which]
    order = np.argsort(key, kind="stable")
    return theta[order], s[:, order]


def _may_pass(theta: Array, residuals: Array, k: int, which: str, tol: float) -> bool:
    """Whether a Ritz value behind the wanted ones may still move past the last of them: by its residual."""
    rank = {"LM": np.abs(theta), "LA": theta, "SA": -theta}[which]
    return bool(np.any(rank[k:] + residuals[k:] > rank[k - 1] + tol * abs(rank[k - 1])))


def _expected(theta: Array, residuals: Array, k: int) -> Array:
    """min(r, r^2 / gap), the gap to another Ritz value being less that value's own residual: one that has not settled makes no gap."""
    r = residuals[:k]
    distance = np.abs(theta[:k, None] - theta[None]) - residuals[None]
    distance[np.arange(k), np.arange(k)] = np.inf
    gap = distance.min(1, initial=np.inf)
    sharp: Array = np.minimum(r, np.divide(r**2, gap, out=r.copy(), where=gap > r))
    return sharp

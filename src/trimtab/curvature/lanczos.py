"""Eigenvalues by Lanczos, each with an error bound, which is what stops the iteration."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.curvature._checks import require_choice, require_count, require_tolerance
from trimtab.curvature.krylov import Array, Flags, Krylov
from trimtab.curvature.operator import Operator, random_vector
from trimtab.curvature.result import Certificate, certified

LEAST = 12
"""Steps before the bounds are believed: from fewer, a large eigenvalue that the start hardly contains may not have shown yet."""

TWICE = 2
"""Checks in a row that must pass, for the same reason."""


ROUNDING = 16
"""Rounding of products moves eigenvalues by some units in the last place of the largest one: by 1 to 5 in float32 where it was measured."""


@dataclass(frozen=True, kw_only=True)
class Eigenvalues(Certificate):
    """Some eigenvalues.

    Attributes:
        values: In the order that was asked for.
        error: A bound on each one's absolute error: the residual r, or r squared over the gap where that is smaller; and an
            allowance for rounding, 16 units in the last place of the largest value or what the symmetry test shows.
        residual: |H x - theta x|: some eigenvalue lies within it, whatever the gaps.
        vectors: One eigenvector a row, (k, n), of unit length.
        converged: Whether each error is within the tolerance.
        tolerance: What was asked for, relative to each value.
        which: "LM" by magnitude, "LA" largest first, "SA" smallest first.
    """

    values: Array
    error: Array
    residual: Array
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

    The iteration stops by itself: when the bound of every wanted value is below `tol` times the value, twice running. The bound is
    min(r, r^2 / gap) (Parlett 1980, section 4.5 and 11.7), where the gap to another Ritz value is less that value's own
    residual, so that a neighbour that has not settled makes no gap. Two limits are those of every Krylov method: an
    eigenvalue whose eigenvector the start does not contain cannot be seen, and of one that occurs several times one copy is.

    Args:
        operator: Of `hessian`, `ggn` or `fisher`.
        k: How many.
        tol: Relative error of each.
        which: "LM" largest by magnitude, "LA" largest, "SA" smallest.
        max_products: Where to give up; values that have not converged by then are marked.
        seed: Of the start.

    Returns:
        Values, bounds, vectors and certificate.
    """
    require_count("k", k)
    require_count("max_products", max_products)
    require_tolerance("tol", tol)
    require_choice("which", which, ("LM", "LA", "SA"))
    begun, before = time.perf_counter(), operator.products
    size = operator.shape[0]
    k = min(k, size)
    krylov = Krylov(operator, random_vector(operator, seed))
    passed = 0
    while True:
        krylov.step()
        finished = krylov.complete or len(krylov) >= max_products
        if len(krylov) < min(size, max(LEAST, k + 2)) + krylov.renewed and not finished:
            continue
        theta, s = _ordered(krylov, which)
        bound, residual = bounds(theta, np.abs(krylov.beta[-1] * s[-1]), k)
        if krylov.complete:
            bound, residual = np.zeros(k), np.zeros(k)
        floor = ROUNDING * float(torch.finfo(operator.dtype).eps) * float(np.abs(theta).max())
        good = bound <= np.maximum(tol * np.abs(theta[:k]), floor)
        passed = passed + 1 if bool(good.all()) else 0
        if passed == TWICE or finished:
            break
    rounding = max(krylov.asymmetry, ROUNDING * float(torch.finfo(operator.dtype).eps) * float(np.abs(theta).max()))
    vectors = torch.from_numpy(s[:, :k].T.copy()).to(operator.device, operator.dtype) @ krylov.basis
    more: dict[str, Any] = certified(operator, krylov.symmetry, operator.products - before, time.perf_counter() - begun)
    return Eigenvalues(
        values=theta[:k],
        error=bound + rounding,
        residual=residual + rounding,
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


def bounds(theta: Array, residuals: Array, k: int) -> tuple[Array, Array]:
    """Error bounds of the first k Ritz values.

    Args:
        theta: All Ritz values.
        residuals: |H x - theta x| of each.
        k: How many are wanted.

    Returns:
        min(r, r^2 / gap), and r.
    """
    r = residuals[:k]
    distance = np.abs(theta[:k, None] - theta[None]) - residuals[None]
    distance[np.arange(k), np.arange(k)] = np.inf
    gap = distance.min(1)
    tight = np.divide(r**2, gap, out=r.copy(), where=gap > r)
    return np.minimum(r, tight), r

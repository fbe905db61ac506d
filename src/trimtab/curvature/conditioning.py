"""How unequal the curvatures are, without the condition number: a network's Hessian has negative and exactly zero eigenvalues.

Reported instead: lambda_1 / lambda_K, K the number of classes, which tells outliers from the bulk (Ghorbani et al. 2019, arXiv 1901.10159);
the largest magnitude over quantiles of the magnitudes; and how many eigenvalues are zero. Where the matrix is small all of it is
exact; else quantiles and zeros are bounded by the spectral density, and the bounds are far apart where it does not resolve them.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trimtab.curvature._checks import require_count, require_seed
from trimtab.curvature.density import density
from trimtab.curvature.krylov import Array
from trimtab.curvature.lanczos import eigenvalues
from trimtab.curvature.operator import Operator, require_operator
from trimtab.curvature.result import Certificate, certified

EXACT = 2000
"""Rows up to which the matrix is made and all eigenvalues are computed."""

QUANTILES = (0.5, 0.1)

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Conditioning(Certificate):
    """How unequal the eigenvalues are.

    Attributes:
        largest: Largest magnitude.
        error: A bound on its error.
        outliers: lambda_1 / lambda_K, by magnitude.
        outliers_error: A bound on its error.
        classes: K.
        ratios: The largest magnitude over each quantile of the magnitudes, by the quantile's share: bounds; infinite where zero.
        zeros: The share of eigenvalues of at most `zero` times the largest: bounds.
        zero: What counts as zero, relative to the largest.
        exact: Whether all eigenvalues were computed.
    """

    largest: float
    error: float
    outliers: float
    outliers_error: float
    classes: int
    ratios: dict[float, Interval]
    zeros: Interval
    zero: float
    exact: bool

    def __str__(self) -> str:
        def between(low: float, high: float, form: str) -> str:
            return format(low, form) if low == high else f"{low:{form}} to {high:{form}}"

        quantiles = ", ".join(
            f"over the {share:.0%} quantile {between(*pair, '.4g')}" for share, pair in self.ratios.items()
        )
        return (
            f"largest {self.largest:.5g} ± {self.error:.1g}; lambda_1/lambda_{self.classes} {self.outliers:.4g} ± {self.outliers_error:.1g}; "
            f"largest {quantiles}; zero (up to {self.zero:.0e} of the largest): {between(*self.zeros, '.1%')}"
            f"{'' if self.exact else ' (bounds from the density)'}\n  of the {self.operator}\n  {self.certificate()}"
        )


def conditioning(
    operator: Operator,
    classes: int = 10,
    *,
    tol: float = 1e-3,
    steps: int = 60,
    draws: int = 4,
    zero: float | None = None,
    seed: int = 0,
) -> Conditioning:
    """How unequal the curvatures are.

    Args:
        operator: Of `hessian`, `ggn` or `fisher`.
        classes: K: there are about as many outliers as classes.
        tol: Of the eigenvalues.
        steps: As for `density`.
        draws: As for `density`.
        zero: Magnitude relative to the largest up to which an eigenvalue counts as zero; None for what rounding leaves of one.
        seed: Of random vectors.

    Returns:
        The ratios, exact up to 2000 rows.
    """
    require_operator(operator)
    require_count("classes", classes)
    require_seed("seed", seed)
    begun, before = time.perf_counter(), operator.products
    eps = float(torch.finfo(operator.dtype).eps)
    exact = operator.shape[0] <= EXACT
    classes = min(classes, operator.shape[0])
    if exact:
        zero = 100 * eps if zero is None else zero
        dense = operator.dense().double()
        skew = float((dense - dense.T).abs().max()) / max(float(dense.abs().max()), 1e-300)
        every = np.sort(np.abs(torch.linalg.eigvalsh((dense + dense.T) / 2).cpu().numpy()))[::-1]
        top, rounding = every[:classes], 16 * eps * every[0]
        errors = np.full(classes, rounding)
        quantiles = {s: (q, q) for s in QUANTILES for q in [_quantile(every, s, zero)]}
        share = float(np.mean(every <= zero * every[0]))
        zeros = (share, share)
    else:
        found = eigenvalues(operator, classes, tol, seed=seed)
        spread = density(operator, steps, draws, seed=seed + 1)
        zero = 1e-4 if zero is None else zero
        top, errors, skew = np.abs(found.values), found.error, max(found.symmetry, spread.symmetry)
        quantiles = {s: spread.magnitude_quantile(s) for s in QUANTILES}
        low, high, _ = spread.share_near_zero(zero * float(top[0]))
        zeros = (low, high)
    ratio, error = _ratio(top, errors)
    more: dict[str, Any] = certified(operator, skew, operator.products - before, time.perf_counter() - begun)
    return Conditioning(
        largest=float(top[0]),
        error=float(errors[0]),
        outliers=ratio,
        outliers_error=error,
        classes=classes,
        ratios={s: (_over(top[0], high), _over(top[0], low)) for s, (low, high) in quantiles.items()},
        zeros=zeros,
        zero=zero,
        exact=exact,
        **more,
    )


def _quantile(descending: Array, share: float, zero: float) -> float:
    """Of magnitudes in descending order; 0 where it is zero up to rounding."""
    value = float(descending[len(descending) - max(1, int(np.ceil(share * len(descending))))])
    return value if value > zero * descending[0] else 0.0


def _over(largest: float, quantile: float) -> float:
    return float(largest) / quantile if quantile > 0 else float("inf")


def _ratio(top: Array, errors: Array) -> tuple[float, float]:
    """lambda_1 / lambda_K and a bound on its error."""
    first, last = float(top[0]), float(top[-1])
    least = last - float(errors[-1])
    if least <= 0:
        return _over(first, last), float("inf")
    return first / last, (first + float(errors[0])) / least - first / last

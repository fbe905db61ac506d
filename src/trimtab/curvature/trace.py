"""The trace by random vectors: XTrace (Epperly, Tropp and Webber 2024) and Hutch++ (Meyer et al. 2021), with standard errors.

Both take the part of the operator that a few products find out of the randomness: Hutchinson's estimate, the mean of v'Hv,
scatters by sqrt(2/m) |H|_F, theirs by what is left of H without its leading eigenvectors. XTrace uses each vector for both parts
in turn, and its standard error is the scatter of the estimates that leave one vector out.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.curvature._checks import CurvatureError, require_choice, require_count, require_seed, require_tolerance
from trimtab.curvature.operator import Operator, require_operator
from trimtab.curvature.result import Certificate, certified

METHODS = ("xtrace", "hutch++")


@dataclass(frozen=True, kw_only=True)
class Trace(Certificate):
    """A trace.

    Attributes:
        value: The estimate; the trace itself where `error` is 0 and `method` "exact".
        error: Its standard error.
        method: "exact", "xtrace" or "hutch++".
    """

    value: float
    error: float
    method: str

    def __str__(self) -> str:
        return f"trace {self.value:.6g} ± {self.error:.2g} ({self.method})\n  of the {self.operator}\n  {self.certificate()}"


def trace(
    operator: Operator,
    products: int = 48,
    *,
    tol: float | None = None,
    max_products: int = 960,
    method: str = "xtrace",
    seed: int = 0,
) -> Trace:
    """The sum of the eigenvalues.

    Args:
        operator: Of `hessian`, `ggn` or `fisher`. Where it has no more rows than `products`, the trace is exact.
        products: Products with a vector for one estimate.
        tol: Repeat until the standard error is below this share of the estimate; None for one estimate. It is the mean of
            independent estimates, so its error falls like one over the root of their number.
        max_products: Where to give up with that.
        method: "xtrace" or "hutch++".
        seed: Of the random vectors.

    Returns:
        Value, standard error and certificate.

    Raises:
        CurvatureError: An argument is not what it must be, or a product is not finite.
    """
    require_operator(operator)
    require_choice("method", method, METHODS)
    require_count("products", products, 6)
    require_count("max_products", max_products)
    require_seed("seed", seed)
    if tol is not None:
        require_tolerance("tol", tol)
    begun, before = time.perf_counter(), operator.products
    values: list[float] = []
    errors: list[float] = []
    symmetry = 0.0
    exact = operator.shape[0] <= products
    generator = torch.Generator().manual_seed(seed)
    while True:
        if exact:
            dense = operator.dense().double()
            value, error = float(dense.trace()), 0.0
            skew = _relative_skew(dense)
        elif method == "xtrace":
            value, error, skew = xtrace(operator, products // 2, generator)
        else:
            value, error, skew = hutch_plus_plus(operator, products // 3, generator)
        if not math.isfinite(value):
            raise CurvatureError(
                "a product with the operator is not finite: some batch has a loss or gradient that is NaN or infinite"
            )
        values.append(value)
        errors.append(error)
        symmetry = max(symmetry, skew)
        mean, spread = _pooled(values, errors)
        used = operator.products - before
        if exact or tol is None or spread <= tol * abs(mean) or used + products > max_products:
            break
    more: dict[str, Any] = certified(operator, symmetry, used, time.perf_counter() - begun)
    return Trace(value=mean, error=spread, method="exact" if exact else method, **more)


def _pooled(values: list[float], errors: list[float]) -> tuple[float, float]:
    """Mean of independent estimates, and the larger of the two standard errors that it has."""
    count = len(values)
    mean = sum(values) / count
    own = math.sqrt(sum(e * e for e in errors)) / count
    if count == 1:
        return mean, own
    between = math.sqrt(sum((v - mean) ** 2 for v in values) / (count - 1) / count)
    return mean, max(own, between) if count > 3 else own


def xtrace(operator: Operator, count: int, generator: torch.Generator) -> tuple[float, float, float]:
    """XTrace with spherical test vectors (Epperly, Tropp and Webber 2024, SIAM J. Matrix Anal. Appl. 45, algorithm 2.1 as improved in section 2.3).

    Args:
        operator: H.
        count: Test vectors; two products each.
        generator: Of the test vectors.

    Returns:
        Estimate, standard error, and relative asymmetry.
    """
    n = operator.shape[0]
    omega = torch.randn(n, count, generator=generator, dtype=torch.float64)
    omega = (omega * (math.sqrt(n) / omega.norm(dim=0))).to(operator.device)
    y = (operator @ omega).double()
    skew = _relative_skew(omega.T @ y)
    q, r = torch.linalg.qr(y)
    diagonal = r.diagonal().abs()
    if float(diagonal.min()) <= 1e-6 * float(
        diagonal.max()
    ):  # the rank is below `count`: Q has H's whole range, all but rounding
        z = (operator @ q).double()
        return float((q * z).sum()), 0.0, skew
    z = (operator @ q).double()
    w, t, h = q.T @ omega, z.T @ omega, q.T @ z
    s = torch.linalg.inv(r).T
    s = s / s.norm(dim=0)  # column i: the direction of Q that only vector i has contributed

    def columns(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(0)

    sw = columns(s, w)
    scale = (n - count + 1) / (n - columns(w, w) + sw.square())
    estimates = (
        h.trace()
        - columns(s, h @ s)
        + (
            columns(w, h @ w)
            - columns(t, w)
            + columns(t - h.T @ w, s) * sw
            + sw.square() * columns(s, h @ s)
            + sw * columns(s, r - h @ w)
        )
        * scale
    )
    return float(estimates.mean()), float(estimates.std() / math.sqrt(count)), skew


def hutch_plus_plus(operator: Operator, count: int, generator: torch.Generator) -> tuple[float, float, float]:
    """Hutch++ (Meyer, Musco, Musco and Woodruff 2021, algorithm 1).

    Args:
        operator: H.
        count: A third of the products: for the leading part, for its trace, and for the rest by Hutchinson.
        generator: Of the test vectors.

    Returns:
        Estimate, standard error of the rest, and relative asymmetry.
    """
    n = operator.shape[0]

    def signs() -> Tensor:
        return torch.randint(2, (n, count), generator=generator).double().to(operator.device) * 2 - 1

    first = signs()
    y = (operator @ first).double()
    skew = _relative_skew(first.T @ y)
    q, _ = torch.linalg.qr(y)
    leading = float((q * (operator @ q).double()).sum())
    rest = signs()
    rest = rest - q @ (q.T @ rest)
    each = (rest * (operator @ rest).double()).sum(0)
    return leading + float(each.mean()), float(each.std() / math.sqrt(count)), skew


def _relative_skew(projected: Tensor) -> float:
    """Largest |u'Hv - v'Hu| of some vectors, relative to the largest |u'Hv|."""
    scale = float(projected.abs().max())
    return float((projected - projected.T).abs().max()) / scale if scale else 0.0

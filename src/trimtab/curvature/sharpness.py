"""Sharpness against the step: the largest eigenvalue of the Hessian over what the setup's optimizer bears.

Below 1 a step comes down; training at a constant rate lets the sharpness rise to about 1 and stay there, the edge of stability
(Cohen et al. 2021, arXiv:2103.00065; with Adam 2022, arXiv:2207.14484).
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trimtab._setup import Setup
from trimtab.curvature._checks import CurvatureError, kind
from trimtab.curvature.hessian import hessian
from trimtab.curvature.lanczos import eigenvalues
from trimtab.curvature.preconditioner import preconditioned
from trimtab.curvature.problem import problem
from trimtab.curvature.result import Certificate
from trimtab.curvature.stability import StabilityLimit, stability_limit


@dataclass(frozen=True, kw_only=True)
class Sharpness(Certificate):
    """The largest eigenvalue beside its limit.

    Attributes:
        value: Largest eigenvalue of the Hessian; of an optimizer that preconditions, of the preconditioned one.
        error: A bound on its absolute error.
        limit: What the optimizer bears.
        vector: The eigenvector, (n,), of unit length: the direction that turns unstable first.
        converged: Whether `error` is within the tolerance.
    """

    value: float
    error: float
    limit: StabilityLimit
    vector: Tensor
    converged: bool

    @property
    def ratio(self) -> float:
        """Sharpness over limit: eta lambda_max / 2 of gradient descent, 1 at the edge of stability."""
        return self.value / self.limit.value

    def __str__(self) -> str:
        return (
            f"sharpness {self.value:.5g} ± {self.error:.1g}, {self.ratio:.3g} of the limit {self.limit.value:.5g} = "
            f"{self.limit.formula} at eta = {self.limit.rate:g}\n  of the {self.operator}\n  {self.certificate()}"
        )


def sharpness(
    setup: Setup,
    *,
    tol: float = 1e-2,
    max_products: int = 400,
    seed_of_start: int = 0,
    method: str = "auto",
    **options: Any,
) -> Sharpness:
    """The largest eigenvalue of the Hessian that the setup's optimizer meets now, beside the largest that it bears.

    Args:
        setup: A setup with SGD, Adam, AdamW or RMSprop, in whatever state it is.
        tol: Relative error of the eigenvalue.
        max_products: Where to give up; the result says whether it has converged.
        seed_of_start: Of the start of the iteration.
        method: As for `hessian`.
        **options: Of `problem`: batches (how many of the setup's, or a list), mode ("train" unless given), parameters, seed, dtype,
            weights, reduction.

    Returns:
        Eigenvalue, limit and certificate.

    Raises:
        CurvatureError: An argument is not what it must be, or the limit of the optimizer is not known.
    """
    if not isinstance(setup, Setup):
        raise CurvatureError(f"setup must be a trimtab.Setup, whose optimizer sets the limit, but it is {kind(setup)}")
    limit = stability_limit(setup.optimizers)
    found = problem(setup, **options)
    groups = [group for optimizer in setup.optimizers for group in optimizer.param_groups]
    plain = not limit.preconditioned and all(float(g["lr"]) == limit.rate and not g["weight_decay"] for g in groups)
    held = {id(p) for group in groups for p in group["params"]}
    plain = plain and all(id(p) in held for p in setup.model.parameters() if p.requires_grad)
    operator = hessian(found, method=method) if plain else preconditioned(setup, found, limit.rate, method)
    top = eigenvalues(operator, 1, tol, which="LA", max_products=max_products, seed=seed_of_start)
    return Sharpness(
        value=float(top.values[0]),
        error=float(top.error[0]),
        limit=limit,
        vector=top.vectors[0],
        converged=bool(top.converged[0]),
        symmetry=top.symmetry,
        products=top.products,
        seconds=top.seconds,
        mode=top.mode,
        operator=top.operator,
        precision=top.precision,
        symmetric=top.symmetric,
    )

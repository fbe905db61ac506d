"""Sharpness of weights whose scale the loss does not see.

Before a normalization, loss(c w) = loss(w): so g(c w) = g(w) / c, w'g = 0, and H(c w) = H(w) / c^2. The largest eigenvalue of H then says
how long w is as much as how sharp the loss is. With each group of weights in units of its own length,

    max over v of v' D H D v / v'v,      D = |w_group| on the weights of the group

does not change with any group's scale; it is what a relative step sees (van Laarhoven 2017, arXiv 1706.05350).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.curvature._checks import CurvatureError, require_tolerance
from trimtab.curvature.hessian import as_problem, hessian
from trimtab.curvature.lanczos import Eigenvalues, eigenvalues
from trimtab.curvature.operator import Operator
from trimtab.curvature.problem import Problem

FACTOR = 1.5
"""Each group is made so much longer to see whether the loss notices."""


@dataclass(frozen=True)
class ScaleFreeSharpness:
    """The largest curvature of the scale-invariant weights, each group in units of its own length.

    Attributes:
        value: The largest eigenvalue of D H D by magnitude.
        error: A bound on its error.
        groups: Number of scale-invariant groups, by parameter: its rows, or one for all of it.
        eigenvalues: The certificate: bound, symmetry, products, mode, seconds.
    """

    value: float
    error: float
    groups: dict[str, int]
    eigenvalues: Eigenvalues

    @property
    def symmetry(self) -> float:
        """As of the eigenvalues."""
        return self.eigenvalues.symmetry

    @property
    def products(self) -> int:
        """As of the eigenvalues."""
        return self.eigenvalues.products

    @property
    def mode(self) -> str:
        """As of the eigenvalues."""
        return self.eigenvalues.mode

    @property
    def seconds(self) -> float:
        """As of the eigenvalues."""
        return self.eigenvalues.seconds

    def __str__(self) -> str:
        where = ", ".join(f"{name} ({count})" for name, count in self.groups.items())
        return f"scale-free sharpness {self.value:.5g} ± {self.error:.1g}, of groups in {where}\n  {self.eigenvalues.certificate()}"


def scale_free_sharpness(
    setup_or_model: Any,
    loss: Any = None,
    batches: Any = None,
    *,
    tol: float = 1e-3,
    method: str = "auto",
    **options: Any,
) -> ScaleFreeSharpness:
    """The largest curvature of the scale-invariant weights, which does not change with their scale.

    Which weights they are is measured: rows of a parameter, or a parameter as a whole, whose length the loss does not see.

    Args:
        setup_or_model: A setup; a model together with `loss` and `batches`; or a problem.
        loss: `loss(model, batch)` gives a scalar tensor.
        batches: As for `problem`.
        tol: Relative error of the value.
        method: As for `hessian`.
        **options: Of `problem`: mode, parameters, seed, dtype, weights, reduction.

    Returns:
        Value, bound and certificate.

    Raises:
        CurvatureError: No weight is scale-invariant.
    """
    require_tolerance("tol", tol)
    made = as_problem(setup_or_model, loss, batches, **options)
    found = invariant_groups(made)
    if not found:
        raise CurvatureError(
            "no weight of the model is scale-invariant: the loss changes when any of them is made longer; take eigenvalues(hessian(...))"
        )
    whole = hessian(made, method=method)
    chosen = [i for i, name in enumerate(made.names) if name in found]
    part = whole.restricted(chosen)
    scales = torch.cat([found[made.names[i]].expand_as(made.origin[i]).reshape(-1) for i in chosen])
    values = eigenvalues(_Scaled(part, scales), 1, tol)
    groups = {name: lengths.numel() for name, lengths in found.items()}
    return ScaleFreeSharpness(float(values.values[0]), float(values.error[0]), groups, values)


def invariant_groups(problem: Problem) -> dict[str, Tensor]:
    """Lengths of the groups of weights whose scale the loss does not see.

    A group is a row of a parameter, such as what a unit before a batch normalization sums with, or else the parameter as a whole. It
    counts where the gradient along it is zero (w'g = 0) and the loss stays the same when it is made 1.5 times as long.

    Args:
        problem: The problem.

    Returns:
        By parameter: its rows' lengths, of a shape that multiplies it, or its own length, of one entry.
    """
    value, flat = problem.gradient()
    pieces = problem.pieces(flat)
    # The gradient along w and the loss itself are sums with rounding; batch normalization's eps is seen as well.
    slack = 1e-3
    found = {}
    for i, (name, w, g) in enumerate(zip(problem.names, problem.origin, pieces, strict=True)):
        if w.ndim < 2 or name in problem.unused or not bool(g.any()):
            continue
        axes = tuple(range(1, w.ndim))
        rows = torch.linspace(1.0, FACTOR, len(w), dtype=w.dtype, device=w.device).view(-1, *[1] * len(axes))
        for lengths, along, steep, factors in (
            (w.square().sum(axes, keepdim=True).sqrt(), (w * g).sum(axes), g.square().sum(axes).sqrt(), rows),
            (w.norm().view((1,) * w.ndim), (w * g).sum()[None], g.norm()[None], rows[-1:]),
        ):
            orthogonal = along.abs() <= slack * lengths.reshape(-1) * steep
            if bool(orthogonal.all()) and bool((lengths > 0).all()) and _unseen(problem, i, factors, value, slack):
                found[name] = lengths
                break
    return found


def _unseen(problem: Problem, i: int, factors: Tensor, value: float, slack: float) -> bool:
    """Whether the loss stays the same when one parameter is made longer: each row by a factor of its own, or all of it by one."""
    longer = list(problem.origin)
    longer[i] = longer[i] * factors
    moved = problem.value(problem.vector(longer))
    return abs(moved - value) <= slack * abs(value)


class _Scaled(Operator):
    """D H D."""

    title = "Hessian in units of the weights' lengths"

    def __init__(self, inner: Operator, scales: Tensor) -> None:
        super().__init__(inner.problem, inner.retention, inner.which)
        self._inner = inner
        self._scales = scales

    def _product(self, pieces: Any) -> Any:
        raise NotImplementedError

    def __matmul__(self, other: Tensor) -> Tensor:
        self.products += 1
        return self._scales * (self._inner @ (self._scales * other))

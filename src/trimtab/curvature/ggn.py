"""The generalized Gauss-Newton matrix and the empirical Fisher matrix, by products with the outputs' Jacobian.

With z(theta) the outputs of the model, J = dz/dtheta, l(z) the loss:

    GGN     = sum_b w_b J' (d2l/dz2) J                       (Schraudolph 2002)
    Fisher  = sum_b w_b (1/N_b) sum_n g_n g_n',   g_n = N_b J_n' dl/dz_n, the gradient of sample n's own loss

For a mean over samples, dl/dz_n is 1/N_b of the slope of sample n's loss, so that both need nothing but the scalar loss. A sample
is a row of the output's first axis. Where batch statistics tie the samples of a batch together, J_n is how output n moves with
the parameters, through the statistics too.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.hessian import as_problem
from trimtab.curvature.operator import Operator
from trimtab.curvature.outputs import Outputs, cut_at_outputs, require_curved
from trimtab.curvature.problem import Loss, Problem
from trimtab.curvature.retention import Graphs, Retention, retention_of


class _AtOutputs(Operator):
    """J' M J for some symmetric M at the outputs."""

    def __init__(self, problem: Problem, retention: Retention) -> None:
        super().__init__(problem, retention)
        point = problem.variables()
        self._cuts = Graphs(len(problem.shares), retention, lambda index: cut_at_outputs(problem, index, point))

    def _between(self, cut: Outputs, moved: list[Tensor]) -> list[Tensor]:
        raise NotImplementedError

    def _product(self, pieces: Sequence[Tensor]) -> Sequence[Tensor]:
        total = [torch.zeros_like(piece) for piece in pieces]
        for cut in self._cuts:
            middle = self._between(cut, cut.pushed(self.which, pieces))
            for whole, part in zip(total, cut.pulled_back(self.which, middle), strict=True):
                whole.add_(part, alpha=cut.share)
        return total


class GaussNewton(_AtOutputs):
    """J' (d2l/dz2) J, exact."""

    title = "Gauss-Newton matrix"

    def _between(self, cut: Outputs, moved: list[Tensor]) -> list[Tensor]:
        require_curved(cut)
        return cut.curved(moved)


class EmpiricalFisher(_AtOutputs):
    """The mean of g_n g_n' over samples."""

    title = "empirical Fisher matrix"

    def _between(self, cut: Outputs, moved: list[Tensor]) -> list[Tensor]:
        rows = {slope.shape[0] if slope.ndim else 0 for slope in cut.slopes}
        if len(rows) != 1 or rows == {0}:
            shapes = ", ".join(str(tuple(slope.shape)) for slope in cut.slopes)
            raise CurvatureError(
                f"the outputs of the model must have their samples along the first axis, but their shapes are {shapes}"
            )
        count = rows.pop()
        slopes = [slope.detach() for slope in cut.slopes]
        along = sum((s * m).reshape(count, -1).sum(1) for s, m in zip(slopes, moved, strict=True))
        assert isinstance(along, Tensor)
        scale = float(count) if self.problem.reduction == "mean" else 1.0
        return [scale * slope * along.view(count, *[1] * (slope.ndim - 1)) for slope in slopes]


def ggn(
    setup_or_model: Setup | nn.Module | Problem,
    loss: Loss | None = None,
    batches: Any = None,
    *,
    method: str = "auto",
    **options: Any,
) -> GaussNewton:
    """The generalized Gauss-Newton matrix, as an operator.

    It is the Hessian without the curvature of the model itself, positive semidefinite where the loss is convex in the outputs,
    and the Fisher matrix for cross-entropy and squared error.

    Args:
        setup_or_model: A setup; a model together with `loss` and `batches`; or a problem.
        loss: `loss(model, batch)` calls the model and gives a scalar tensor.
        batches: As for `problem`.
        method: As for `hessian`.
        **options: Of `problem`: mode, parameters, seed, dtype, weights, reduction.

    Returns:
        The operator.
    """
    made = as_problem(setup_or_model, loss, batches, **options)
    return GaussNewton(made, retention_of(made, method))


def fisher(
    setup_or_model: Setup | nn.Module | Problem,
    loss: Loss | None = None,
    batches: Any = None,
    *,
    method: str = "auto",
    **options: Any,
) -> EmpiricalFisher:
    """The empirical Fisher matrix, the mean of g g' over the samples' own gradients, as an operator.

    Args:
        setup_or_model: A setup; a model together with `loss` and `batches`; or a problem.
        loss: `loss(model, batch)` calls the model and gives a scalar tensor.
        batches: As for `problem`.
        method: As for `hessian`.
        **options: Of `problem`: mode, parameters, seed, dtype, weights, reduction.

    Returns:
        The operator.
    """
    made = as_problem(setup_or_model, loss, batches, **options)
    return EmpiricalFisher(made, retention_of(made, method))

"""The Hessian of the loss by double backward: H v = d/dtheta (g(theta)'v), g the gradient with its graph.

Reverse over reverse (Pearlmutter 1994) and not `jvp(jacrev(...))`, which is `torch.func.hessian`: in torch 2.13 that one is wrong
and one-sided through affine LayerNorm and batch normalization in training mode (`docs/curvature.md`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.curvature.operator import Operator
from trimtab.curvature.problem import Loss, Problem, problem
from trimtab.curvature.retention import Graphs, Retention, retention_of


class Hessian(Operator):
    """H = sum_b w_b d2 L_b / d theta2."""

    title = "Hessian"

    def __init__(self, problem: Problem, retention: Retention) -> None:
        super().__init__(problem, retention)
        self._point = problem.variables()
        self._gradients = Graphs(len(problem.shares), retention, self._gradient)

    def _gradient(self, index: int) -> tuple[Tensor | None, ...]:
        """The gradient of a batch's loss, with its graph; None for parameters without influence."""
        loss = self.problem.batch_loss(index, self._point)
        return torch.autograd.grad(loss, self._point, create_graph=True, allow_unused=True)

    def _product(self, pieces: Sequence[Tensor]) -> Sequence[Tensor]:
        total = [torch.zeros_like(piece) for piece in pieces]
        for share, gradient in zip(self.problem.shares, self._gradients, strict=True):
            # A parameter that the loss is linear in, or does not use, has a gradient without a graph: a row of zeros.
            rows = [
                (g, v)
                for i, v in zip(self.which, pieces, strict=True)
                if (g := gradient[i]) is not None and g.requires_grad
            ]
            if not rows:
                continue
            columns = [self._point[i] for i in self.which]
            parts = torch.autograd.grad(
                [g for g, _ in rows],
                columns,
                [v for _, v in rows],
                retain_graph=self.retention.method == "retained",
                allow_unused=True,
            )
            for whole, part in zip(total, parts, strict=True):
                if part is not None:
                    whole.add_(part, alpha=share)
        return total


def hessian(
    setup_or_model: Setup | nn.Module | Problem,
    loss: Loss | None = None,
    batches: Any = None,
    *,
    method: str = "auto",
    **options: Any,
) -> Hessian:
    """The Hessian of a loss with respect to the parameters, as an operator.

    Args:
        setup_or_model: A setup; a model together with `loss` and `batches`; or a problem.
        loss: `loss(model, batch)` gives a scalar tensor.
        batches: As for `problem`.
        method: "retained" keeps graphs between products, "recompute" does not and takes 1.4 to 1.5 times as long; "auto"
            decides by an estimate of memory, which `print(operator)` shows before anything is computed.
        **options: Of `problem`: mode, parameters, seed, dtype, weights, reduction.

    Returns:
        The operator.
    """
    made = as_problem(setup_or_model, loss, batches, **options)
    return Hessian(made, retention_of(made, method))


def as_problem(given: Setup | nn.Module | Problem, loss: Loss | None, batches: Any, **options: Any) -> Problem:
    """What was given, as a problem.

    Args:
        given: A setup, a model or a problem.
        loss: As for `problem`.
        batches: As for `problem`.
        **options: As for `problem`; a problem has them already.

    Returns:
        The problem.

    Raises:
        TypeError: Something was given beside a problem.
    """
    if not isinstance(given, Problem):
        return problem(given, loss, batches, **options)
    if loss is not None or batches is not None or options:
        raise TypeError("a problem has its loss, batches and options already; give them to trimtab.curvature.problem")
    return given

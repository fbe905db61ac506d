"""The diagonal by which an optimizer divides: what turns the Hessian into the one that its next step meets."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, optim

from trimtab._setup import Setup
from trimtab.curvature.hessian import Hessian
from trimtab.curvature.problem import Problem
from trimtab.curvature.real_step import own_parameters
from trimtab.curvature.retention import Retention, retention_of


class PreconditionedHessian(Hessian):
    """S (H + decay) S with a diagonal S, whose eigenvalues are those of S^2 (H + decay).

    Args:
        problem: The loss.
        retention: Whether graphs are kept.
        scale: The diagonal of S, flat.
        decay: What weight decay adds to the diagonal of H, flat.
    """

    title = "preconditioned Hessian"

    def __init__(self, problem: Problem, retention: Retention, scale: Tensor, decay: Tensor) -> None:
        super().__init__(problem, retention)
        if bool(scale.eq(1.0).all()):
            self.title = "Hessian with weight decay"
        self._scales = problem.pieces(scale)
        self._decays = problem.pieces(decay * scale.square())

    def _product(self, pieces: Sequence[Tensor]) -> Sequence[Tensor]:
        scales = [self._scales[i] for i in self.which]
        inner = super()._product([s * p for s, p in zip(scales, pieces, strict=True)])
        return [s * p for s, p in zip(scales, inner, strict=True)]

    def __matmul__(self, other: Tensor) -> Tensor:
        result = super().__matmul__(other)
        if other.ndim == 2:  # column by column, through here
            return result
        added = torch.cat([self._decays[i].reshape(-1) for i in self.which])  # once, whatever the number of ranks
        return result + added * other.detach().to(self.device, self.dtype)


def preconditioned(setup: Setup, problem: Problem, rate: float, method: str = "auto") -> PreconditionedHessian:
    """The Hessian as the setup's optimizer meets it at its next step, at the given learning rate.

    Adam divides by P = (1 - beta_1^t) (sqrt(v / (1 - beta_2^t)) + eps) and RMSprop by sqrt(v) + eps, v with the gradient of these
    batches in it, as it will be in the next step. A group with a lower rate counts as divided by more; what no optimizer
    moves, as divided by infinity.

    Args:
        setup: Whose optimizers are asked.
        problem: A problem of the setup's model, whose snapshot is where the model is now.
        rate: The learning rate that the limit is taken at.
        method: As for `hessian`.

    Returns:
        The operator.
    """
    named = own_parameters(setup.model, problem)
    groups = {id(p): (one, group) for one in setup.optimizers for group in one.param_groups for p in group["params"]}
    gradients = problem.pieces(problem.gradient()[1])
    scales, decays = [], []
    for own, value, gradient in zip(named, problem.origin, gradients, strict=True):
        optimizer, group = groups.get(id(own), (None, None))
        if optimizer is None or group is None:
            scales.append(torch.zeros_like(value))
            decays.append(torch.zeros_like(value))
            continue
        decay = 0.0 if group.get("decoupled_weight_decay") else float(group.get("weight_decay", 0.0))
        divisor = _divisor(optimizer, group, optimizer.state.get(own, {}), gradient.double() + decay * value.double())
        scales.append((float(group["lr"]) / rate / divisor).sqrt().to(value.dtype))
        decays.append(torch.full_like(value, decay))
    return PreconditionedHessian(problem, retention_of(problem, method), problem.vector(scales), problem.vector(decays))


def _divisor(optimizer: optim.Optimizer, group: dict[str, Any], state: dict[str, Any], gradient: Tensor) -> Tensor:
    """What the next step divides the gradient by."""
    divisor: Tensor
    square = gradient.square()

    def averaged(name: str, beta: float, new: Tensor) -> Tensor:
        old = state.get(name)
        return (1 - beta) * new + (beta * old.to(new.device, new.dtype) if isinstance(old, Tensor) else 0.0)

    if isinstance(optimizer, optim.Adam):
        first, second = (float(beta) for beta in group["betas"])
        step = float(state.get("step", 0)) + 1
        v = averaged("exp_avg_sq", second, square)
        if group["amsgrad"] and isinstance(state.get("max_exp_avg_sq"), Tensor):
            v = torch.maximum(v, state["max_exp_avg_sq"].to(v.device, v.dtype))
        divisor = (1 - first**step) * ((v / (1 - second**step)).sqrt() + float(group["eps"]))
    elif isinstance(optimizer, optim.RMSprop):
        v = averaged("square_avg", float(group["alpha"]), square)
        if group["centered"]:
            v = (v - averaged("grad_avg", float(group["alpha"]), gradient).square()).clamp(min=0)
        divisor = v.sqrt() + float(group["eps"])
    else:
        divisor = torch.ones_like(gradient)
    return divisor

"""The step that an optimizer would take now, from a gradient, without taking it."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab._setup import Setup
from trimtab._torch import step_unheard
from trimtab.curvature._checks import CurvatureError, kind
from trimtab.curvature.problem import Problem
from trimtab.curvature.shadow import unwrapped


def real_step(setup: Setup, problem: Problem, gradient: Tensor) -> Tensor:
    """What `optimizer.step()` would add to the parameters, from copies of the optimizers with the state they have.

    Momentum, preconditioner, weight decay and learning rate are in it. What the setup's own `step` does besides (clipping, a
    gradient penalty) is not.

    Args:
        setup: Whose optimizers are asked; they and the model stay as they are.
        problem: A problem of the setup's model, whose snapshot is where the model is now.
        gradient: Flat, at the snapshot.

    Returns:
        The step, flat (size,); zero for parameters that no optimizer has.

    Raises:
        CurvatureError: An optimizer cannot be copied or needs more than a gradient, or the model has moved since.
    """
    named = own_parameters(setup.model, problem)
    before = [p.detach().to(p.dtype, copy=True) for p in named]
    pieces = problem.pieces(gradient)
    copies = [nn.Parameter(p.clone()) for p in before]
    for name, own, piece in zip(problem.names, copies, pieces, strict=True):
        if name not in problem.unused:  # backward gives those no gradient, and optimizers pass over them
            own.grad = piece.to(own.device, own.dtype, copy=True)
    for optimizer in setup.optimizers:
        memo: dict[int, Any] = {id(p): c for p, c in zip(named, copies, strict=True)}
        for group in optimizer.param_groups:
            for p in group["params"]:
                if id(p) not in memo:  # not of this problem: there, but without a gradient
                    memo[id(p)] = nn.Parameter(p.detach().clone())
        try:
            double = copy.deepcopy(optimizer, memo)
            with torch.inference_mode(False), torch.enable_grad():
                step_unheard(double)
        except Exception as error:
            raise CurvatureError(
                f"the step of {type(optimizer).__name__} cannot be computed from a gradient alone "
                f"({type(error).__name__}: {error}); give the step as a flat vector, step=..."
            ) from error
    moved = [c.detach().double() - b.double() for c, b in zip(copies, before, strict=True)]
    return problem.vector([m.to(problem.device, problem.dtype) for m in moved])


def own_parameters(model: nn.Module, problem: Problem) -> list[nn.Parameter]:
    """The model's own parameters that a problem has chosen, which must be where its snapshot was taken.

    Args:
        model: The model.
        problem: A problem of it.

    Returns:
        The parameters, in the problem's order.

    Raises:
        CurvatureError: The model has moved, or is another one.
    """
    named = dict(unwrapped(model).named_parameters())
    for name, value in zip(problem.names, problem.origin, strict=True):
        own = named.get(name)
        if own is None or own.shape != value.shape:
            raise CurvatureError(f"the problem is of another model than the setup: {name} is {kind(own)} there")
        if not torch.equal(own.detach().to(value.device, value.dtype), value):
            raise CurvatureError(
                f"the model has moved since the problem was taken ({name} differs), and the step is that of the model; "
                "make the problem anew"
            )
    return [named[name] for name in problem.names]


def rates(optimizers: tuple[Optimizer, ...]) -> list[float]:
    """The learning rates of all groups."""
    return [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups]

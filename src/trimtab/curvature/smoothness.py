"""How smooth a loss is along the step that training takes: the three measures of Santurkar et al. 2018 (arXiv:1805.11604, fig. 4).

From theta along a direction s, at lengths a:

    loss range                  min and max of L(theta + a s)
    gradient predictiveness     min and max of |g(theta + a s) - g(theta)|
    effective beta-smoothness   max of |g(theta + a s) - g(theta)| / |a s|

All of them on the batch of the step, with batch normalization in training mode. (Training with several learning rates and taking the
envelope of the losses, as some published code does, is another measurement.) One forward and backward pass a length.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.curvature._checks import CurvatureError, kind, require_choice, require_finite
from trimtab.curvature.hessian import as_problem
from trimtab.curvature.problem import Loss, Problem
from trimtab.curvature.real_step import rates, real_step

LENGTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Multiples of the step, where nothing else is said: from a quarter of it to four times as far."""
ALONG = ("step", "gradient")


@dataclass(frozen=True)
class Smoothness:
    """The three measures at several step lengths.

    Attributes:
        lengths: Multiples a of the direction.
        losses: L(theta + a s).
        changes: |g(theta + a s) - g(theta)|.
        distances: |a s|, as the parameters were really moved.
        loss: L(theta).
        gradient_norm: |g(theta)|.
        cosines: Of g(theta + a s) and g(theta).
        along: "step", "gradient", or "given".
        mode: "train" or "eval".
        error: What rounding may add to `value`: epsilon of the dtype times the gradients' length over the shortest distance.
        gradients: Gradients of all batches that were computed.
        seconds: It took.
        products: 0: no product with a Hessian.
    """

    lengths: np.ndarray
    losses: np.ndarray
    changes: np.ndarray
    distances: np.ndarray
    loss: float
    gradient_norm: float
    cosines: np.ndarray
    along: str
    mode: str
    error: float
    gradients: int
    seconds: float
    products: int = 0

    @property
    def loss_range(self) -> tuple[float, float]:
        """Lowest and highest loss along the direction; NaN where one is."""
        return float(self.losses.min()), float(self.losses.max())

    @property
    def gradient_range(self) -> tuple[float, float]:
        """Gradient predictiveness: smallest and largest change of the gradient."""
        return float(self.changes.min()), float(self.changes.max())

    @property
    def values(self) -> np.ndarray:
        """Change of the gradient over distance, at each length."""
        return np.asarray(self.changes / self.distances)

    @property
    def value(self) -> float:
        """Effective beta-smoothness, the largest of them."""
        return float(self.values.max())

    def __str__(self) -> str:
        low, high = self.loss_range
        least, most = self.gradient_range
        return (
            f"along the {self.along}, {len(self.lengths)} lengths, {self.mode} mode: loss {self.loss:.5g} to {low:.5g}..{high:.5g}, "
            f"gradient {self.gradient_norm:.4g} changes by {least:.4g}..{most:.4g}, effective beta {self.value:.4g}"
        )


def smoothness(
    setup_or_model: Setup | nn.Module | Problem,
    loss: Loss | None = None,
    batches: Any = None,
    *,
    along: str = "step",
    step: Tensor | None = None,
    lengths: Sequence[float] | None = None,
    **options: Any,
) -> Smoothness:
    """Loss range, gradient predictiveness and effective beta-smoothness along a step.

    Args:
        setup_or_model: A setup; a model together with `loss` and `batches`; or a problem.
        loss: `loss(model, batch)` gives a scalar tensor.
        batches: As for `problem`.
        along: "step": what the setup's optimizer would do now. "gradient": -g, as in the paper.
        step: A direction of your own, a flat vector, in place of `along`.
        lengths: At least five multiples of the direction. None for 1/4, 1/2, 1, 2 and 4 steps; along the gradient times the
            setup's largest learning rate.
        **options: Of `problem`: mode ("train" unless given), parameters, seed, dtype, weights, reduction.

    Returns:
        The measures.

    Raises:
        CurvatureError: An argument is not what it must be, or there is no step.
    """
    started = time.perf_counter()
    require_choice("along", along, ALONG)
    setup = setup_or_model if isinstance(setup_or_model, Setup) else None
    if setup is None and step is None and (along == "step" or lengths is None):
        raise CurvatureError(
            "only a trimtab.Setup has an optimizer whose step can be followed; give one, or step=vector, "
            'or along="gradient" with lengths'
        )
    problem = as_problem(setup_or_model, loss, batches, **options)
    if step is not None and not isinstance(step, Tensor):
        raise CurvatureError(f"step must be a flat vector of shape ({problem.size},), but it is {kind(step)}")
    value, gradient = problem.gradient()
    if step is not None:
        direction, along = problem.vector(problem.pieces(step.detach())), "given"
    elif along == "step" and setup is not None:
        direction = real_step(setup, problem, gradient)
    else:
        direction = -gradient
    multiples = _lengths(lengths, max(rates(setup.optimizers)) if along == "gradient" and setup is not None else 1.0)
    require_finite("the step", direction)
    if not bool(direction.any()):
        raise CurvatureError("the step is zero everywhere: the gradient or the learning rate is 0")
    rows = [_at(problem, gradient, direction, multiple) for multiple in multiples]
    losses, changes, distances, cosines = (np.array(column) for column in zip(*rows, strict=True))
    length = float(gradient.double().norm())
    return Smoothness(
        np.array(multiples),
        losses,
        changes,
        distances,
        value,
        length,
        cosines,
        along,
        problem.mode,
        torch.finfo(problem.dtype).eps * length / float(distances.min()),
        1 + len(multiples),
        time.perf_counter() - started,
    )


def _at(problem: Problem, gradient: Tensor, direction: Tensor, multiple: float) -> tuple[float, float, float, float]:
    """Loss, change of the gradient, distance and cosine of the gradients, some way along."""
    origin = problem.vector()
    point = origin.add(direction, alpha=multiple)
    value, there = problem.gradient(point)
    before, after = gradient.double(), there.double()
    lengths = before.norm() * after.norm()
    cosine = float(before @ after / lengths) if float(lengths) > 0 else float("nan")
    distance = float((point.double() - origin.double()).norm())
    if not distance:
        raise CurvatureError(
            f"{multiple} times the step is lost in rounding: no parameter changes; take longer ones, or dtype=torch.float64"
        )
    return value, float((after - before).norm()), distance, cosine


def _lengths(lengths: Sequence[float] | None, unit: float) -> list[float]:
    try:
        found = [unit * a for a in LENGTHS] if lengths is None else [float(a) for a in lengths]
    except (TypeError, ValueError):
        found = []
    if len(found) < 5 or not all(0 < a < float("inf") for a in found):
        given = found if lengths is None else lengths
        raise CurvatureError(f"lengths must be at least five finite numbers above 0, but they are {given!r}")
    return found

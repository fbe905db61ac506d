"""Whether the loss knows the length of a layer's weights; before a normalization it does not.

    L(c w) = L(w),    g(c w) = g(w) / c,    w'g(w) = 0

(van Laarhoven 2017, arXiv:1706.05350; Arora, Li & Lyu 2018, arXiv:1812.03981). The Hessian at c w is that at w over c^2, so that
"smooth" means nothing without the length of the weights. All three hold up to the normalization's eps over its variance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.hessian import as_problem
from trimtab.curvature.problem import Layer, Loss, Problem


@dataclass(frozen=True)
class ScaleInvariance:
    """What happens to loss and gradient when the parameters of one layer are multiplied by c.

    Attributes:
        layer: The module.
        names: Its parameters, weight and bias, which are multiplied together.
        factor: c.
        loss_change: |L(c w) - L(w)| / |L(w)|.
        gradient_change: |c g(c w) - g(w)| / |g(w)|, g by the parameters of the layer.
        radial: w'g / (|w| |g|): the cosine of weights and gradient.
        radial_rows: The largest of |w_i'g_i| / (max_i |w_i| |g_i|) over the rows of the weight alone: zero where each unit is
            normalized by itself, as batch normalization does.
        norm: |w|.
        invariant: Whether all three of the first are below the tolerance.
        tolerance: It.
    """

    layer: str
    names: tuple[str, ...]
    factor: float
    loss_change: float
    gradient_change: float
    radial: float
    radial_rows: float
    norm: float
    invariant: bool
    tolerance: float


def scale_invariance(
    setup_or_model: Setup | nn.Module | Problem,
    loss: Loss | None = None,
    batches: Any = None,
    *,
    layers: Sequence[str] | None = None,
    factor: float = 3.0,
    tolerance: float = 1e-2,
    **options: Any,
) -> tuple[ScaleInvariance, ...]:
    """Multiply the weights of one layer after the other by a factor, and see whether the loss minds.

    Args:
        setup_or_model: A setup; a model together with `loss` and `batches`; or a problem.
        loss: `loss(model, batch)` gives a scalar tensor.
        batches: As for `problem`.
        layers: Modules; None for all that hold a chosen parameter of two axes or more.
        factor: c.
        tolerance: Relative deviation up to which a layer counts as invariant: eps over the variance before the
            normalization, and the rounding of the dtype, must stay below it.
        **options: Of `problem`: mode ("train" unless given), parameters, seed, dtype, weights, reduction.

    Returns:
        One result a layer, in the model's order.

    Raises:
        CurvatureError: An argument is not what it must be.
    """
    if not (isinstance(factor, (int, float)) and 0 < factor < math.inf and factor != 1):
        raise CurvatureError(f"factor must be a number above 0 other than 1, but it is {factor!r}")
    problem = as_problem(setup_or_model, loss, batches, **options)
    value, gradient = problem.gradient()
    shapes = {name: p.ndim for name, p in zip(problem.names, problem.origin, strict=True)}
    there = {layer.name: layer for layer in problem.layers if any(shapes[name] >= 2 for name in layer.names)}
    for name in layers or ():
        if name not in there:
            raise CurvatureError(f"layers names {name!r}, which holds no chosen weight; there are {', '.join(there)}")
    return tuple(
        _one(problem, layer, value, gradient, float(factor), tolerance)
        for layer in there.values()
        if layers is None or layer.name in layers
    )


def _one(
    problem: Problem, layer: Layer, value: float, gradient: Tensor, factor: float, tolerance: float
) -> ScaleInvariance:
    scaled = problem.vector()
    scaled[layer.where] *= factor
    there, other = problem.gradient(scaled)
    w, g = problem.vector()[layer.where].double(), gradient[layer.where].double()
    loss_change = abs(there - value) / max(abs(value), torch.finfo(problem.dtype).tiny)
    gradient_change = _ratio(float((factor * other[layer.where].double() - g).norm()), float(g.norm()))
    radial = _ratio(abs(float(w @ g)), float(w.norm() * g.norm()))
    return ScaleInvariance(
        layer.name,
        layer.names,
        factor,
        loss_change,
        gradient_change,
        radial,
        _radial_rows(problem, layer, gradient),
        float(w.norm()),
        max(loss_change, gradient_change, radial) < tolerance,
        tolerance,
    )


def _radial_rows(problem: Problem, layer: Layer, gradient: Tensor) -> float:
    """How far the rows of a layer's weights are from being orthogonal to their gradients."""
    named = dict(zip(problem.names, zip(problem.origin, problem.pieces(gradient), strict=True), strict=True))
    worst = 0.0
    for name in layer.names:
        w, g = (t.double().flatten(1) if t.ndim > 1 else None for t in named[name])
        if w is not None and g is not None:
            # Over the largest row, since one whose unit is dead has a gradient of nothing but rounding.
            scale = float((w.norm(dim=1) * g.norm(dim=1)).max())
            worst = max(worst, _ratio(float((w * g).sum(1).abs().max()), scale))
    return worst


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0 if part == 0 else math.inf

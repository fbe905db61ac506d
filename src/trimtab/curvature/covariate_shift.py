"""Internal covariate shift as Santurkar et al. 2018 define it (arXiv:1805.11604, definition 2.1): by the gradient.

    G_i  = dL/dW_i at (W_1, ..., W_k)
    G'_i = dL/dW_i at (W_1 + s_1, ..., W_{i-1} + s_{i-1}, W_i, ..., W_k)

s the step of this iteration: how much the move of the layers before changes what layer i ought to do, on the same batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.problem import Layer, Problem, problem
from trimtab.curvature.real_step import real_step


@dataclass(frozen=True)
class CovariateShift:
    """How the gradient of one layer changes as the layers before it take their step.

    Attributes:
        layer: The module.
        before: |G_i|.
        value: |G'_i - G_i|, the internal covariate shift.
        cosine: Of G_i and G'_i; NaN where one of them is zero.
    """

    layer: str
    before: float
    value: float
    cosine: float

    @property
    def relative(self) -> float:
        """The shift over the gradient's length."""
        return self.value / self.before if self.before else float("nan")


def covariate_shift(
    setup: Setup, *, step: Tensor | None = None, layers: Sequence[str] | None = None, **options: Any
) -> tuple[CovariateShift, ...]:
    """The gradient of each layer before and after the layers before it have moved, one gradient a layer.

    Args:
        setup: A setup; the step is the one that its optimizer would take now.
        step: Another step, a flat vector.
        layers: Modules; None for all that hold a chosen parameter of two axes or more. Every layer moves, named or not.
        **options: Of `problem`: batches, mode ("train" unless given), parameters, seed, dtype, weights, reduction.

    Returns:
        One result a layer, in the order in which the forward pass comes to them; the first has nothing before it.

    Raises:
        CurvatureError: An argument is not what it must be.
    """
    if not isinstance(setup, Setup):
        raise CurvatureError(
            f"setup must be a trimtab.Setup, whose optimizer takes the step, but it is a {type(setup).__name__}"
        )
    found = problem(setup, **options)
    _, gradient = found.gradient()
    moved = real_step(setup, found, gradient) if step is None else found.vector(found.pieces(step.detach()))
    matrices = {name for name, p in zip(found.names, found.origin, strict=True) if p.ndim >= 2}
    there = {layer.name: layer for layer in found.layers if matrices & set(layer.names)}
    for name in layers or ():
        if name not in there:
            raise CurvatureError(f"layers names {name!r}, which holds no chosen weight; there are {', '.join(there)}")
    point, results = found.vector(), []
    for layer in _in_order(found):
        if layer.name in there and (layers is None or layer.name in layers):
            results.append(_one(found, layer, gradient, point))
        point[layer.where] += moved[layer.where]
    return tuple(results)


def _one(found: Problem, layer: Layer, gradient: Tensor, point: Tensor) -> CovariateShift:
    _, after = found.gradient(point)
    old, new = gradient[layer.where].double(), after[layer.where].double()
    lengths = float(old.norm() * new.norm())
    cosine = float(old @ new) / lengths if lengths > 0 else float("nan")
    return CovariateShift(layer.name, float(old.norm()), float((new - old).norm()), cosine)


def _in_order(found: Problem) -> list[Layer]:
    """The layers as the forward pass of the first batch comes to them; what it does not call comes first, as it is named.

    A parameter of a module that is never called itself (a positional embedding) is used by its parent, which is there from the start.

    Args:
        found: The problem.

    Returns:
        The layers.
    """
    calls: dict[str, int] = {}

    def hear(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any) -> None:
            calls.setdefault(name, len(calls))

        return hook

    named = found.shadow.model.named_modules()
    handles = [module.register_forward_pre_hook(hear(name)) for name, module in named]
    try:
        with torch.inference_mode(False), torch.no_grad():
            found.batch_loss(0, found.origin)
    finally:
        for handle in handles:
            handle.remove()
    return sorted(found.layers, key=lambda layer: calls.get(layer.name, -1))

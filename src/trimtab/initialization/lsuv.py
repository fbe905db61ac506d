"""Layer-sequential unit-variance initialization."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.initialization._between import before
from trimtab.initialization._setting import start
from trimtab.initialization._watching import LinearMap, watch
from trimtab.initialization._weights import shape_in_use
from trimtab.initialization.report import Initialized
from trimtab.norms._arguments import require_flag, require_positive, require_whole
from trimtab.norms._passes import tensors
from trimtab.propagation._checks import PropagationError


def lsuv_(
    model: nn.Module,
    batch: Any,
    *,
    orthogonal: bool = True,
    variance: float = 1.0,
    tolerance: float = 0.01,
    max_steps: int = 10,
    generator: torch.Generator | None = None,
) -> Initialized:
    """Set a net's weights so that every layer's output has unit variance on a batch (Mishkin and Matas 2016).

    arXiv:1511.06422, algorithm 1: draw orthonormal weights; then, layer after layer, divide W by the root of the variance
    of the layer's output over units and examples, until it is within `tolerance` of 1. Biases beside a weight that is
    set become 0, so that one division is enough up to rounding. The whole is done in one forward pass: each layer is
    measured and set when the pass comes to it, whatever called it. The variance of the signal is kept; the gradient is
    not thereby: between equal layers it changes by E phi'^2 / E phi^2, 1.18 a layer for tanh (see `critical_`).

    What is left alone is as in `critical_`; so is what a weight of several runs means. Residual branches are set to unit
    variance too, so that the stream grows by 1 a block.

    Args:
        model: The net, changed in place; if anything fails, it is as before.
        batch: A tensor (N, ...); a tuple or list whose first element is the input; or a mapping of keyword arguments.
            Some dozens of examples.
        orthogonal: Whether the weights are orthonormal before they are scaled, else Gaussian.
        variance: What the outputs' variance is to be.
        tolerance: How far off, as a share, it may be.
        max_steps: How many divisions at most.
        generator: Of all draws, on the CPU; None draws one number from PyTorch's global generator to seed one.

    Returns:
        What was changed, and the prediction for the batch before and after, beside what is measured.

    Raises:
        PropagationError: If the batch is empty, or the batch or a layer's output is not finite.
    """
    require_flag(orthogonal=orthogonal)
    require_positive(variance=variance, tolerance=tolerance)
    require_whole(1, max_steps=max_steps)
    if batch is None:
        raise PropagationError("batch is None; lsuv_ sets weights by data: give a batch, or take critical_(model)")
    setting = start(model, batch, generator)

    def act(linear: LinearMap) -> Any:
        name = linear.node.parameter
        if name is None or not setting.may(name):
            return linear.execute()
        shape = shape_in_use(linear, setting.parameters[name])
        weight = setting.draw(name, shape, 1.0, bool(orthogonal))
        setting.set_bias(name, linear.bias)
        output = linear.execute()
        note = "its output does not vary on this batch: not scaled"
        for _ in range(max_steps):
            found = _variance(name, output)
            if not found > 0.0:
                break
            note = ""
            if abs(found / variance - 1.0) <= tolerance:
                break
            weight.mul_((variance / found) ** 0.5)
            output = linear.execute()
        activation = before(linear.fed)[1]
        setting.note(name, shape, "" if activation is None else activation.name, note)
        return output

    watch(setting.work, batch, act)
    return setting.hand_over(f"lsuv_: outputs of variance {variance:g} on the batch, layer by layer", batch)


def _variance(name: str, output: Any) -> float:
    value: Tensor = tensors(output)[0].detach().double()
    found = float(value.var(correction=0)) if value.numel() > 1 else 0.0
    if not math.isfinite(found):
        raise PropagationError(
            f"the output of {name} is not finite on this batch; look at the data and at the layers before"
        )
    return found

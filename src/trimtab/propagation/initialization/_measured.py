"""What an initializer compares before and after: signal and gradient of every layer on one batch."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.propagation._probe import copy_to_measure, heard, layer_names, measuring, run


@dataclass(frozen=True, slots=True)
class LayerMoments:
    """Second moments at the output of one layer.

    Attributes:
        name: The layer.
        signal: Mean square of its outputs, over units and examples.
        gradient: Mean square of the gradient there, of the outputs of the net summed with random signs.
    """

    name: str
    signal: float
    gradient: float


def signal_and_gradient(model: nn.Module, batch: Any) -> tuple[LayerMoments, ...]:
    """Measure every linear and convolutional layer, in the order in which they run, on a copy.

    Args:
        model: The model, left alone.
        batch: As for the initializers.

    Returns:
        The layers; gradient nan where none arrives.
    """
    copy = copy_to_measure(model)
    for parameter in copy.parameters():
        parameter.requires_grad_(False)
    found: list[tuple[str, Tensor]] = []

    def watch(name: str, output: Tensor) -> Tensor:
        output = output if output.requires_grad else output.detach().requires_grad_()
        found.append((name, output))
        return output

    with measuring(copy), torch.enable_grad(), heard(copy, layer_names(copy), watch):
        last = run(copy, batch)
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, last.shape, generator=generator).to(last) * 2.0 - 1.0
        outputs = [output for _, output in found]
        gradients: tuple[Tensor | None, ...] = (
            torch.autograd.grad(last, outputs, signs, allow_unused=True)
            if outputs and last.requires_grad
            else (None,) * len(outputs)
        )
    return tuple(
        LayerMoments(name, _mean_square(output), float("nan") if gradient is None else _mean_square(gradient))
        for (name, output), gradient in zip(found, gradients, strict=True)
    )


def _mean_square(values: Tensor) -> float:
    return float(values.detach().double().square().mean())

"""The sizes of one net over its first steps."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norms._arguments import shown
from trimtab.norms._passes import feed, told_what_was_given
from trimtab.propagation._checks import PropagationError
from trimtab.propagation._probe import LAYERS, heard

Loss = Callable[[nn.Module, Any], Tensor]
MakeOptimizer = Callable[[nn.Module, float], torch.optim.Optimizer]
Sizes = dict[tuple[str, str, int], float]
EPS = 1e-16  # Adam's 1e-8 is not small beside the gradients of a wide net


def sites(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that are looked at, by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, (*LAYERS, nn.Embedding))}


def first_steps(model: nn.Module, batch: Any, steps: int, optimizer: torch.optim.Optimizer, loss: Loss) -> Sizes:
    """Train on one and the same batch and note the root mean square of everything.

    Args:
        model: The net, which is trained.
        batch: The batch.
        steps: How many steps.
        optimizer: Of its parameters.
        loss: Called as loss(model, batch).

    Returns:
        By quantity, layer and step: "activation" before each step and after the last, "change" of it since the start,
        "gradient" at the layer's output, "update" of its weight by each step.

    Raises:
        PropagationError: If a size is not finite.
    """
    found: Sizes = {}
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PropagationError(f"optimizer(model, lr) gives {shown(optimizer)}; a torch.optim.Optimizer is needed")
    layers = sites(model)
    start: dict[str, Tensor] = {}
    for step in range(steps + 1):
        outputs: dict[str, Tensor] = {}
        with torch.enable_grad(), heard(model, tuple(layers), partial(_keep, outputs)):
            value = loss(model, batch)
        for name, output in outputs.items():
            found["activation", name, step] = _rms(output)
            if step:
                found["change", name, step] = _rms(output.detach() - start[name])
            else:
                start[name] = output.detach().clone()
        if step == steps:
            break
        optimizer.zero_grad()
        if not (isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad):
            raise PropagationError(
                f"loss gives {shown(value)}; a tensor of one number that depends on the parameters is needed"
            )
        value.backward()  # type: ignore[no-untyped-call]
        found |= {("gradient", name, step): _rms(t.grad) for name, t in outputs.items() if t.grad is not None}
        weights = {name: layers[name].get_parameter("weight").detach().clone() for name in outputs}
        optimizer.step()
        for name, weight in weights.items():
            found["update", name, step + 1] = _rms(layers[name].get_parameter("weight").detach() - weight)
    for (quantity, name, step), size in found.items():
        if not size < float("inf"):
            raise PropagationError(
                f"the {quantity} of {name} at step {step} is {size}; "
                + ("lower lr, which may be too high" if step else "look at the batch and at the initial weights")
            )
    return found


def _keep(outputs: dict[str, Tensor], name: str, output: Tensor) -> None:
    if output.requires_grad:
        output.retain_grad()
    outputs[name] = output


def _rms(values: Tensor) -> float:
    return float(values.detach().double().square().mean().sqrt())


def loss_of(batch: Any) -> Loss:
    """Cross-entropy for targets that are whole numbers, half the mean squared error for others.

    Args:
        batch: Inputs and targets.

    Returns:
        The function.

    Raises:
        PropagationError: If the batch is no such pair.
    """
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(t, Tensor) for t in batch)):
        raise PropagationError(
            f"batch is a {type(batch).__name__}; a pair (inputs, targets) of tensors is needed, or give loss=... , called "
            f"as loss(model, batch)"
        )
    whole = not batch[1].is_floating_point()

    def loss(model: nn.Module, pair: Any) -> Tensor:
        with told_what_was_given("batch", pair):
            output = feed(model, pair)
        if whole:
            return nn.functional.cross_entropy(output, pair[1])
        if output.shape != pair[1].shape:  # it would be broadcast in silence
            raise PropagationError(
                f"the model's output has shape {tuple(output.shape)}, the targets {tuple(pair[1].shape)}; the same is needed"
            )
        return 0.5 * nn.functional.mse_loss(output, pair[1])

    return loss


def optimizer_of(optimizer: str | MakeOptimizer) -> MakeOptimizer:
    """What makes the optimizer.

    Args:
        optimizer: "adam", "sgd", or a function of model and lr.

    Returns:
        A function of model and lr.

    Raises:
        PropagationError: If it is neither.
    """
    if optimizer == "adam":
        return lambda model, lr: torch.optim.Adam(model.parameters(), lr=lr, eps=EPS)
    if optimizer == "sgd":
        return lambda model, lr: torch.optim.SGD(model.parameters(), lr=lr)
    if isinstance(optimizer, str) or not callable(optimizer):
        raise PropagationError(
            f"optimizer is {optimizer!r}; 'adam', 'sgd' or a function, called as optimizer(model, lr), is needed"
        )
    return optimizer

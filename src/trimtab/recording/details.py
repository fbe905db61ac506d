"""What is looked at more closely at a few steps: units, links between modules, input channels, the making of the loss."""

from typing import Any

import torch
from torch import Tensor, nn

from trimtab.recording.graph import operation, trace_back
from trimtab.recording.walk import measurable
from trimtab.recording.watched import WatchedModel
from trimtab.stats import channel_rows, unit_summary

CHANNELS_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
)
MAX_CHANNELS = 4096

RANGES = {"Tanh": (-1.0, 1.0), "Sigmoid": (0.0, 1.0), "Softsign": (-1.0, 1.0)}
"""Output range of bounded activations, by class or operation."""

ACTIVATIONS = {
    "Relu", "LeakyRelu", "Tanh", "Sigmoid", "Gelu", "Silu", "Elu", "Softplus", "Hardtanh", "Mish", "Hardswish", "Threshold",
}  # fmt: skip
"""Autograd's names of scalar activations."""


def plain(tensor: Tensor) -> bool:
    """Whether a tensor has floating values on a real device, laid out along axes."""
    usual = tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_meta)
    return usual and tensor.is_floating_point() and tensor.numel() > 0


def channel_axis(module: nn.Module, tensor: Tensor) -> int | None:
    """The axis along which the units of a module's output lie; None where it has none."""
    if tensor.ndim < 2:
        return None
    if isinstance(module, CHANNELS_FIRST):
        return 1
    return 1 if tensor.ndim > 3 else tensor.ndim - 1


def units(module: nn.Module, output: Tensor) -> Tensor | None:
    """Unit summary of a module's output, None where there are no units to tell apart."""
    axis = channel_axis(module, output)
    if axis is None or not plain(output):
        return None
    if isinstance(module, nn.Hardtanh):
        low, high = float(module.min_val), float(module.max_val)
        return unit_summary(output.detach(), axis, low, high)
    low_high = RANGES.get(type(module).__name__)
    return unit_summary(output.detach(), axis, *(low_high or ()))


def link(module: nn.Module, args: tuple[Any, ...], output: Tensor, origins: dict[int, str]) -> dict[str, Any]:
    """Where a module's input comes from: the operations on the way and the modules whose outputs they start from.

    For a container it is where its output comes from: the last of its parts and what it does with them.

    Args:
        module: The module.
        args: What it was called with.
        output: Its first output.
        origins: Module by the sequence number of its output's operation.

    Returns:
        "operations" and "sources" (nearest first), and the shapes "input" and "output".
    """
    inputs = measurable(args, 3)
    operations: list[str] = []
    sources: list[str] = []
    start = inputs[0].grad_fn if inputs else None
    if next(module.children(), None) is not None:
        start = output.grad_fn
    elif inputs and inputs[0] is output and start is not None:  # in place: the input is what the operation started from
        start = next((parent for parent, _ in start.next_functions if parent is not None), None)
    if start is not None:
        operations, sources = trace_back(start, origins)
    own = operation(output.grad_fn) if output.grad_fn is not None else ""
    shape = list(inputs[0].shape) if inputs else None
    return {"operations": operations, "sources": sources, "own": own, "input": shape, "output": list(output.shape)}


def functional_activation(args: tuple[Any, ...], found: dict[str, Any]) -> Tensor | None:
    """Unit summary of a module's input where an activation that is no module has just made it, else None."""
    operations = found["operations"]
    inputs = measurable(args, 1)
    if not operations or operations[0] not in ACTIVATIONS or not inputs or inputs[0].ndim < 2 or not plain(inputs[0]):
        return None
    tensor = inputs[0].detach()
    axis = 1 if tensor.ndim > 3 else tensor.ndim - 1
    return unit_summary(tensor, axis, *RANGES.get(operations[0], ()))


def input_channels(tensor: Tensor, watched: WatchedModel) -> Tensor | None:
    """Moment rows of the features (channels) of what the model was fed with; None for more than 4096 of them."""
    if tensor.ndim < 2 or not plain(tensor):
        return None
    first = tensor.ndim != 3 or any(isinstance(m, nn.Conv1d) for _, m in watched.named_modules())
    axis = 1 if first else 2
    return channel_rows(tensor.detach(), axis) if tensor.shape[axis] <= MAX_CHANNELS else None

"""What is looked at more closely at a few steps: units, links between modules, input channels, the making of the loss."""

import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from trimtab.recording.graph import operation, trace_back
from trimtab.recording.walk import measurable
from trimtab.recording.watched import WatchedModel
from trimtab.stats import channel_rows, unit_summary

CHANNELS_FIRST: tuple[type[nn.Module], ...] = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
)
CHANNELS_LAST = (nn.Linear, nn.Bilinear, nn.Embedding)
LAST_NORMS = (nn.LayerNorm, nn.RMSNorm)
"""Norms over the last axis; classes made from them may permute their input (LayerNorm2d of ConvNeXt)."""

MAX_CHANNELS = 4096

Ungraded: TypeAlias = tuple["weakref.ref[Tensor]", str]
"""An output that no autograd operation has made, and its module."""

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


def channel_axis(module: nn.Module, tensor: Tensor, sources: Sequence[Mapping[str, Any]] = ()) -> int | None:
    """The axis along which the units of a module's output lie.

    Args:
        module: The module.
        tensor: Its output.
        sources: Links of the modules its input comes from: an activation has the units of what it is given.

    Returns:
        The axis, None where there is none.
    """
    if tensor.ndim < 2:
        return None
    if isinstance(module, CHANNELS_FIRST):
        return 1
    if isinstance(module, CHANNELS_LAST) or (type(module) in LAST_NORMS and len(module.normalized_shape) == 1):  # type: ignore[arg-type]
        return tensor.ndim - 1
    return inherited_axis(tensor, sources)


def inherited_axis(tensor: Tensor, sources: Sequence[Mapping[str, Any]]) -> int:
    """The axis of a tensor's units as in the modules it comes from, found again by its size where axes were permuted."""
    for source in sources:
        shape, axis = source["output"], source["axis"]
        if axis is None or len(shape) != tensor.ndim:
            continue
        alike = [i for i in range(1, tensor.ndim) if tensor.shape[i] == shape[axis]]
        if axis in alike:
            return int(axis)
        if len(alike) == 1:
            return alike[0]
    return 1 if tensor.ndim > 3 else tensor.ndim - 1


def tells_calls_apart(module: nn.Module) -> bool:
    """Whether a module's calls are looked at one by one: not of a layer with a matrix of its own, which is one place of the net."""
    parameters = (p for p in module.parameters(recurse=False) if not nn.parameter.is_lazy(p))
    return all(p.ndim < 2 for p in parameters)


def units(module: nn.Module, output: Tensor, axis: int | None) -> Tensor | None:
    """Unit summary of a module's output along an axis, None where there are no units to tell apart."""
    if axis is None or not plain(output):
        return None
    if isinstance(module, nn.Hardtanh):
        low, high = float(module.min_val), float(module.max_val)
        return unit_summary(output.detach(), axis, low, high)
    low_high = RANGES.get(type(module).__name__)
    return unit_summary(output.detach(), axis, *(low_high or ()))


def link(
    module: nn.Module, args: tuple[Any, ...], output: Tensor, origins: dict[int, str], ungraded: dict[int, Ungraded]
) -> dict[str, Any]:
    """Where a module's input comes from: the operations on the way and the modules whose outputs they start from.

    For a container it is where its output comes from: the last of its parts and what it does with them.

    Args:
        module: The module.
        args: What it was called with.
        output: Its first output.
        origins: Module by the sequence number of its output's operation.
        ungraded: Module by the identity of its output, where that has no operation: what comes before the first parameter.

    Returns:
        "operations" and "sources" (nearest first), the shapes "input" and "output" (-1 for a ragged axis), the "dtype" of the output, and the mode "training" of the module.
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
    elif inputs and (made := ungraded.get(id(inputs[0]))) is not None and made[0]() is inputs[0]:
        sources = [made[1]]
    own = operation(output.grad_fn) if output.grad_fn is not None else ""
    shape = _sizes(inputs[0]) if inputs else None
    return {
        "operations": operations,
        "sources": sources,
        "own": own,
        "input": shape,
        "output": _sizes(output),
        "dtype": str(output.dtype).removeprefix("torch."),
        "training": module.training,
    }


def _sizes(tensor: Tensor) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in tensor.shape]


@torch.no_grad()
def given_to_norm(module: nn.Module, args: tuple[Any, ...]) -> dict[str, float] | None:
    """Mean square and largest magnitude of the input of a norm, that is of a module with an eps; None for others, or without a number."""
    given = measurable(args, 1)
    if not hasattr(module, "eps") or not given or not plain(given[0]):
        return None
    values = given[0].detach().float()
    found = {"moment": float(values.square().mean()), "largest": float(values.abs().max())}
    return found if all(math.isfinite(value) for value in found.values()) else None


def functional_activation(
    args: tuple[Any, ...], found: dict[str, Any], sources: Sequence[Mapping[str, Any]] = ()
) -> Tensor | None:
    """Unit summary of a module's input where an activation that is no module has just made it, else None."""
    operations = found["operations"]
    inputs = measurable(args, 1)
    if not operations or operations[0] not in ACTIVATIONS or not inputs or inputs[0].ndim < 2 or not plain(inputs[0]):
        return None
    tensor = inputs[0].detach()
    return unit_summary(tensor, inherited_axis(tensor, sources), *RANGES.get(operations[0], ()))


def input_axis(tensor: Tensor, modules: Iterable[nn.Module]) -> int:
    """The axis of the features of what a model is fed with: where the first layer that they fit looks for them."""
    for module in modules:
        if isinstance(module, nn.modules.conv._ConvNd):
            if tensor.ndim == len(module.kernel_size) + 2 and module.in_channels in (
                0,
                tensor.shape[1],
            ):  # 0: still lazy
                return 1
        elif isinstance(module, (nn.Linear, nn.RNNBase)):
            width = module.in_features if isinstance(module, nn.Linear) else module.input_size
            if width == tensor.shape[-1]:
                return tensor.ndim - 1
    return 2 if tensor.ndim == 3 else 1


def input_channels(tensor: Tensor, watched: WatchedModel) -> Tensor | None:
    """Moment rows of the features (channels) of what the model was fed with; None for more than 4096 of them."""
    if tensor.ndim < 2 or not plain(tensor):
        return None
    axis = input_axis(tensor, [module for _, module in watched.named_modules()])
    return channel_rows(tensor.detach(), axis) if tensor.shape[axis] <= MAX_CHANNELS else None

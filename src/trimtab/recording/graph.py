"""What the autograd graph tells of a step: which operations link the modules, and how the loss is made.

Read at the few steps that are looked at in detail, before the backward pass frees the graph. Nothing of it is kept but names
and numbers.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab._torch import loss_scales, sequence_number

MAX_NODES = 64

VIEWS = {
    "View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Unsqueeze", "Squeeze", "Slice", "Select", "Expand",
    "Clone", "Contiguous", "ToCopy", "Alias", "Unflatten", "Flatten", "Split", "SplitWithSizes", "Chunk", "Unbind", "AsStrided",
}  # fmt: skip
"""Operations that move numbers about and change none."""

LINEAR = VIEWS | {"Mul", "Div", "Neg", "Add", "Sum", "Mean"}
"""Operations through which a factor of a part is a factor of the whole."""

MAX_FACTORS = 8
"""Operations between a loss and its scale."""

LOSSES = (
    "NllLoss", "NllLoss2D", "MseLoss", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "SmoothL1Loss", "HuberLoss",
)  # fmt: skip
"""Loss operations that keep what they compare with."""


def operation(node: Any) -> str:
    """The name of an autograd node without its suffix: "Addmm" for AddmmBackward0."""
    name: str = node.name()
    return name.rpartition("::")[2].partition("Backward")[0]


def trace_back(node: Any, origins: Mapping[int, str]) -> tuple[list[str], list[str]]:
    """Walk from `node` back to the nearest module outputs.

    Args:
        node: The `grad_fn` to start from.
        origins: Module by the sequence number of its output's operation.

    Returns:
        The operations on the way (views left out, nearest first) and the modules they start from.
    """
    operations: list[str] = []
    sources: list[str] = []
    queue, seen = deque([node]), 0
    visited: set[int] = set()
    while queue and seen < MAX_NODES:
        current = queue.popleft()
        number = sequence_number(current)
        if number in visited:
            continue
        visited.add(number)
        seen += 1
        if number in origins:
            if origins[number] not in sources:
                sources.append(origins[number])
            continue
        name = operation(current)
        if name != "torch" and "AccumulateGrad" not in name and name not in VIEWS:
            operations.append(name)
        queue.extend(parent for parent, _ in current.next_functions if parent is not None)
    return operations, sources


def saved(node: Any, name: str) -> Tensor | None:
    """A tensor that an operation has kept for its backward.

    Args:
        node: The operation's autograd node.
        name: Its attribute, such as "_saved_self".

    Returns:
        The tensor, None when it has none or no longer.
    """
    try:
        value = getattr(node, name, None)
    except RuntimeError:  # freed, or changed in place since
        return None
    return value if isinstance(value, Tensor) else None


@torch.no_grad()
def loss_scale(loss: Tensor) -> Tensor | None:
    """What mixed precision has multiplied a loss by: the scale of a `GradScaler`, also inside a sum, a mean or a division.

    Who scales by hand takes powers of two from 32 on, as the last thing; any other factor is the user's own weight.

    Args:
        loss: The tensor the backward pass starts from.

    Returns:
        The factor on the loss's device, which is not waited for: 1 where it is none of these; None where nothing multiplies.
    """
    node, scale = loss.grad_fn, None
    if node is None:
        return None
    scales = loss_scales()
    for factor in _factors(node, MAX_FACTORS) if scales else ():
        known = torch.stack([factor == there.to(factor.device).reshape(()) for there in scales]).any()
        scale = _first(scale, torch.where(known, factor, torch.ones_like(factor)))
    last = _factor(node)
    if last is not None:
        mantissa, exponent = torch.frexp(last)
        by_hand = torch.where((mantissa == 0.5) & (exponent > 5), last, torch.ones_like(last))
        scale = _first(scale, by_hand)
    return None if scale is None else scale.to(loss.device)


def _first(scale: Tensor | None, other: Tensor) -> Tensor:
    """The first of two that is not 1."""
    return other if scale is None else torch.where(scale == 1, other.to(scale), scale)


def _factor(node: Any) -> Tensor | None:
    """The number that a multiplication multiplies by, None for another operation."""
    parents = [parent for parent, _ in node.next_functions]
    if operation(node) != "Mul" or len(parents) != 2 or parents.count(None) != 1:
        return None
    factor = saved(node, "_saved_other" if parents[1] is None else "_saved_self")
    if factor is None or factor.numel() != 1 or not factor.is_floating_point() or factor.is_meta:
        return None
    return factor.reshape(())


def _factors(node: Any, depth: int) -> list[Tensor]:
    """The numbers by which all of a loss is multiplied on its way, the last one first."""
    parents = [parent for parent, _ in node.next_functions if parent is not None]
    name = operation(node)
    if not depth or not parents or name not in LINEAR:
        return []
    if len(parents) > 1:
        found = [_factors(parent, depth - 1) for parent in parents]
        return found[0] if name == "Add" and all(found) else []
    factor = _factor(node)
    return ([] if factor is None else [factor]) + _factors(parents[0], depth - 1)


def loss_facts(loss: Tensor, origins: Mapping[int, str]) -> dict[str, Any]:
    """How the loss is made of the modules' outputs.

    Args:
        loss: The tensor the backward pass starts from.
        origins: Module by the sequence number of its output's operation.

    Returns:
        "operations" (nearest to the loss first), "sources" (modules), "kind" (the loss operation, "" when it is made by
        hand), "prediction" and "target" (shape, and for floating ones mean, std and largest magnitude), and "softmax": the
        module (or "") whose output is a probability that the loss turns into a probability once more.
    """
    facts: dict[str, Any] = {"shape": list(loss.shape), "operations": [], "sources": [], "kind": "", "softmax": None}
    if loss.grad_fn is None:
        return facts
    scale, start = loss_scale(loss), loss.grad_fn
    if scale is not None and float(scale) != 1 and operation(start) == "Mul":
        start = next(parent for parent, _ in start.next_functions if parent is not None)
    facts["operations"], facts["sources"] = trace_back(start, origins)
    for node in _nodes(start):
        name = operation(node)
        if name in LOSSES:
            facts["kind"] = name
            for role, field in (("prediction", "_saved_self"), ("target", "_saved_target")):
                tensor = saved(node, field)
                if tensor is not None:
                    facts[role] = tensor_facts(tensor)
            break
    facts["softmax"] = _double_softmax(start, origins)
    return facts


def _nodes(start: Any) -> list[Any]:
    queue: deque[Any] = deque([start])
    found: list[Any] = []
    visited: set[int] = set()
    while queue and len(found) < MAX_NODES:
        node = queue.popleft()
        number = sequence_number(node)
        if number in visited:
            continue
        visited.add(number)
        found.append(node)
        queue.extend(parent for parent, _ in node.next_functions if parent is not None)
    return found


def _double_softmax(start: Any, origins: Mapping[int, str]) -> str | None:
    """The module whose probabilities go through a second softmax (or sigmoid) inside the loss, "" if no module made them."""
    pairs = {
        "LogSoftmax": ("Softmax",),
        "Softmax": ("Softmax",),
        "BinaryCrossEntropyWithLogits": ("Sigmoid", "Softmax"),
    }
    for node in _nodes(start):
        wanted = pairs.get(operation(node))
        if wanted is None or not _reaches_loss_first(node, origins):
            continue
        parent = _through_views(node)
        if parent is not None and operation(parent) in wanted:
            return origins.get(sequence_number(parent), "")
    return None


def _reaches_loss_first(node: Any, origins: Mapping[int, str]) -> bool:
    """A softmax that is itself a module's output belongs to the model; attention's never comes next to another softmax."""
    return operation(node) != "Softmax" or sequence_number(node) not in origins


def _through_views(node: Any) -> Any:
    for _ in range(8):
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if not parents:
            return None
        node = parents[0]
        if operation(node) not in VIEWS:
            return node
    return None


@torch.no_grad()
def tensor_facts(tensor: Tensor) -> dict[str, Any]:
    """Shape and, for floating tensors, mean, spread and largest magnitude over the finite values."""
    facts: dict[str, Any] = {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
    if tensor.is_floating_point() and tensor.numel() and not tensor.is_meta:
        values = tensor.detach().double().flatten()
        finite = values[torch.isfinite(values)]
        facts["nonfinite"] = values.numel() - finite.numel()
        if finite.numel():
            facts |= {
                "mean": finite.mean().item(),
                "std": finite.std(correction=0).item(),
                "largest": finite.abs().max().item(),
            }
    return facts


def loss_target(loss: Tensor) -> Tensor | None:
    """What a loss compares the model's answer with, in the layout that the loss operation was given.

    Args:
        loss: A loss whose graph has not been freed.

    Returns:
        The target of the first loss operation of PyTorch's own; None where the loss is made by hand.
    """
    for node in () if loss.grad_fn is None else _nodes(loss.grad_fn):
        if operation(node) in LOSSES and (target := saved(node, "_saved_target")) is not None:
            return target
    return None

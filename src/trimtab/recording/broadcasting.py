"""Where a loss lays two tensors against each other that each have an axis the other lacks, so that every entry of one meets every entry of
the other. Read from the autograd graph; what of it is a fault is for others to say.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from trimtab._torch import output_shape, sequence_number
from trimtab.recording.graph import MAX_NODES, VIEWS, operation, saved, trace_back

Shape: TypeAlias = list[int]

NAMED = ("MseLoss", "SmoothL1Loss", "HuberLoss", "SoftMarginLoss")
"""PyTorch's elementwise losses that broadcast; the others refuse to."""

PAIRED = (*NAMED, "Sub", "Add", "Mul", "Div", "Maximum", "Minimum", "Hypot", "Xlogy", "Xlog1Py", "Pow")
"""Operations that lay two tensors against each other."""

LAID_OUT = ("Unsqueeze", "T", "Transpose", "Permute", "NumpyT")
"""Views by which somebody makes room for pairs on purpose."""

CORNER = 32
"""Entries of each axis that are looked at to tell what a difference is made of."""


def broadcasts(loss: Tensor, origins: Mapping[int, str]) -> list[dict[str, Any]]:
    """Operations between the modules' outputs and the loss in which both operands are stretched.

    Args:
        loss: The tensor the backward pass starts from.
        origins: Module by the sequence number of its output's operation.

    Returns:
        For each "operation", "prediction" (shape of the operand that depends on a module, the first of two), "target" (that of the other, None
        where nothing tells), "result" (shape), "named" (whether a loss of PyTorch's has done it), "laid_out" (whether somebody made an
        axis for the purpose), and "sources": the modules that the prediction comes from.
    """
    found: list[dict[str, Any]] = []
    for node, users in _nodes(loss.grad_fn, origins):
        name = operation(node)
        if name in PAIRED and len(node.next_functions) >= 2:
            found += _stretched(node, name, users, origins)
    return found


def _nodes(start: Any, origins: Mapping[int, str]) -> list[tuple[Any, list[Any]]]:
    """The operations between a loss and the modules' outputs, each with those that use what it has made."""
    users: dict[int, list[Any]] = {}
    found: list[tuple[Any, list[Any]]] = []
    queue = deque([] if start is None else [start])
    while queue and len(found) < MAX_NODES:
        node = queue.popleft()
        number = sequence_number(node)
        if number in origins:
            continue
        found.append((node, users.setdefault(number, [])))
        for parent, _ in node.next_functions:
            if parent is not None:
                key = sequence_number(parent)
                if key not in users:
                    queue.append(parent)
                users.setdefault(key, []).append(node)
    return found


def _stretched(node: Any, name: str, users: Sequence[Any], origins: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    result = _result(node, name)
    parents = node.next_functions[:2]
    if result is None or all(parent is None for parent, _ in parents):
        return
    shapes = [None if parent is None else _before_expansion(parent, index) for parent, index in parents]
    if not any(shape is not None and stretched_axes(shape, result) for shape in shapes):
        return
    if None in shapes:
        unknown = shapes.index(None)
        kept = saved(node, "_saved_self" if unknown == 0 else "_saved_target" if name in NAMED else "_saved_other")
        shapes[unknown] = _own_shape(kept)
        if shapes[unknown] is None and name in ("Sub", "Add"):
            shapes[unknown] = _other_of_difference(shapes[1 - unknown] or [], result, users)
    if not all(shape is None or stretched_axes(shape, result) for shape in shapes):
        return
    own = 0 if parents[0][0] is not None else 1
    expanded = any(parent is not None and operation(parent) == "Expand" for parent, _ in parents)
    yield {
        "operation": name,
        "prediction": shapes[own],
        "target": shapes[1 - own],
        "result": result,
        "named": name in NAMED or expanded,
        "laid_out": any(parent is not None and _laid_out(parent, origins) for parent, _ in parents)
        or any(shape is not None and len(shape) == len(result) and shape[0] == 1 < result[0] for shape in shapes),
        "sources": trace_back(parents[own][0], origins)[1],
    }


def stretched_axes(shape: Sequence[int], result: Sequence[int]) -> list[int]:
    """The axes of a result along which an operand was repeated.

    Args:
        shape: The operand's shape.
        result: The result's shape.

    Returns:
        The axes, counted from the last (-1).
    """
    padded = [1] * (len(result) - len(shape)) + list(shape)
    return [i - len(result) for i, (own, size) in enumerate(zip(padded, result, strict=True)) if own == 1 < size]


def _result(node: Any, name: str) -> Shape | None:
    """The shape that two operands are brought to: of a loss that reduces it is that of what it has kept of them."""
    if name not in NAMED:
        return output_shape(node)
    prediction = saved(node, "_saved_self")
    return None if prediction is None else list(prediction.shape)


def _before_expansion(node: Any, index: int) -> Shape | None:
    if operation(node) == "Expand" and node.next_functions[0][0] is not None:
        node, index = node.next_functions[0]
    return output_shape(node, index)


def _own_shape(tensor: Tensor | None) -> Shape | None:
    """The shape of a tensor before it was expanded, which leaves strides of zero; axes that were put in front are left out."""
    if tensor is None or tensor.layout != torch.strided:
        return None
    own = [1 if stride == 0 and size > 1 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    new = next((i for i, stride in enumerate(tensor.stride()) if stride != 0), len(own))
    return own[new:]


@torch.no_grad()
def _other_of_difference(shape: Shape, result: Shape, users: Sequence[Any]) -> Shape | None:
    """The shape of the operand that left no trace, from a difference d[i, j] = p[i] - y[j] that a later operation has kept."""
    # Along an axis b on which p varies, y is repeated if and only if d[b] - d[0] is the same all along p's own repeated axes.
    for user in users:
        kept = saved(user, "_saved_self")
        if kept is None or list(kept.shape) != result or not kept.is_floating_point() or kept.is_meta:
            continue
        corner = kept.detach()[tuple(slice(CORNER) for _ in result)].double()
        if not bool(torch.isfinite(corner).all()):
            return None
        noise = 8 * torch.finfo(kept.dtype).eps * float(corner.abs().max())
        repeated = stretched_axes(shape, result)
        found = list(result)
        for axis in range(-len(result), 0):
            if axis in repeated or result[axis] == 1:
                continue
            moved = corner - corner.narrow(axis, 0, 1)
            if all(bool(((moved - moved.narrow(a, 0, 1)).abs() <= noise).all()) for a in repeated):
                found[axis] = 1
        return found[1:] if found[:1] == [1] else found  # it may have had that axis, and rarely has
    return None


def _laid_out(node: Any, origins: Mapping[int, str]) -> bool:
    """Whether an axis was made between a module's output and here."""
    while node is not None and operation(node) in VIEWS and sequence_number(node) not in origins:
        if operation(node) in LAID_OUT:
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False

"""What stands between one linear map and the next: the activation, whoever wrote it, and the joins of residual branches."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from trimtab.initialization._watching import Node, can_repeat
from trimtab.propagation._activation import Activation, Array

Function = Callable[[Tensor], Tensor]


def activation_of(name: str, function: Function) -> Activation:
    """An activation of the formulas from a function over tensors.

    The derivative is by central differences, right to 1e-8: below a dispatch mode there is no autograd.

    Args:
        name: What to call it.
        function: The function, of each unit alone.

    Returns:
        The activation, without the places of its kinks.
    """

    def value(u: Array) -> Array:
        with torch.no_grad():
            return np.asarray(function(torch.from_numpy(np.ascontiguousarray(u))).numpy())

    def derivative(u: Array) -> Array:
        h = np.maximum(1e-5 * np.abs(u), 1e-9)  # relative, so that no step crosses a kink at 0
        return (value(u + h) - value(u - h)) / (2.0 * h)

    return Activation(name, value, derivative)


def before(node: Node) -> tuple[Node, Activation | None]:
    """Go back from a linear map's input to where the values were last mixed.

    Operations on single units with one and the same source are one activation: `x * torch.sigmoid(x)` is found as SiLU.

    Args:
        node: What made the input.

    Returns:
        The source, and the activation since then; None for none.
    """
    source, function, names = _trace(node, {})
    return source, activation_of(" ".join(names), function) if names else None


def _trace(
    node: Node, known: dict[int, tuple[Node, Function, tuple[str, ...]]]
) -> tuple[Node, Function, tuple[str, ...]]:
    if node.index not in known:
        known[node.index] = _traced(node, known)
    return known[node.index]


def _traced(
    node: Node, known: dict[int, tuple[Node, Function, tuple[str, ...]]]
) -> tuple[Node, Function, tuple[str, ...]]:
    stays: tuple[Node, Function, tuple[str, ...]] = (node, lambda u: u, ())
    if node.kind != "passing" and not (node.kind == "pointwise" and can_repeat(node)):
        return stays
    found = [_trace(parent, known) for parent in node.parents]
    source = found[0][0]
    if any(other is not source for other, _, _ in found):
        return stays
    names = tuple(dict.fromkeys(name for _, _, names in found for name in names))
    if node.kind == "passing":
        return source, found[0][1], names
    inner = {parent.index: function for parent, (_, function, _) in zip(node.parents, found, strict=True)}
    return source, partial(_apply, node, inner), (*names, node.name)


def _apply(node: Node, inner: dict[int, Function], u: Tensor) -> Tensor:
    assert node.repeat is not None
    result: Tensor = node.repeat([inner[leaf.index](u) if isinstance(leaf, Node) else leaf for leaf in node.leaves])
    return result


@dataclass(frozen=True, slots=True)
class Join:
    """Where a branch is added to the stream.

    Attributes:
        end: The weight of the branch's last linear map; None where it is not told.
        why_not: Why this weight is no place to scale the branch; empty where it is.
    """

    end: str | None
    why_not: str


def joins(nodes: list[Node]) -> list[Join]:
    """The residual joins of a pass.

    An addition of two tensors joins a branch if one comes of the other (an identity skip), or both come of one
    operation of the net and the ways differ in depth (a projected skip).

    Args:
        nodes: The pass.

    Returns:
        One for each, in order.
    """
    found = [(node, branch) for node in nodes if (branch := _branch(node, nodes)) is not None]
    normed = [_goes_only_into_a_norm(node, nodes) for node, _ in found]
    post = any(normed[:-1]) or (len(found) == 1 and any(normed))
    uses = Counter(node.parameter for node in nodes)
    return [_join(node, branch, post, uses) for node, branch in found]


def _branch(node: Node, nodes: list[Node]) -> Node | None:
    if node.name != "add" or len(node.parents) != 2:
        return None
    p, q = node.parents
    if p is q or p.kind == q.kind == "embedding":
        return None
    for skip, branch in ((p, q), (q, p)):
        if branch.ancestors >> skip.index & 1:
            return branch if branch.depth > skip.depth else None
    shared = p.ancestors & q.ancestors
    computed = any(shared >> other.index & 1 for other in nodes if other.kind in {"linear", "norm"})
    if not computed or p.depth == q.depth:
        return None
    return max(p, q, key=lambda operand: operand.depth)


def _join(node: Node, branch: Node, post: bool, uses: Counter[str | None]) -> Join:
    scaled = any(isinstance(leaf, (int, float)) and leaf != 1 for leaf in node.leaves)
    normed = False
    while branch.kind in {"pointwise", "passing", "norm"} and len({id(p) for p in branch.parents}) == 1:
        normed = normed or branch.kind == "norm"
        scaled = scaled or branch.name in {"mul", "div"}
        branch = branch.parents[0]
    if branch.kind != "linear":
        return Join(None, "")
    if normed:
        why = "its branch ends in a norm, whose weight sets the size"
    elif uses[branch.parameter] > 1:
        why = "it runs more than once"
    elif scaled:
        why = "its block scales the branch"
    else:
        why = "the stream is normalized after each block" if post else ""
    return Join(branch.parameter, why)


def _goes_only_into_a_norm(node: Node, nodes: list[Node]) -> bool:
    consumers = [other for other in nodes if node in other.parents]
    return bool(consumers) and all(other.kind == "norm" for other in consumers)

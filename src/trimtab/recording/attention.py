"""What an attention looks at: the entropy of its weights and the largest of its logits, from what autograd has kept.

An explicit softmax keeps its weights, and the product before it queries and keys; a fused kernel keeps queries and keys. Of them a
sample is read at the steps that are looked at in detail. Tensors that a checkpoint or an offload would first have to bring back are left
alone.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trimtab._torch import is_packed, output_shape, sequence_number
from trimtab.recording.graph import VIEWS, operation, saved, trace_back

MAX_NODES = 20_000
"""Operations of a step that are looked through for attention."""

DEEPEST = 12
"""Operations between a softmax and the product of its scores."""

PAIRS = 32
"""Heads of samples that are looked at, spread over heads and batch."""

QUERIES = 16
"""Queries of each."""

GOLDEN = (math.sqrt(5) - 1) / 2
"""Steps of this share of a length meet all of it evenly, and no period of it."""

PRODUCTS = {
    "Bmm": ("_saved_self", "_saved_mat2"),
    "Mm": ("_saved_self", "_saved_mat2"),
    "Baddbmm": ("_saved_batch1", "_saved_batch2"),
}
"""Products of two signals, and where they keep them."""

JOINS = {"Add", "Sub", "MaskedFill", "Where"}
"""What puts a mask or a bias of positions on scores."""

FUSED = "ScaledDotProduct"
"""How the fused kernels' names begin."""


class Scores(NamedTuple):
    """The product that a softmax is taken of.

    Attributes:
        query: (n, queries, d).
        key: (n, d, keys).
        scale: What their product has been multiplied with, None where that is not one number.
    """

    query: Tensor
    key: Tensor
    scale: float | None


@torch.no_grad()
def attentions(loss: Tensor, origins: Mapping[int, str]) -> list[dict[str, Any]]:
    """The attentions that a loss depends on, as a sample of their queries sees them.

    Args:
        loss: The tensor the backward pass starts from.
        origins: Module by the sequence number of its output's operation.

    Returns:
        For each, in forward order: "name" (the first module whose output came behind the softmax, "" where none did), "sources" (the
        modules that queries and keys come from), "entropy" (mean over queries, in nats), "uniform" (the same for equal weights over the keys
        that the mask leaves) and "largest" (largest magnitude of a logit without mask and bias, None where it cannot be told).
    """
    found = []
    for number, node in sorted(_attention_nodes(loss.grad_fn).items()):
        seen = _fused(node) if operation(node).startswith(FUSED) else _explicit(node)
        if seen is not None:
            behind = min((n for n in origins if n >= number), default=None)
            name = "" if behind is None else origins[behind]
            sources = [
                s for parent, _ in node.next_functions[:2] if parent is not None for s in trace_back(parent, origins)[1]
            ]
            found.append({"name": name, "sources": list(dict.fromkeys(sources)), **seen})
    return found


def _attention_nodes(start: Any) -> dict[int, Any]:
    """Softmaxes and fused attentions by their sequence numbers."""
    found: dict[int, Any] = {}
    queue, visited = deque([start] if start is not None else []), set[int]()
    while queue and len(visited) < MAX_NODES:
        node = queue.popleft()
        number = sequence_number(node)
        if number in visited:
            continue
        visited.add(number)
        name = operation(node)
        if name in ("Softmax", "SafeSoftmax") or name.startswith(FUSED):
            found[number] = node
        queue.extend(parent for parent, _ in node.next_functions if parent is not None)
    return found


def _kept(node: Any, name: str) -> Tensor | None:
    """A tensor that an operation keeps as it is; None for one that is packed away, gone or of another kind."""
    tensor = None if is_packed(node, name) else saved(node, name)
    usual = tensor is not None and tensor.layout == torch.strided and not (tensor.is_nested or tensor.is_meta)
    return tensor if usual and tensor.numel() else None  # type: ignore[union-attr]


# Where weights are kept -----------------------------------------------------------------------------------------------


def _explicit(node: Any) -> dict[str, Any] | None:
    product = _product(node.next_functions[0][0], DEEPEST)
    weights = _kept(node, "_saved_result")
    if product is None or weights is None or weights.ndim < 2:
        return None
    weights = weights.movedim(_signed([node._saved_dim])[0], -1)
    weights = weights.reshape(-1, *weights.shape[-2:])
    pairs, rows = _spread(len(weights), PAIRS), _spread(weights.shape[1], QUERIES)
    p = weights[pairs][:, rows].double()
    allowed, largest = p > 0, None
    scores = _scores(*product)
    if scores is not None and scores.scale is not None and _shape(scores) == weights.shape:
        z = scores.scale * (scores.query[pairs][:, rows].double() @ scores.key[pairs].double())
        # A weight of zero is a mask's, unless it is what the logit itself comes to in this precision.
        vanishes = math.log(torch.finfo(weights.dtype).smallest_normal)
        allowed |= z < z.masked_fill(~allowed, -math.inf).amax(-1, keepdim=True) + vanishes
        largest = _largest(z, allowed)
    return _facts(p, allowed, largest)


def _shape(scores: Scores) -> tuple[int, ...]:
    return (len(scores.query), scores.query.shape[1], scores.key.shape[-1])


def _product(node: Any, depth: int, scale: float | None = 1.0) -> tuple[Any, float | None] | None:
    """The product of two signals that scores were made by, with what it has been multiplied with since."""
    if node is None or depth == 0:
        return None
    name, parents = operation(node), [parent for parent, _ in node.next_functions]
    if name in PRODUCTS:
        signals = [parent for parent in parents[-2:] if parent is not None and not _is_parameter(parent)]
        return (node, scale) if len(signals) == 2 else None
    if name in ("Mul", "Div"):
        factor = _constant(node, parents)
        scale = None if factor is None or scale is None else scale * factor
    elif name == "Transpose" or (name == "Permute" and _reorders(node, parents[0])):
        scale = None  # queries lie along another axis from here on
    elif name not in VIEWS and name not in JOINS:
        scale = None
    return next((found for parent in parents if (found := _product(parent, depth - 1, scale)) is not None), None)


def _reorders(node: Any, parent: Any) -> bool:
    """Whether a permutation moves axes of more than one entry past each other."""
    shape = output_shape(parent)
    if shape is None:
        return True
    moved = [dim for dim in (d % len(shape) for d in _signed(node._saved_dims)) if shape[dim] > 1]
    return moved != sorted(moved)


def _signed(numbers: Sequence[int]) -> list[int]:
    """Axes as they were given: autograd shows a negative one without its sign."""
    return [n - 2**64 if n >= 2**63 else n for n in numbers]


def _is_parameter(node: Any) -> bool:
    while node.next_functions and operation(node) in VIEWS:
        node = node.next_functions[0][0]
        if node is None:
            return False
    return "AccumulateGrad" in node.name()


def _constant(node: Any, parents: list[Any]) -> float | None:
    """The one number that an operation multiplies scores with, None for anything else."""
    other = getattr(node, "_saved_other", None) if len(parents) == 1 else None
    if not isinstance(other, (int, float)):
        behind = len(parents) == 2 and parents[0] is not None
        names = ["_saved_other", "_saved_self"] if behind else ["_saved_self"]
        if operation(node) == "Div":
            names = ["_saved_other"] if behind else []
        factors = (tensor for name in names if (tensor := _kept(node, name)) is not None and tensor.numel() == 1)
        other = next((float(tensor) for tensor in factors), None)
    if other is None or operation(node) == "Mul":
        return other
    return 1 / other if other else None


def _scores(node: Any, scale: float | None) -> Scores | None:
    query, key = (_kept(node, name) for name in PRODUCTS[operation(node)])
    if query is None or key is None:
        return None
    if query.ndim == 2:
        query, key = query[None], key[None]
    alpha = getattr(node, "_saved_alpha", 1)
    return Scores(query, key, None if scale is None else scale * float(alpha))


# Where queries and keys are kept --------------------------------------------------------------------------------------


def _fused(node: Any) -> dict[str, Any] | None:
    query, key = _kept(node, "_saved_query"), _kept(node, "_saved_key")
    if query is None or key is None or query.ndim < 3 or query.is_complex():
        return None
    heads, queries = query.shape[:-2].numel(), query.shape[-2]
    pairs, rows = _spread(heads, PAIRS), _spread(queries, QUERIES)
    lead = torch.unravel_index(pairs.to(query.device), query.shape[:-2])
    group = query.shape[-3] // key.shape[-3]  # several heads of queries share one of keys
    q, k = query[lead][:, rows].double(), key[(*lead[:-1], lead[-1] // group)].double()
    scale = getattr(node, "_saved_scale", None)
    z = (q @ k.mT) * (query.shape[-1] ** -0.5 if scale is None else float(scale))
    allowed = torch.ones_like(z, dtype=torch.bool)
    if getattr(node, "_saved_is_causal", False):
        places = torch.arange(key.shape[-2], device=z.device)
        allowed &= places <= rows.to(z.device)[:, None]
    masked = z
    for name in ("_saved_attn_mask", "_saved_attn_bias"):
        if is_packed(node, name):
            return None
        mask = saved(node, name)
        if mask is not None:
            mask = mask.expand(*query.shape[:-2], queries, key.shape[-2])[lead][:, rows]
            allowed &= mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
            masked = masked if mask.dtype == torch.bool else masked + mask.double()
    p = masked.masked_fill(~allowed, -math.inf).softmax(-1)
    p = p.masked_fill(~allowed.any(-1, keepdim=True), 0.0)  # a query that the mask leaves no key
    return _facts(p, allowed, _largest(z, allowed))


# Both -----------------------------------------------------------------------------------------------------------------


def _spread(length: int, most: int) -> Tensor:
    """Indices of at most so many of a length, spread over it."""
    if length <= most:
        return torch.arange(length)
    return ((torch.arange(1, most + 1, dtype=torch.float64) * GOLDEN % 1) * length).long()


def _largest(logits: Tensor, allowed: Tensor) -> float | None:
    found = float(logits.abs().masked_fill(~allowed, 0.0).amax())
    return found if math.isfinite(found) else None


def _facts(p: Tensor, allowed: Tensor, largest: float | None) -> dict[str, Any] | None:
    entropy = float(torch.special.entr(p).sum(-1).mean())
    if not math.isfinite(entropy):
        return None
    uniform = float(allowed.sum(-1).clamp(min=1).double().log().mean())
    return {"entropy": entropy, "uniform": uniform, "largest": largest}

"""Fused attention as the operations it stands for, so that softmax(Q K^T scale) V has one law (Vaswani et al. 2017, arXiv:1706.03762)."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from trimtab.prediction.laws import coarse
from trimtab.prediction.registry import Call, Value
from trimtab.prediction.state import State, constant, dims_of
from trimtab.prediction.trace import FEW

BIASES = {
    "aten._scaled_dot_product_flash_attention_for_cpu": "attn_mask",
    "aten._scaled_dot_product_flash_attention": "",
    "aten._scaled_dot_product_efficient_attention": "attn_bias",
    "aten._scaled_dot_product_cudnn_attention": "attn_bias",
    "aten._scaled_dot_product_fused_attention_overrideable": "attn_bias",
}
"""The fused operations, and what each calls the mask that it adds to the scores."""


def unfolded(calls: Sequence[Call]) -> list[Call]:
    """The operations, with each fused attention as product, scale, mask, softmax, dropout and product.

    Args:
        calls: The operations in order.

    Returns:
        The operations; tensors that a fused kernel never had are numbered below zero.
    """
    numbers = itertools.count(-1, -1)
    found: list[Call] = []
    for call in calls:
        found += _attention(call, numbers) if call.name in BIASES else [call]
    return found


@dataclass(slots=True)
class _Steps:
    """Operations that are written down one after the other."""

    numbers: Iterator[int]
    states: dict[int, State]
    calls: list[Call] = field(default_factory=list)

    def add(self, name: str, args: tuple[Any, ...], shape: Sequence[int], out: Value | None = None) -> Value:
        """One more operation, and the tensor it gives."""
        value = out or Value(next(self.numbers), tuple(shape))
        function = getattr(torch.ops.aten, name)
        overload = getattr(function, function.overloads()[0])
        self.calls.append(Call(f"aten.{name}", overload, args, {}, (value,), self.states))
        return value

    def product(self, a: Value, b: Value, out: Value | None = None) -> Value:
        """A product of matrices over leading dimensions."""
        *batch, n, k = a.shape
        m = b.shape[-1]
        count = math.prod(batch)
        first = self.add("view", (a, [count, n, k]), (count, n, k))
        second = self.add("view", (b, [count, k, m]), (count, k, m))
        whole = self.add("bmm", (first, second), (count, n, m))
        shape = (*batch, n, m)
        return self.add("view", (whole, list(shape)), shape, out)

    def repeated(self, value: Value, heads: int) -> Value:
        """Keys or values of fewer heads than queries, each for a group of them (Ainslie et al. 2023, arXiv:2305.13245)."""
        batch, own, *rest = value.shape
        if own == heads:
            return value
        wide = (batch, own, heads // own, *rest)
        apart = self.add("unsqueeze", (value, 2), (batch, own, 1, *rest))
        copies = self.add("expand", (apart, list(wide)), wide)
        return self.add("view", (copies, [batch, heads, *rest]), (batch, heads, *rest))


def _attention(call: Call, numbers: Iterator[int]) -> list[Call]:
    names = call.function._schema.arguments
    given = dict(zip((a.name for a in names), call.args, strict=False)) | call.kwargs
    query, key, value, out = given["query"], given["key"], given["value"], call.outputs[0]
    assert out is not None
    steps = _Steps(numbers, dict(call.states))
    key, value = (steps.repeated(v, query.shape[1]) for v in (key, value))
    *batch, count, dimension = key.shape
    turned = steps.add("transpose", (key, -2, -1), (*batch, dimension, count))
    scale = given.get("scale")
    scores = steps.product(query, turned)
    scores = steps.add("mul", (scores, dimension**-0.5 if scale is None else scale), scores.shape)
    for mask in (given.get(BIASES[call.name]), _hides_later(steps, scores.shape) if given.get("is_causal") else None):
        if mask is not None:
            scores = steps.add("add", (scores, mask), scores.shape)
    weights = steps.add("_softmax", (scores, -1, False), scores.shape)
    if given.get("dropout_p"):
        weights = steps.add("native_dropout", (weights, given["dropout_p"], True), weights.shape)
    steps.product(weights, value, out)
    return steps.calls


def _hides_later(steps: _Steps, shape: Sequence[int]) -> Value:
    mask = Value(next(steps.numbers), tuple(shape[-2:]), known=True)
    steps.states[mask.id] = causal(*mask.shape)
    return mask


def causal(queries: int, keys: int) -> State:
    """The mask that lets query i see the keys up to i, without the mask itself: long sequences would not bear it.

    Args:
        queries: How many queries.
        keys: How many keys.

    Returns:
        The state of a mask that is zero where it is not -inf.
    """
    n, m = queries, keys
    share = 1.0 / np.minimum(np.arange(n) + 1.0, m)  # of each key that query i sees
    columns = np.append(share[: m - 1], share[m - 1 :].sum())[::-1].cumsum()  # key j is seen by the queries from j on
    squares, pairs = share.sum(), float(np.square(columns).sum()) - share.sum()
    sums = np.array([[float(n) ** 2 - n - pairs, pairs], [n - squares, squares]])
    counts = n * m * np.array([[(n - 1) * (m - 1), n - 1], [m - 1, 1.0]])
    kappa = sums / np.maximum(counts, 1.0)
    for axis, size in ((1, m), (0, n)):
        if size == 1:
            kappa = np.take(kappa, 1, axis)
    law = coarse((share, np.full(n, 1.0 / n)), FEW)
    weights = State(dims_of((n, m)), np.asarray(kappa), 1.0 / m, law=law)
    return replace(constant((n, m), 0.0), mask=weights)

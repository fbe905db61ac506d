"""Fused attention as the operations it stands for, so that softmax(Q K^T scale) V has one law (Vaswani et al. 2017, arXiv:1706.03762)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trimtab.prediction.laws import coarse
from trimtab.prediction.measuring import FEW
from trimtab.prediction.registry import Call, Value
from trimtab.prediction.state import State, constant, dims_of
from trimtab.prediction.steps import Steps

BIASES = {
    "aten._scaled_dot_product_flash_attention_for_cpu": "attn_mask",
    "aten._scaled_dot_product_flash_attention": "",
    "aten._scaled_dot_product_efficient_attention": "attn_bias",
    "aten._scaled_dot_product_cudnn_attention": "attn_bias",
    "aten._scaled_dot_product_fused_attention_overrideable": "attn_bias",
}
"""The fused operations, and what each calls the mask that it adds to the scores."""


def attention(call: Call, steps: Steps) -> None:
    """A fused attention as product, scale, mask, softmax, dropout and product.

    Args:
        call: The operation.
        steps: Takes the others.
    """
    names = call.function._schema.arguments
    given = dict(zip((a.name for a in names), call.args, strict=False)) | call.kwargs
    query, out = given["query"], call.outputs[0]
    assert out is not None
    key, value = (_repeated(steps, given[name], query.shape[1]) for name in ("key", "value"))
    *batch, count, dimension = key.shape
    scores = steps.product(query, steps.add("transpose", (key, -2, -1), steps.new((*batch, dimension, count))))
    shape, scale = scores.shape, given.get("scale")
    scores = steps.add("mul", (scores, dimension**-0.5 if scale is None else scale), steps.new(shape))
    for mask in (given.get(BIASES[call.name]), _hides_later(steps, shape) if given.get("is_causal") else None):
        if mask is not None:
            scores = steps.add("add", (scores, mask), steps.new(shape))
    weights = steps.add("_softmax", (scores, -1, False), steps.new(shape))
    if given.get("dropout_p"):
        weights = steps.add("native_dropout", (weights, given["dropout_p"], True), steps.new(shape))
    steps.product(weights, value, out)


def _repeated(steps: Steps, value: Value, heads: int) -> Value:
    """Keys or values of fewer heads than queries, each for a group of them (Ainslie et al. 2023, arXiv:2305.13245)."""
    batch, own, *rest = value.shape
    if own == heads:
        return value
    wide = (batch, own, heads // own, *rest)
    copies = steps.add("expand", (steps.view(value, (batch, own, 1, *rest)), list(wide)), steps.new(wide))
    return steps.view(copies, (batch, heads, *rest))


def _hides_later(steps: Steps, shape: Sequence[int]) -> Value:
    mask = steps.new(shape[-2:], known=True)
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

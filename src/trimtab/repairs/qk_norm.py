"""What changes of attention put into a model: a factor on some outputs of a layer, and norms of queries and keys, head by head."""

import math
import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

FUSED = 3
"""Queries, keys and values in one layer, in this order: parts of its outputs."""

_CALLED = r"(^|[._])(to|proj|w|in|fc|lin|linear|attn)?_?{}(_?(proj|lin|linear|layer|net|map|weight))?$"
QUERY = re.compile(_CALLED.format("q(uery|ueries|s)?"), re.IGNORECASE)
KEY = re.compile(_CALLED.format("k(ey|eys|s)?"), re.IGNORECASE)
"""How people call the layers that make queries and keys."""


def asks(name: str) -> bool:
    """Whether a layer is called as those that make queries or keys are.

    Args:
        name: Its name.

    Returns:
        Whether it is.
    """
    return bool(QUERY.search(name) or KEY.search(name))


def is_fused(layer: nn.Module) -> bool:
    """Whether a layer makes queries, keys and values at once, by its shape.

    Args:
        layer: The layer.

    Returns:
        Whether it does.
    """
    return isinstance(layer, nn.Linear) and layer.out_features == FUSED * layer.in_features


class TimesFirst:
    """A hook that multiplies the first outputs of a layer; kept by value, so that the model can be copied and pickled."""

    def __init__(self, factor: float, count: int) -> None:
        self.factor, self.count = factor, count

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """The output, changed."""
        rest = output.shape[-1] - self.count
        first, others = output[..., : self.count], output[..., self.count :]
        return torch.cat((first * self.factor, others), -1) if rest else first * self.factor


class NormedAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` with a norm on queries and keys, per head (QK-norm; Henry et al. 2020, Dehghani et al. 2023).

    Args:
        attention: Whose parameters and settings it takes over.
    """

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        nn.Module.__init__(self)
        self.__dict__.update({key: value for key, value in vars(attention).items() if not key.startswith("_")})
        for held in ("_parameters", "_buffers", "_modules"):
            self.__dict__[held].update(vars(attention)[held])
        self._qkv_same_embed_dim = attention._qkv_same_embed_dim
        like = attention.out_proj.weight
        self.q_norm, self.k_norm = (nn.RMSNorm(attention.head_dim, device=like.device, dtype=like.dtype) for _ in "qk")

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As that of `nn.MultiheadAttention`."""
        batched = query.dim() == 3
        given = [t if batched else t.unsqueeze(1 - int(self.batch_first)) for t in (query, key, value)]
        if not self.batch_first:
            given = [t.transpose(0, 1) for t in given]
        q, k, v = (
            t.view(*t.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2) for t in self._projected(*given)
        )
        q, k = self.q_norm(q), self.k_norm(k)
        mask = self._mask(
            q,
            k,
            key_padding_mask if batched or key_padding_mask is None else key_padding_mask[None],
            attn_mask,
            is_causal,
        )
        weights: Tensor | None = None
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
            weights = (scores if mask is None else scores + mask).softmax(-1)
            weights = functional.dropout(weights, dropout)
            heads = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights[0]
        else:
            heads = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        output = self.out_proj(heads.transpose(1, 2).flatten(2))
        output = output if self.batch_first else output.transpose(0, 1)
        return (output if batched else output.squeeze(1 - int(self.batch_first))), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        matrices: tuple[Tensor, ...] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self._qkv_same_embed_dim:
            matrices = self.in_proj_weight.chunk(3)
        shifts = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return tuple(functional.linear(x, w, b) for x, w, b in zip((query, key, value), matrices, shifts, strict=True))

    def _mask(self, q: Tensor, k: Tensor, padding: Tensor | None, mask: Tensor | None, causal: bool) -> Tensor | None:
        """What is added to the scores: -inf where a mask is true, as `nn.MultiheadAttention` takes them."""
        if mask is None and causal:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
        if mask is not None and mask.dim() == 3:
            mask = mask.view(q.shape[0], self.num_heads, q.shape[2], k.shape[2])
        padding = None if padding is None else padding.view(q.shape[0], 1, 1, k.shape[2])
        terms = [_added(one, q.dtype) for one in (mask, padding) if one is not None]
        return sum(terms[1:], terms[0]) if terms else None


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
    return mask.to(dtype)


class HeadNorm:
    """A hook that normalizes the first outputs of a layer head by head, with the layer's own learnt gain."""

    def __init__(self, count: int, dimension: int) -> None:
        self.count, self.dimension = count, dimension

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        """The output, changed."""
        rest = output.shape[-1] - self.count
        first, others = output[..., : self.count], output[..., self.count :]
        heads = first.reshape(*first.shape[:-1], -1, self.dimension)
        gain: Any = module.head_gain
        normed = functional.rms_norm(heads, (self.dimension,), gain).flatten(-2)
        return torch.cat((normed, others), -1) if rest else normed

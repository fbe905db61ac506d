"""Attention of several heads, with masks that say what takes part.

A boolean mask is true for a real position, or where a query may see a key. That is the sense of
`scaled_dot_product_attention`, and the opposite of `nn.MultiheadAttention`'s.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import (
    refuse,
    require_device_and_dtype,
    require_flag,
    require_share,
    require_tensor,
    require_whole,
)


class Attention(nn.Module):
    """Attention of several heads through `scaled_dot_product_attention`.

    Shapes: x (N, L, d_model), memory (N, S, d_model); output (N, L, d_model). A query that may see no key gets 0 and the
    bias of the output projection.

    Args:
        d_model: Width of the stream.
        nhead: Heads; must divide d_model.
        dropout: Share of the attention weights that is dropped in training.
        bias: Whether the four projections have a bias.
        device: Where the parameters are made.
        dtype: Their type.

    Raises:
        NormalizationError: If nhead does not divide d_model.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_whole(d_model=d_model, nhead=nhead)
        require_share(dropout=dropout)
        require_flag(bias=bias)
        require_device_and_dtype(device, dtype)
        if d_model % nhead:
            raise NormalizationError(
                f"{nhead} heads do not divide a width of {d_model}; d_model must be a multiple of nhead"
            )
        self.d_model, self.nhead, self.dropout = d_model, nhead, dropout
        make = partial(nn.Linear, d_model, d_model, bias, device, dtype)
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = make(), make(), make(), make()

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Let each position of x see the positions of memory.

        Args:
            x: What asks, (N, L, d_model).
            memory: What is asked, (N, S, d_model); None for x itself.
            mask: Which positions of what is asked are real, boolean, (N, S).
            attention_mask: Which of them each query may see, boolean, or what is added to the scores, floating; of a shape
                that broadcasts to (N, nhead, L, S), such as (L, S).
            causal: Whether a position sees none behind itself; for x itself only.

        Returns:
            Shape (N, L, d_model).

        Raises:
            NormalizationError: If a mask is of another shape or type, or causal is asked of another sequence.
        """
        require_stream("x", x, self.d_model)
        if memory is not None:
            require_stream("memory", memory, self.d_model)
        if not isinstance(causal, bool):
            refuse("causal", causal, "True or False is needed")
        asked = x if memory is None else memory
        if causal and memory is not None:
            raise NormalizationError(
                "causal is given together with memory; the order of another sequence says nothing: leave it out"
            )
        allowed = _allowed(x, asked, mask, attention_mask, causal, self.nhead)
        query, key, value = (
            projected.unflatten(-1, (self.nhead, -1)).transpose(1, 2)
            for projected in (self.q_proj(x), self.k_proj(asked), self.v_proj(asked))
        )
        heads = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=allowed,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=causal and allowed is None,
        )
        return self.out_proj(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def require_stream(name: str, x: Tensor, d_model: int) -> None:
    """Let only sequences of vectors of the model's width pass.

    Args:
        name: The argument.
        x: What it is.
        d_model: The width.

    Raises:
        NormalizationError: If it is no tensor, or of another shape.
    """
    if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != d_model:
        refuse(name, x, f"a tensor of shape (samples, positions, {d_model}) is needed")


def _allowed(
    x: Tensor, asked: Tensor, mask: Tensor | None, attention_mask: Tensor | None, causal: bool, nhead: int
) -> Tensor | None:
    """Returns the masks as one that broadcasts to (N, nhead, L, S); None if there is none, or if causal is alone."""
    whole = (len(x), nhead, x.shape[1], asked.shape[1])
    allowed: Tensor | None = None
    if mask is not None:
        require_tensor("mask", mask)
        if mask.dtype != torch.bool or tuple(mask.shape) != tuple(asked.shape[:2]):
            raise NormalizationError(
                f"the mask is {mask.dtype} of shape {tuple(mask.shape)}; torch.bool of shape {tuple(asked.shape[:2])} is "
                f"needed, true where a position is real"
            )
        allowed = mask[:, None, None, :]
    if attention_mask is not None:
        require_tensor("attention_mask", attention_mask)
        sizes = zip(reversed(attention_mask.shape), reversed(whole), strict=False)
        if attention_mask.dim() > 4 or any(given not in {1, size} for given, size in sizes):
            raise NormalizationError(
                f"the attention mask has shape {tuple(attention_mask.shape)}; one that broadcasts to {whole} is needed: "
                f"samples, heads, queries, keys"
            )
        if attention_mask.dtype == torch.bool:
            allowed = attention_mask if allowed is None else allowed & attention_mask
        elif attention_mask.is_floating_point():
            if allowed is not None:
                attention_mask = attention_mask.masked_fill(~allowed, float("-inf"))
            allowed = attention_mask.to(x.dtype)
        else:
            raise NormalizationError(
                f"the attention mask has dtype {attention_mask.dtype}; torch.bool, true where a query may see a key, or a "
                f"floating type, added to the scores, is needed"
            )
    if causal and allowed is not None:
        past = torch.ones(whole[2:], dtype=torch.bool, device=x.device).tril()
        allowed = allowed & past if allowed.dtype == torch.bool else allowed.masked_fill(~past, float("-inf"))
    return allowed

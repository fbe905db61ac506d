"""A transformer layer, and a stack of them, whose residual blocks are `Residual` in any of its placements.

Masks say what takes part: a boolean is true for a real position, or where a query may see a key. That is the sense of
`scaled_dot_product_attention`, and the opposite of `nn.TransformerEncoderLayer`'s.
"""

from collections.abc import Callable
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
    require_whole,
    require_word,
)
from trimtab.norms._in_place import is_ours
from trimtab.norms.attention import Attention, require_stream
from trimtab.norms.residual import NEEDS_NORM, PLACEMENTS, DeepNormScale, Placement, Residual, deepnorm_scales, made

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": functional.relu, "gelu": functional.gelu}
_OPEN = ("pre", "sandwich", "rezero", "scaled")  # the stream leaves the last block without a norm


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, applied to each position.

    Args:
        d_model: Width of the stream.
        dim_feedforward: Width between the two.
        dropout: Share that is dropped between the two in training.
        activation: `relu`, `gelu`, or any function of a tensor.
        bias: Whether the two have a bias.
        device: Where the parameters are made.
        dtype: Their type.

    Raises:
        NormalizationError: If the activation is a name that is not known.
    """

    def __init__(
        self,
        d_model: int,
        dim_feedforward: int,
        dropout: float = 0.0,
        activation: str | Callable[[Tensor], Tensor] = functional.relu,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_whole(d_model=d_model, dim_feedforward=dim_feedforward)
        require_share(dropout=dropout)
        require_flag(bias=bias)
        require_device_and_dtype(device, dtype)
        if isinstance(activation, str):
            activation = _ACTIVATIONS.get(activation, activation)
        if not callable(activation) or isinstance(activation, type):
            refuse("activation", activation, "'relu', 'gelu' or a function of a tensor is needed")
        self.fc1 = nn.Linear(d_model, dim_feedforward, bias, device, dtype)
        self.fc2 = nn.Linear(dim_feedforward, d_model, bias, device, dtype)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both layers.

        Args:
            x: Shape (*, d_model).

        Returns:
            The same shape.
        """
        hidden = self.fc1(x)
        in_place = self.activation is functional.relu and is_ours(self.fc1)
        return self.fc2(self.dropout(hidden.relu_() if in_place else self.activation(hidden)))  # type: ignore[no-any-return]


_LAST: dict[type[nn.Module], str] = {Attention: "out_proj", FeedForward: "fc2"}


class _Block(Residual):
    """A `Residual` that adds in place where nothing else holds what its branch, attention or feed-forward, has returned."""

    def _sum(self, x: Tensor, added: Tensor) -> Tensor:
        branch, last = self.branch, _LAST.get(type(self.branch))
        plain = self.placement in {"pre", "post", "deep"} and added.dtype == x.dtype
        if plain and last is not None and is_ours(getattr(branch, last), branch, self.dropout):
            return added.add_(x, alpha=1.0 if self.skip_scale is None else self.skip_scale)
        return super()._sum(x, added)


class TransformerLayer(nn.Module):
    """Attention and feed-forward, each a `Residual`; with cross attention between them if asked for.

    Stands for `nn.TransformerEncoderLayer` and `nn.TransformerDecoderLayer` with batch_first=True: with the same weights,
    placement `post` (their norm_first=False) and `pre` (True) give the same output. Weights start as Xavier normal, biases
    at 0; under `deep` with gain beta for `fc1`, `fc2`, `out_proj` and `v_proj`, and 1 for `q_proj` and `k_proj`.

    Cost: 0.9 to 1.05 times PyTorch's layer in training and 0.97 to 1.1 times in evaluation, which PyTorch fuses (16 sequences
    of 128 tokens, width 256, one core). Without gradients ReLU is applied and the skip added in place, where no hook sees it.

    Shapes: x (N, L, d_model), memory (N, S, d_model); output that of x.

    Args:
        d_model: Width of the stream.
        nhead: Heads; must divide d_model.
        dim_feedforward: Width between the two feed-forward layers.
        dropout: Share dropped of attention weights, of each branch's output, and in the feed-forward layers.
        activation: `relu`, `gelu`, or any function of a tensor.
        placement: Of each residual block, see `Residual`.
        norm: Makes a norm, `partial(nn.RMSNorm, d_model)`; called once a block, twice under sandwich. None is LayerNorm for
            the four placements that need a norm, and no norm for `rezero` and `scaled`.
        scale: DeepNorm's constants, see `deepnorm_scales`; for `deep`.
        depth: Residual blocks in the whole net; for `scaled`.
        cross_attention: Whether there is a block that attends to a memory.
        bias: Whether projections and feed-forward layers have a bias.
        device: Where the parameters are made.
        dtype: Their type.

    Raises:
        NormalizationError: If the sizes do not fit, or the placement lacks its constants or is given others'.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = functional.relu,
        *,
        placement: Placement = "pre",
        norm: Callable[[], nn.Module] | None = None,
        scale: DeepNormScale | None = None,
        depth: int | None = None,
        cross_attention: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_whole(d_model=d_model)
        require_flag(cross_attention=cross_attention)
        require_device_and_dtype(device, dtype)
        require_word("placement", placement, PLACEMENTS)
        if scale is None and placement == "deep":
            raise NormalizationError(
                "placement 'deep' needs scale, one of the two of deepnorm_scales(encoder_layers, decoder_layers)"
            )
        if scale is not None and not isinstance(scale, DeepNormScale):
            refuse("scale", scale, "a DeepNormScale is needed, one of the two of deepnorm_scales(...)")
        if scale is not None and placement != "deep":
            raise NormalizationError(f"placement {placement!r} has no scale: leave it out, or take 'deep'")
        place: Callable[[nn.Module], Residual] = partial(
            _Block,
            placement=placement,
            norm=_norm_maker(norm, placement, d_model, device, dtype),
            skip_scale=None if scale is None else scale.alpha,
            depth=depth,
            dropout=dropout,
            device=device,
            dtype=dtype,
        )
        attention = partial(Attention, d_model, nhead, dropout, bias, device, dtype)
        self.attention = place(attention())
        self.cross_attention = place(attention()) if cross_attention else None
        self.feed_forward = place(FeedForward(d_model, dim_feedforward, dropout, activation, bias, device, dtype))
        self.d_model, self.scale = d_model, scale
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights of the linear layers anew; norms and learnable factors stay."""
        beta = 1.0 if self.scale is None else self.scale.beta
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                gain = 1.0 if name.endswith(("q_proj", "k_proj")) else beta
                nn.init.xavier_normal_(module.weight, gain)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        causal: bool = False,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """Apply the blocks.

        Args:
            x: The stream, (N, L, d_model).
            memory: What cross attention sees, (N, S, d_model).
            mask: Which positions of x are real, boolean, (N, L). The others are computed too, and seen by none.
            attention_mask: Which positions of x each may see, boolean, or what is added to the scores; broadcasts to
                (N, nhead, L, L).
            causal: Whether a position sees none behind itself.
            memory_mask: Which positions of memory are real, boolean, (N, S).

        Returns:
            The stream behind the layer, (N, L, d_model).

        Raises:
            NormalizationError: If memory is missing, or there is no cross attention for it; if a mask is of another shape or type.
        """
        require_stream("x", x, self.d_model)
        if (memory is None) != (self.cross_attention is None):
            raise NormalizationError(
                "the layer has cross attention and needs memory"
                if memory is None
                else "the layer has no cross attention for memory: make it with cross_attention=True"
            )
        if memory is None and memory_mask is not None:
            raise NormalizationError("memory_mask is given without memory")
        x = self.attention(x, mask=mask, attention_mask=attention_mask, causal=causal)
        if self.cross_attention is not None:
            x = self.cross_attention(x, memory, mask=memory_mask)
        return self.feed_forward(x)  # type: ignore[no-any-return]


def _norm_maker(
    norm: Callable[[], nn.Module] | None,
    placement: Placement,
    d_model: int,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Callable[[], nn.Module] | None:
    if isinstance(norm, nn.Module):
        raise NormalizationError(
            f"norm is a {type(norm).__name__}, which all blocks would share; a function that makes one is needed, such as "
            f"functools.partial(nn.RMSNorm, {d_model})"
        )
    if norm is None and placement in NEEDS_NORM:
        return partial(nn.LayerNorm, d_model, device=device, dtype=dtype)
    if norm is not None and not callable(norm):
        refuse(
            "norm", norm, f"a function that makes a norm is needed, such as functools.partial(nn.RMSNorm, {d_model})"
        )
    return norm


class Transformer(nn.Module):
    """A stack of `TransformerLayer`: an encoder, a decoder alone (causal=True), or a decoder with memory.

    Where the last block leaves the stream without a norm (`pre`, `sandwich`, `rezero`, `scaled`) and there are norms, one
    more stands at the end, as in Xiong et al. 2020: without it a pre-norm stack hands on a stream whose variance grows with
    depth. DeepNorm's constants follow from the number of layers and from whether the stack is alone. The repair for
    `norm-placement` and `missing-warmup` in post-norm stacks: `pre`, or `deep`.

    Shapes: x (N, L, d_model), memory (N, S, d_model); output that of x.

    Args:
        d_model: Width of the stream.
        nhead: Heads; must divide d_model.
        num_layers: Layers of the stack.
        dim_feedforward: Width between the two feed-forward layers.
        dropout: As in `TransformerLayer`.
        activation: `relu`, `gelu`, or any function of a tensor.
        placement: Of each residual block, see `Residual`.
        norm: As in `TransformerLayer`.
        cross_attention: Whether the stack is a decoder that attends to a memory.
        scale: DeepNorm's constants where they are not those of `num_layers` alone: for an encoder whose decoder has M
            layers, `deepnorm_scales(num_layers, M)[0]`. By default those of a stack alone, with cross attention those of a
            decoder behind an encoder.
        bias: Whether projections and feed-forward layers have a bias.
        device: Where the parameters are made.
        dtype: Their type.

    Raises:
        NormalizationError: If there is no layer, or as in `TransformerLayer`.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        num_layers: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = functional.relu,
        *,
        placement: Placement = "pre",
        norm: Callable[[], nn.Module] | None = None,
        cross_attention: bool = False,
        scale: DeepNormScale | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_whole(num_layers=num_layers)
        require_word("placement", placement, PLACEMENTS)
        require_flag(cross_attention=cross_attention)
        if scale is None and placement == "deep":
            # A decoder's constants do not depend on the depth of its encoder.
            alone, behind = deepnorm_scales(num_layers)[0], deepnorm_scales(1, num_layers)[1]
            scale = behind if cross_attention else alone
        make = partial(
            TransformerLayer,
            d_model,
            nhead,
            dim_feedforward,
            dropout,
            activation,
            placement=placement,
            norm=norm,
            scale=scale,
            depth=num_layers * (3 if cross_attention else 2) if placement == "scaled" else None,
            cross_attention=cross_attention,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.layers = nn.ModuleList(make() for _ in range(num_layers))
        make_norm = _norm_maker(norm, placement, d_model, device, dtype)
        self.norm = made(make_norm) if placement in _OPEN and make_norm is not None else None

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        causal: bool = False,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """Apply the layers, and the norm at the end where there is one.

        Args:
            x: The stream, (N, L, d_model).
            memory: What cross attention sees, (N, S, d_model).
            mask: Which positions of x are real, boolean, (N, L).
            attention_mask: Which positions of x each may see, or what is added to the scores; broadcasts to
                (N, nhead, L, L).
            causal: Whether a position sees none behind itself.
            memory_mask: Which positions of memory are real, boolean, (N, S).

        Returns:
            The stream, (N, L, d_model).
        """
        for layer in self.layers:
            x = layer(x, memory, mask=mask, attention_mask=attention_mask, causal=causal, memory_mask=memory_mask)
        return x if self.norm is None else self.norm(x)

"""Residual blocks: where the normalization stands, and what the two ways are multiplied with."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import (
    refuse,
    require_device_and_dtype,
    require_module,
    require_number,
    require_positive,
    require_share,
    require_whole,
    require_word,
)

Placement = Literal["pre", "post", "deep", "sandwich", "rezero", "scaled"]
PLACEMENTS: tuple[str, ...] = get_args(Placement)
NEEDS_NORM = ("pre", "post", "deep", "sandwich")


@dataclass(frozen=True)
class DeepNormScale:
    """The two constants of DeepNorm for one stack.

    Attributes:
        alpha: Factor of the skip.
        beta: Gain of the initial weights of feed-forward, value and output projections.
    """

    alpha: float
    beta: float


def deepnorm_scales(
    encoder_layers: int = 0, decoder_layers: int = 0
) -> tuple[DeepNormScale | None, DeepNormScale | None]:
    """DeepNorm's constants (Wang et al. 2022, arXiv:2203.00555, table of figure 2; torchscale has the same).

    A stack alone, encoder or decoder, of N layers: alpha = (2N)^(1/4), beta = (8N)^(-1/4). An encoder of N layers with a
    decoder of M: encoder alpha = 0.81 (N⁴ M)^(1/16), beta = 0.87 (N⁴ M)^(-1/16); decoder alpha = (3M)^(1/4),
    beta = (12M)^(-1/4). A layer is attention and feed-forward together, not a residual block.

    Args:
        encoder_layers: Layers of the encoder, N; 0 for a decoder alone.
        decoder_layers: Layers of the decoder, M; 0 for an encoder alone.

    Returns:
        The constants of the encoder and of the decoder, None for one that is not there.

    Raises:
        NormalizationError: If a number is negative, or both are 0.
    """
    require_whole(0, encoder_layers=encoder_layers, decoder_layers=decoder_layers)
    n, m = encoder_layers, decoder_layers
    if n + m == 0:
        raise NormalizationError("encoder_layers is 0 and decoder_layers is 0; one of the two must be above 0")
    if n and m:
        both = (n**4 * m) ** (1 / 16)
        return DeepNormScale(0.81 * both, 0.87 / both), DeepNormScale((3 * m) ** 0.25, (12 * m) ** -0.25)
    alone = DeepNormScale((2 * (n + m)) ** 0.25, (8 * (n + m)) ** -0.25)
    return (alone, None) if n else (None, alone)


class Residual(nn.Module):
    """A branch F and the skip around it, put together in one of six ways.

    | placement | y | source |
    |---|---|---|
    | `pre` | x + F(norm(x)) | Xiong et al. 2020, arXiv:2002.04745 |
    | `post` | norm(x + F(x)) | Vaswani et al. 2017 |
    | `deep` | norm(alpha x + F(x)) | DeepNorm, arXiv:2203.00555 |
    | `sandwich` | x + norm_out(F(norm(x))) | Ding et al. 2021, arXiv:2105.13290 |
    | `rezero` | x + alpha F(norm(x)), alpha learnable, 0 at first | ReZero, arXiv:2003.04887; SkipInit, 2002.10444 |
    | `scaled` | x + F(norm(x)) / sqrt(depth) | De and Smith 2020, arXiv:2002.10444 |

    `rezero` and `scaled` do without the norm unless one is given. At initialization the second moment of the stream after
    l blocks whose branch returns what it gets (He-ReLU): `scaled` (1 + 1/depth)^l, below e; `pre` with a norm that gives
    unit variance l + 1, where the branch has a share of 1 / (l + 1); `post` and `deep` 1; without norm and factor 2^l.

    The repair for `residual-growth` and `norm-placement`.

    Shapes: what F takes; F must return the shape of x, which is checked, since another one would be broadcast in silence.

    Args:
        branch: F, any module; further arguments of the call go to it.
        placement: One of the six.
        norm: What makes the norm, `partial(nn.LayerNorm, 512)`, or a norm, of which sandwich makes a second.
        skip_scale: alpha of `deep`; see `deepnorm_scales`.
        branch_scale: Factor of the branch: of `scaled` in place of 1/sqrt(depth), of `rezero` at first (0).
        depth: Residual blocks in the whole net, for `scaled`: two for a transformer layer.
        dropout: Share of the branch's output that is dropped in training.
        device: Where the learnable factor is made.
        dtype: Its type.

    Raises:
        NormalizationError: If the placement is unknown, lacks its norm or its factor, or is given one that it has no use for.
    """

    def __init__(
        self,
        branch: nn.Module,
        placement: Placement = "pre",
        norm: nn.Module | Callable[[], nn.Module] | None = None,
        *,
        skip_scale: float | None = None,
        branch_scale: float | None = None,
        depth: int | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_module("branch", branch)
        require_share(dropout=dropout)
        require_device_and_dtype(device, dtype)
        _check(placement, norm, skip_scale, branch_scale, depth)
        self.placement = placement
        self.branch = branch
        self.norm = norm if isinstance(norm, nn.Module) or norm is None else made(norm)
        self.norm_out: nn.Module | None = None
        if placement == "sandwich":
            self.norm_out = copy.deepcopy(self.norm) if norm is self.norm or norm is None else made(norm)
        self.dropout = nn.Dropout(dropout)
        self.skip_scale = skip_scale
        self.branch_scale: float | None = None
        self.alpha: nn.Parameter | None = None
        if placement == "rezero":
            self.alpha = nn.Parameter(torch.full((), float(branch_scale or 0.0), device=device, dtype=dtype))
        elif placement == "scaled":
            self.branch_scale = 1.0 / math.sqrt(depth) if depth is not None else branch_scale

    def extra_repr(self) -> str:
        """What stands in the printed module beside its children."""
        factors = {"skip_scale": self.skip_scale, "branch_scale": self.branch_scale}
        return ", ".join([
            f"placement={self.placement!r}",
            *(f"{k}={v:.6g}" for k, v in factors.items() if v is not None),
        ])

    def forward(self, x: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        """Add branch and skip.

        Args:
            x: The stream.
            arguments: Further arguments of the branch.
            keywords: The same, by name.

        Returns:
            The stream behind the block, of the shape of x.

        Raises:
            NormalizationError: If the branch returns another shape.
        """
        outside = self.placement in {"post", "deep"}
        given = x if outside or self.norm is None else self.norm(x)
        added = self.branch(given, *arguments, **keywords)
        if added.shape != x.shape:
            raise NormalizationError(
                f"the branch {type(self.branch).__name__} made {tuple(added.shape)} of {tuple(given.shape)}; a residual "
                f"branch must keep the shape"
            )
        if self.norm_out is not None:
            added = self.norm_out(added)
        y = self._sum(x, self.dropout(added))
        return self.norm(y) if outside and self.norm is not None else y

    def _sum(self, x: Tensor, added: Tensor) -> Tensor:
        if self.skip_scale is not None:
            return torch.add(added, x, alpha=self.skip_scale)
        if self.alpha is not None:
            return x + self.alpha * added
        if self.branch_scale is not None:
            return torch.add(x, added, alpha=self.branch_scale)
        return x + added


def made(norm: Callable[[], nn.Module]) -> nn.Module:
    """The norm that a function makes.

    Args:
        norm: The function.

    Returns:
        What it returns.

    Raises:
        NormalizationError: If it cannot be called without arguments, or makes no module.
    """
    try:
        module = norm()
    except TypeError as error:
        raise NormalizationError(
            f"norm cannot be called without arguments ({error}); functools.partial(nn.LayerNorm, width) can"
        ) from error
    require_module("what norm makes", module)
    return module


def _check(
    placement: str, norm: object, skip_scale: float | None, branch_scale: float | None, depth: int | None
) -> None:
    require_word("placement", placement, PLACEMENTS)
    if norm is None and placement in NEEDS_NORM:
        raise NormalizationError(
            f"placement {placement!r} needs a norm, such as functools.partial(nn.LayerNorm, width)"
        )
    if norm is not None and not callable(norm):
        refuse("norm", norm, "a norm, or a function without arguments that makes one, is needed")
    if (skip_scale is None) == (placement == "deep"):
        what = (
            "needs skip_scale, alpha of deepnorm_scales(...)"
            if skip_scale is None
            else "has no skip_scale: leave it out"
        )
        raise NormalizationError(f"placement {placement!r} {what}")
    if branch_scale is not None and placement not in {"rezero", "scaled"}:
        raise NormalizationError(f"placement {placement!r} has no branch_scale: leave it out, or take 'scaled'")
    if depth is not None and placement != "scaled":
        raise NormalizationError(f"placement {placement!r} has no depth: leave it out, or take 'scaled'")
    if placement == "scaled" and (depth is None) == (branch_scale is None):
        raise NormalizationError(
            "placement 'scaled' needs depth, the residual blocks of the whole net, or branch_scale; one of them"
        )
    if skip_scale is not None:
        require_positive(skip_scale=skip_scale)
    if depth is not None:
        require_whole(depth=depth)
    if branch_scale is not None:
        require_number(branch_scale=branch_scale)

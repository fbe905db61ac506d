"""DeepNorm by hooks: the stream weighs more in the sums in front of norms, and the branches start smaller.

norm(alpha x + F(x)), with the weights of F but those of queries and keys times beta (Wang et al. 2022, arXiv:2203.00555).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.repairs.one_pass import LAYERS
from trimtab.repairs.pre_norm import Place, check, wiring
from trimtab.repairs.qk_norm import FUSED, asks, is_fused
from trimtab.repairs.surgery import slow_path


class _Held:
    """A stream on its way past its branch; nothing outside a pass."""

    def __init__(self) -> None:
        self.stream: Tensor | None = None


@dataclass
class _Note:
    """A pre-hook that keeps the stream where a branch starts."""

    held: _Held
    place: Place

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep it."""
        self.held.stream = args[self.place] if isinstance(self.place, int) else kwargs[self.place]


@dataclass
class _Weigh:
    """A pre-hook of a norm that adds what the stream is to weigh beside once."""

    held: _Held
    alpha: float

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The sum with the stream weighed."""
        stream, self.held.stream = self.held.stream, None
        return None if stream is None else (args[0] + (self.alpha - 1) * stream, *args[1:])


def to_deep_norm(setup: Setup, *, norms: Sequence[str], alpha: float, beta: float) -> None:
    """Weigh the stream by alpha in the sums in front of norms, and start the branches smaller by beta.

    Args:
        setup: The setup, changed in place.
        norms: Names of the norms, in any order.
        alpha: Weight of the stream.
        beta: Factor on the weights of the branches, but those that make queries and keys.

    Raises:
        RepairError: They do not stand behind sums of a stream and a branch of modules.
    """
    blocks = wiring(setup, norms)
    check(setup, blocks)
    for block in blocks:
        held = _Held()
        name, places = block.entries[0]
        setup.model.get_submodule(name).register_forward_pre_hook(_Note(held, places[0]), with_kwargs=True)
        setup.model.get_submodule(block.norm).register_forward_pre_hook(_Weigh(held, alpha))
        for called in dict.fromkeys(block.called):
            _shrink(called, setup.model.get_submodule(called), beta)
    slow_path(setup)


@torch.no_grad()
def _shrink(name: str, module: nn.Module, beta: float) -> None:
    if isinstance(module, nn.MultiheadAttention):
        value = module.v_proj_weight if module.in_proj_weight is None else module.in_proj_weight[2 * module.embed_dim :]
        value.mul_(beta)
        module.out_proj.weight.mul_(beta)
    elif isinstance(module, nn.Linear) and is_fused(module):
        module.weight[module.out_features // FUSED * 2 :].mul_(beta)
    elif isinstance(module, LAYERS) and not asks(name):
        module.weight.mul_(beta)

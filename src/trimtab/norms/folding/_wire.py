"""What is known of one module's neighbours."""

from dataclasses import dataclass

from torch import nn

from trimtab._torch import forward_hooks
from trimtab.norms._kinds import DROPOUTS

SHAPE_ATTRIBUTES = frozenset({"shape", "ndim", "dtype", "device", "is_cuda", "requires_grad", "layout"})
SHAPE_METHODS = frozenset({"size", "dim", "ndimension", "numel", "is_floating_point", "stride", "is_contiguous"})


@dataclass(frozen=True, slots=True)
class Wire:
    """The one call of a module.

    Attributes:
        source: The module whose output is the only input, None for anything else.
        users: The modules that take the output as their only input; None for each other use.
        alone: Whether it is called with one tensor and nothing else, such as a mask.
    """

    source: str | None
    users: tuple[str | None, ...]
    alone: bool = True


def is_transparent(module: nn.Module) -> bool:
    """Whether a module hands on its input as it is.

    Args:
        module: Any module.

    Returns:
        True for `nn.Identity` and its subclasses without hooks, and for dropout in evaluation mode.
    """
    if forward_hooks(module):
        return False
    return isinstance(module, nn.Identity) or (type(module) in DROPOUTS and not module.training)

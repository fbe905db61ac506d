"""When what a layer has just returned may be written over."""

import torch
from torch import nn

from trimtab._torch import has_global_hooks, has_hooks
from trimtab.norms.layers._paths import someone_looks_on


def is_ours(linear: nn.Module, *after: nn.Module) -> bool:
    """Whether nobody but the caller holds the output of a linear layer.

    It is a new tensor, and without gradients autograd saves none; a hook may have kept it, and a compiler or a tracer wants
    to see values that do not change.

    Args:
        linear: The layer.
        after: Modules that handed the output on as it is, a dropout in evaluation mode or the layer's parent.

    Returns:
        Whether an operation may write to the output.
    """
    return (
        type(linear) is nn.Linear
        and not torch.is_grad_enabled()
        and not someone_looks_on()
        and not has_global_hooks()
        and not any(has_hooks(module) or "forward" in vars(module) for module in (linear, *after))
    )

"""Whether a hand-written kernel may take the place of PyTorch's own operations for a call."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from trimtab._torch import dispatch_mode_is_active, functorch_is_active, is_traced

_PLAIN = (Tensor, torch.nn.Parameter)


def someone_looks_on() -> bool:
    """Whether a compiler, a tracer, a functorch transform or a dispatch mode sees the operations of this call.

    Each of them wants operations that it knows, not a kernel of ours.

    Returns:
        Whether there is one.
    """
    return torch.compiler.is_compiling() or functorch_is_active() or dispatch_mode_is_active() or is_traced()


def eager_on_cpu(*tensors: Tensor | None) -> bool:
    """Whether all tensors are plain ones in the CPU's memory and nobody looks on.

    Args:
        tensors: The tensors of the call; None is passed over.

    Returns:
        Whether a kernel of ours may read them.
    """
    given = [t for t in tensors if t is not None]
    return (
        all(
            type(t) in _PLAIN and t.device.type == "cpu" and t.layout == torch.strided and _has_memory(t) for t in given
        )
        and not someone_looks_on()
        and all(forward_ad.unpack_dual(t).tangent is None for t in given)  # type: ignore[no-untyped-call]
    )


def _has_memory(tensor: Tensor) -> bool:
    try:
        tensor.data_ptr()
    except RuntimeError:  # a batch of gradients (is_grads_batched=True) looks like one of them
        return False
    return True

"""What inputs and parameters must be before a normalization may use them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import refuse, require_tensor

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def require_floating(name: str, tensor: Tensor) -> None:
    """Let only real floating-point tensors pass.

    Args:
        name: What the tensor is, for the message.
        tensor: The tensor.

    Raises:
        NormalizationError: If it has another dtype, or is sparse.
    """
    require_tensor(name, tensor)
    if tensor.layout is not torch.strided:
        raise NormalizationError(f"{name} has layout {tensor.layout}; a dense tensor is needed: to_dense() makes one")
    if tensor.dtype not in FLOATING:
        raise NormalizationError(
            f"{name} has dtype {tensor.dtype}; float16, bfloat16, float32 or float64 is needed: convert it first"
        )


def require_shape(name: str, tensor: Tensor | None, shape: Sequence[int], meaning: str) -> None:
    """Let only tensors of one shape pass, and None.

    Args:
        name: What the tensor is, for the message.
        tensor: The tensor, or None where it is left out.
        shape: The shape it must have.
        meaning: What that shape stands for, for the message.

    Raises:
        NormalizationError: If the shape is another one.
    """
    if tensor is None:
        return
    require_tensor(name, tensor)
    if tuple(tensor.shape) != tuple(shape):
        raise NormalizationError(f"{name} has shape {tuple(tensor.shape)}; {tuple(shape)} is needed: {meaning}")


def require_parts(normalized: object, kind: type) -> None:
    """Let only what a forward function returned pass.

    Args:
        normalized: The parts.
        kind: Their class.
    """
    if not isinstance(normalized, kind):
        refuse(
            "normalized", normalized, f"a {kind.__name__} is needed, which the function of the name ..._forward returns"
        )


def require_mask(mask: Tensor, shape: Sequence[int], meaning: str) -> None:
    """Let only boolean tensors of one shape pass.

    Args:
        mask: True where a value counts.
        shape: The shape it must have.
        meaning: What that shape stands for, for the message.

    Raises:
        NormalizationError: If dtype or shape is another one.
    """
    require_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise NormalizationError(
            f"mask has dtype {mask.dtype}; torch.bool is needed, True where a value counts (mask.bool() converts 0 and 1)"
        )
    require_shape("mask", mask, shape, meaning)

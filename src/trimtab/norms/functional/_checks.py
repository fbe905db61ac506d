"""What inputs and parameters must be before a normalization may use them."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trimtab.errors import NormalizationError

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def require_floating(name: str, tensor: Tensor) -> None:
    """Let only real floating-point tensors pass.

    Args:
        name: What the tensor is, for the message.
        tensor: The tensor.

    Raises:
        NormalizationError: If it has another dtype.
    """
    if tensor.dtype not in FLOATING:
        raise NormalizationError(
            f"{name} has dtype {tensor.dtype}; float16, bfloat16, float32 or float64 is needed: convert it first"
        )


def require_eps(eps: float) -> None:
    """Let only finite numbers above zero pass.

    Args:
        eps: What is added to a variance.

    Raises:
        NormalizationError: If it is zero, negative, nan or infinite.
    """
    if not (math.isfinite(eps) and eps > 0.0):
        raise NormalizationError(
            f"eps is {eps}; a finite number > 0 is needed: without it a constant input divides by zero (1e-5 is usual)"
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
    if tensor is not None and tuple(tensor.shape) != tuple(shape):
        raise NormalizationError(f"{name} has shape {tuple(tensor.shape)}; {tuple(shape)} is needed: {meaning}")


def require_mask(mask: Tensor, shape: Sequence[int], meaning: str) -> None:
    """Let only boolean tensors of one shape pass.

    Args:
        mask: True where a value counts.
        shape: The shape it must have.
        meaning: What that shape stands for, for the message.

    Raises:
        NormalizationError: If dtype or shape is another one.
    """
    if mask.dtype != torch.bool:
        raise NormalizationError(
            f"mask has dtype {mask.dtype}; torch.bool is needed, True where a value counts (mask.bool() converts 0 and 1)"
        )
    require_shape("mask", mask, shape, meaning)

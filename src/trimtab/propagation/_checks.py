"""What a quantity must be before the formulas of this package may use it."""

import math

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError


class PropagationError(TrimtabError, ValueError):
    """A quantity is outside the range where the mean-field formulas mean anything."""


def require_finite(name: str, value: float | NDArray[np.float64]) -> None:
    """Let only finite numbers pass.

    Args:
        name: What the number is, for the message.
        value: The number, or an array of them.

    Raises:
        PropagationError: If a number is nan or infinite.
    """
    if not np.all(np.isfinite(value)):
        raise PropagationError(f"{name} is {value}; a finite number is needed")


def require_not_negative(name: str, value: float | NDArray[np.float64]) -> None:
    """Let only finite numbers from zero up pass.

    Args:
        name: What the number is, for the message.
        value: The number, or an array of them.

    Raises:
        PropagationError: If a number is negative, nan or infinite.
    """
    if not (np.all(np.isfinite(value)) and np.all(np.greater_equal(value, 0.0))):
        raise PropagationError(f"{name} is {value}; a finite number >= 0 is needed")


def require_positive(name: str, value: float) -> None:
    """Let only finite numbers above zero pass.

    Args:
        name: What the number is, for the message.
        value: The number.

    Raises:
        PropagationError: If the number is zero, negative, nan or infinite.
    """
    if not (math.isfinite(value) and value > 0.0):
        raise PropagationError(f"{name} is {value}; a finite number > 0 is needed")

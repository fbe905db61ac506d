"""What a quantity must be before the formulas of this package may use it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.norms._arguments import is_whole, shown


class PropagationError(TrimtabError, ValueError):
    """A quantity is outside the range where the mean-field formulas mean anything."""


def require_finite(name: str, value: Any) -> None:
    """Let only a finite real number pass.

    Args:
        name: What the number is, for the message.
        value: The number.

    Raises:
        PropagationError: If it is no real number, nan or infinite.
    """
    number = _numbers(name, value, "a finite number")
    if number.ndim or not np.isfinite(number):
        raise PropagationError(f"{name} is {value}; a finite number is needed")


def require_not_negative(name: str, value: Any, arrays: bool = False) -> None:
    """Let only a finite number from zero up pass.

    Args:
        name: What the number is, for the message.
        value: The number.
        arrays: Whether an array of such numbers may pass too.

    Raises:
        PropagationError: If it is no real number, negative, nan or infinite.
    """
    numbers = _numbers(name, value, "a finite number >= 0")
    if (numbers.ndim and not arrays) or not (np.all(np.isfinite(numbers)) and np.all(numbers >= 0.0)):
        raise PropagationError(f"{name} is {value}; a finite number >= 0 is needed")


def require_positive(name: str, value: Any) -> None:
    """Let only a finite number above zero pass.

    Args:
        name: What the number is, for the message.
        value: The number.

    Raises:
        PropagationError: If it is no real number, or zero, negative, nan or infinite.
    """
    number = _numbers(name, value, "a finite number > 0")
    if number.ndim or not (np.isfinite(number) and number > 0.0):
        raise PropagationError(f"{name} is {value}; a finite number > 0 is needed")


def require_between(name: str, value: Any, low: float, high: float) -> None:
    """Let only numbers of a closed interval pass.

    Args:
        name: What the number is, for the message.
        value: The number.
        low: The smallest.
        high: The largest.

    Raises:
        PropagationError: If it is no real number, or outside.
    """
    needed = f"a number from {low:g} to {high:g}"
    number = _numbers(name, value, needed)
    if number.ndim or not low <= number <= high:
        raise PropagationError(f"{name} is {value}; {needed} is needed")


def require_whole(name: str, value: Any, least: int = 1) -> None:
    """Let only whole numbers from `least` up pass.

    Args:
        name: What the number is, for the message.
        value: The number.
        least: The smallest.

    Raises:
        PropagationError: If it is none.
    """
    if not (is_whole(value) and value >= least):
        raise PropagationError(f"{name} is {shown(value)}; a whole number of at least {least} is needed")


def require_sequence(name: str, value: Any, what: str) -> tuple[Any, ...]:
    """Let only lists, tuples and other sequences pass; a word, a number and a tensor are none.

    Args:
        name: What it is, for the message.
        value: The sequence.
        what: What it holds, for the message.

    Returns:
        It as a tuple.

    Raises:
        PropagationError: If it is none.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
        raise PropagationError(f"{name} is {shown(value)}; a sequence of {what} is needed")
    return tuple(value)


def require_places(name: str, value: Any) -> None:
    """Let only sequences of finite numbers pass.

    Args:
        name: What they are, for the message.
        value: The sequence.
    """
    for number in require_sequence(name, value, "finite numbers"):
        require_finite(f"a number of {name}", number)


def _numbers(name: str, value: Any, needed: str) -> NDArray[np.float64]:
    """Return real numbers as an array; words, lists, tensors, complex numbers and booleans are none."""
    numbers = isinstance(value, (int, float, np.number, np.ndarray)) and not isinstance(value, bool)
    array = np.asarray(value if numbers else None)
    if array.dtype.kind not in "iuf":
        hint = " (float(...) makes one of a tensor)" if isinstance(value, Tensor) else ""
        raise PropagationError(f"{name} is {shown(value)}; {needed} is needed{hint}")
    return array.astype(np.float64)

"""What arguments of the layers must be."""

import math

from trimtab.errors import NormalizationError


def require_eps(eps: float | None) -> None:
    """Let only None and finite numbers above zero pass.

    Args:
        eps: What is added to a variance or a mean square.

    Raises:
        NormalizationError: If eps is zero, negative, nan or infinite.
    """
    if eps is not None and not (math.isfinite(eps) and eps > 0.0):
        raise NormalizationError(f"eps is {eps}; a finite number > 0 is needed, or a constant input is divided by zero")


def require_at_least(name: str, value: float, least: float) -> None:
    """Let only finite numbers from `least` up pass.

    Args:
        name: What the number is, for the message.
        value: The number.
        least: The smallest that may pass.

    Raises:
        NormalizationError: If the number is smaller, nan or infinite.
    """
    if not (math.isfinite(value) and value >= least):
        raise NormalizationError(f"{name} is {value}; a finite number >= {least:g} is needed")


def require_positive(name: str, value: float) -> None:
    """Let only finite numbers above zero pass.

    Args:
        name: What the number is, for the message.
        value: The number.

    Raises:
        NormalizationError: If the number is zero, negative, nan or infinite.
    """
    if not (math.isfinite(value) and value > 0.0):
        raise NormalizationError(f"{name} is {value}; a finite number > 0 is needed")

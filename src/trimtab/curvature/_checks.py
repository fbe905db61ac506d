"""The error of this room, and the checks that several of its functions make."""

from typing import Any

from torch import Tensor

from trimtab.errors import TrimtabError


class CurvatureError(TrimtabError, ValueError):
    """Something of `trimtab.curvature` was given a model, a loss, data or an option that it cannot use."""


def kind(value: object) -> str:
    """What something is, in words for an error."""
    if isinstance(value, Tensor):
        of = f" of {value.dtype}" if value.is_complex() else ""
        return f"a tensor of shape {tuple(value.shape)}{of}"
    return f"a {type(value).__name__}" if value is not None else "None"


def require_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Let only one of a few words pass.

    Args:
        name: The argument.
        value: What was given.
        choices: What may be given.

    Raises:
        CurvatureError: It is none of them.
    """
    if not isinstance(value, str) or value not in choices:
        words = ", ".join(map(repr, choices))
        raise CurvatureError(f"{name} must be one of {words}, but it is {value!r}")


def require_count(name: str, value: Any, least: int = 1) -> None:
    """Let only whole numbers from some size on pass.

    Args:
        name: The argument.
        value: What was given.
        least: The smallest that may be given.

    Raises:
        CurvatureError: It is no such number.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise CurvatureError(f"{name} must be a whole number of at least {least}, but it is {value!r}")


def require_tolerance(name: str, value: Any) -> None:
    """Let only numbers between 0 and 1 pass.

    Args:
        name: The argument.
        value: What was given.

    Raises:
        CurvatureError: It is no such number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
        raise CurvatureError(f"{name} must be a number between 0 and 1, a relative error, but it is {value!r}")


SEEDS = 2**31


def require_seed(name: str, value: Any) -> None:
    """Let only seeds pass that every generator takes.

    Args:
        name: The argument.
        value: What was given.

    Raises:
        CurvatureError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < SEEDS:
        raise CurvatureError(f"{name} must be a whole number from 0 to {SEEDS - 1}, but it is {value!r}")


def require_finite(name: str, vector: Tensor) -> None:
    """Let only vectors without NaN and infinity pass.

    Args:
        name: The argument.
        vector: What was given.

    Raises:
        CurvatureError: It holds one.
    """
    if not bool(vector.isfinite().all()):
        raise CurvatureError(f"{name} holds NaN or infinity")

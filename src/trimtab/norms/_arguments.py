"""What arguments must be before anything is done with them: each check names the argument, what it was and what is needed."""

import math
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.errors import NormalizationError

_WHOLE = (int, np.integer, torch.SymInt)
_NUMBERS = (*_WHOLE, float, np.floating, torch.SymFloat)


def shown(value: object) -> str:
    """An argument for a message.

    Args:
        value: Anything.

    Returns:
        Numbers, words and short lists as they are written; of anything else the type, and the shape if it has one.
    """
    if value is None or isinstance(value, (bool, *_NUMBERS, complex)):
        return repr(value)
    if isinstance(value, (str, list, tuple, torch.dtype, torch.device)):
        return reprlib.repr(value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {tuple(shape)}" if isinstance(shape, tuple) else "")


def refuse(name: str, value: object, needed: str) -> NoReturn:
    """Say what an argument is and what it should be.

    Args:
        name: The argument.
        value: What it is.
        needed: What is needed, and perhaps how to come by it.

    Raises:
        NormalizationError: Always.
    """
    raise NormalizationError(f"{name} is {shown(value)}; {needed}")


def is_number(value: object) -> bool:
    """Whether something is a finite real number; a boolean and a tensor are not."""
    # compared, since a compiler that takes a number for a variable cannot call math.isfinite
    return isinstance(value, _NUMBERS) and not isinstance(value, bool) and bool(-math.inf < value < math.inf)


def is_whole(value: object) -> bool:
    """Whether something is a whole number; a boolean and a tensor are not."""
    return isinstance(value, _WHOLE) and not isinstance(value, bool)


def sizes_of(normalized_shape: Any) -> tuple[int, ...]:
    """The trailing sizes that are normalized together.

    Args:
        normalized_shape: A whole number, or several.

    Returns:
        A tuple of them.
    """
    several = isinstance(normalized_shape, (tuple, list))
    sizes = tuple(normalized_shape) if several else (normalized_shape,)
    if not all(is_whole(size) and size >= 0 for size in sizes):
        refuse(
            "normalized_shape", normalized_shape, "the size of the last axis is needed, or a tuple of trailing sizes"
        )
    return sizes


def require_number(**numbers: object) -> None:
    """Let only finite numbers pass.

    Args:
        numbers: By name.
    """
    for name, value in numbers.items():
        if not is_number(value):
            refuse(name, value, "a finite number is needed")


def require_at_least(least: float, **numbers: Any) -> None:
    """Let only finite numbers from `least` up pass.

    Args:
        least: The smallest that may pass.
        numbers: By name.
    """
    for name, value in numbers.items():
        if not (is_number(value) and value >= least):
            refuse(name, value, f"a finite number >= {least:g} is needed")


def require_positive(**numbers: Any) -> None:
    """Let only finite numbers above zero pass.

    Args:
        numbers: By name.
    """
    for name, value in numbers.items():
        if not (is_number(value) and value > 0.0):
            refuse(name, value, "a finite number > 0 is needed")


def require_eps(eps: Any) -> None:
    """Let only finite numbers above zero pass.

    Args:
        eps: What is added to a variance or a mean square.
    """
    if not (is_number(eps) and eps > 0.0):
        refuse(
            "eps", eps, "a finite number > 0 is needed: without it a constant input is divided by zero (1e-5 is usual)"
        )


def require_share(**numbers: Any) -> None:
    """Let only numbers from 0 to 1 pass.

    Args:
        numbers: By name.
    """
    for name, value in numbers.items():
        if not (is_number(value) and 0.0 <= value <= 1.0):
            refuse(name, value, "a number from 0 to 1 is needed")


def require_whole(least: int = 1, **numbers: Any) -> None:
    """Let only whole numbers from `least` up pass.

    Args:
        least: The smallest that may pass.
        numbers: By name.
    """
    for name, value in numbers.items():
        if not (is_whole(value) and value >= least):
            refuse(name, value, f"a whole number of at least {least} is needed")


def require_flag(**flags: object) -> None:
    """Let only True and False pass, and 1 and 0, which PyTorch's layers take for them.

    Args:
        flags: By name.
    """
    for name, value in flags.items():
        if not (isinstance(value, (bool, int, np.bool_)) and value in {0, 1}):
            refuse(name, value, "True or False is needed")


def require_device_and_dtype(device: object, dtype: object) -> None:
    """Let only a device, or what names one, and a floating dtype pass, and None.

    Args:
        device: Where parameters are to be made.
        dtype: Their type.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        refuse("dtype", dtype, "a floating torch.dtype such as torch.float32, or None, is needed")
    if device is not None:
        try:
            torch.device(device)  # type: ignore[call-overload]
        except (RuntimeError, TypeError):
            refuse("device", device, "a torch.device or the name of one, such as 'cpu' or 'cuda:0', or None, is needed")


def require_tensor(name: str, value: object) -> None:
    """Let only tensors pass.

    Args:
        name: The argument.
        value: What it is.
    """
    if not isinstance(value, Tensor):
        hint = " (torch.as_tensor makes one)" if isinstance(value, (list, np.ndarray)) else ""
        refuse(name, value, f"a tensor is needed{hint}")


def require_module(name: str, value: object) -> None:
    """Let only modules pass.

    Args:
        name: The argument.
        value: What it is.
    """
    if not isinstance(value, nn.Module):
        hint = ": make one of it, with brackets behind its name" if isinstance(value, type) else ""
        refuse(name, value, f"a torch.nn.Module is needed{hint}")


def require_values(model: nn.Module) -> None:
    """Let only models pass whose parameters and buffers have values.

    Args:
        model: A module.

    Raises:
        NormalizationError: If one is on the meta device.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise NormalizationError(
                f"model has {name} on the meta device, without values; to_empty(device=...) and load_state_dict give it some"
            )


def require_word(name: str, value: object, known: Iterable[str]) -> None:
    """Let only known words pass.

    Args:
        name: The argument.
        value: What it is.
        known: The words.
    """
    words = tuple(known)
    if not (isinstance(value, str) and value in words):
        refuse(name, value, f"one of {', '.join(map(repr, words))} is needed")


def require_names(name: str, value: object, what: str) -> tuple[str, ...]:
    """Let only several names pass.

    Args:
        name: The argument.
        value: What it is.
        what: What the names are of, for the message.

    Returns:
        The names.
    """
    given = None if isinstance(value, (str, bytes, Tensor)) else _listed(value)
    if given is None or not all(isinstance(one, str) for one in given):
        hint = f"; write {name}=[{value!r}]" if isinstance(value, str) else ""
        refuse(name, value, f"a list of names of {what} is needed{hint}")
    return tuple(given)


def _listed(value: object) -> Sequence[Any] | None:
    return list(value) if isinstance(value, Iterable) else None


def require_function(name: str, value: object, what: str) -> None:
    """Let only what can be called pass.

    Args:
        name: The argument.
        value: What it is.
        what: How it is called, for the message.
    """
    if not callable(value) or isinstance(value, (nn.Module, type)):
        refuse(name, value, f"a function is needed, called as {what}")

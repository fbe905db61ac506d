"""Modules by their names: looked up, listed in a sentence, looped over in code."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from trimtab.errors import RepairError

SHOWN = 4
"""Names in a sentence."""


def module_at(model: nn.Module, name: str, kinds: tuple[type[nn.Module], ...]) -> Any:
    """A module that a change names.

    Args:
        model: The model.
        name: Its name.
        kinds: What it must be.

    Returns:
        The module.

    Raises:
        RepairError: There is none, or it is of another kind.
    """
    try:
        module = model.get_submodule(name)
    except AttributeError as error:
        raise RepairError(f"the model has no module {name!r}") from error
    if not isinstance(module, kinds):
        raise RepairError(f"{name!r} is a {type(module).__name__}, which this cannot change")
    return module


def listed(names: Sequence[str] | None) -> str:
    """Names in a sentence.

    Args:
        names: Some names; None for all there are.

    Returns:
        The first ones, and how many there are besides.
    """
    if names is None:
        return "all of them"
    shown = ", ".join(name or "the model" for name in names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"


def loop_over(names: Sequence[str], *lines: str) -> str:
    """A loop over modules by their names.

    Args:
        names: The names.
        *lines: What is done with `layer`.

    Returns:
        The code.
    """
    head = f"for name in {list(names)!r}:\n    layer = model.get_submodule(name)\n"
    return head + "\n".join(f"    {line}" for line in lines)

"""Shortening lists of places: parameters to modules, modules in the order in which they were named."""

from collections.abc import Iterable


def owners(parameters: Iterable[str]) -> tuple[str, ...]:
    """The modules that own these parameters, each once.

    Args:
        parameters: Names such as "body.0.weight".

    Returns:
        Names such as "body.0"; a parameter of the root itself keeps its own name.
    """
    found = dict.fromkeys(name.rpartition(".")[0] or name for name in parameters)
    return tuple(found)

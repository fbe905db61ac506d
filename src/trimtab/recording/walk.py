"""The tensors in whatever a module takes or returns."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

MAX_DEPTH = 6


def tensors(value: Any, depth: int = MAX_DEPTH) -> Iterator[Tensor]:
    """Every tensor in a tensor, mapping, list, (named) tuple or dataclass, in its own order.

    Args:
        value: What a module was given or gave back.
        depth: How many containers deep to look.

    Yields:
        The tensors; strings, numbers, None and foreign objects hold none.
    """
    if isinstance(value, Tensor):
        yield value
    elif depth == 0 or value is None or isinstance(value, (str, bytes)):
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item, depth - 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name), depth - 1)


def measurable(value: Any, limit: int) -> list[Tensor]:
    """The first `limit` floating or complex tensors in `value`."""
    found: list[Tensor] = []
    for tensor in tensors(value):
        if tensor.is_floating_point() or tensor.is_complex():
            found.append(tensor)
            if len(found) == limit:
                break
    return found

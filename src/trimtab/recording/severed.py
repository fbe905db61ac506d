"""Where a module is given the numbers of another one's output without its graph: `detach()`, `.data`, a trip through numpy."""

from typing import Any

from torch import Tensor

from trimtab._torch import weak_storage
from trimtab.recording.fed import Fed
from trimtab.recording.walk import measurable

MAX_INPUTS = 3
"""Inputs of a module that are looked at: query, key and value."""


class Severed:
    """Knows where the outputs of a step lie that have a graph."""

    def __init__(self) -> None:
        self._outputs: dict[int, tuple[Any, str]] = {}

    def add(self, output: Tensor, key: str) -> None:
        """A module has made an output.

        Args:
            output: The output.
            key: The module's call.
        """
        storage = weak_storage(output) if output.requires_grad else None
        if storage is not None:
            self._outputs[output.untyped_storage().data_ptr()] = (storage, key)

    def look(self, args: tuple[Any, ...], *, known: bool, fed: Fed) -> str | None:
        """Where what a module is given comes from, if it has no graph.

        Args:
            args: What the module was called with.
            known: Whether a module is known that made it.
            fed: What the models are fed with.

        Returns:
            The call whose output has lost its graph on the way; "" for numbers that no module made and nobody fed; None for all else.
        """
        given = [tensor for tensor in measurable(args, MAX_INPUTS) if weak_storage(tensor) is not None]
        bare = [tensor for tensor in given if not tensor.requires_grad]
        for tensor in bare:
            storage, key = self._outputs.get(tensor.untyped_storage().data_ptr(), (None, ""))
            if storage is not None and not storage.expired():  # else something else has come to lie there
                return key
        foreign = not known and len(bare) == len(given) > 0 and not any(map(fed.holds, bare))
        return "" if foreign else None

    def clear(self) -> None:
        """The step has ended."""
        self._outputs.clear()

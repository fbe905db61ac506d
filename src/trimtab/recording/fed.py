"""What of a batch the models are fed with: the rest of it are targets."""

from typing import Any, TypeAlias

from torch import Tensor

from trimtab.recording.walk import tensors

Place: TypeAlias = tuple[int, int]
"""Address of a storage, and where in it a tensor begins."""


class Fed:
    """What the models were called with while a batch was in use.

    Tensors are known by where they lie: a batch lives as long as its step, so that nothing else comes to lie there.
    """

    def __init__(self) -> None:
        self._identities: set[int] = set()
        self._places: set[Place] = set()

    def add(self, arguments: Any) -> None:
        """A model is called with these arguments."""
        for tensor in tensors(arguments):
            self._identities.add(id(tensor))
            place = _place(tensor)
            if place is not None:
                self._places.add(place)

    def others(self, batch: Any) -> set[int]:
        """What of a batch no model was called with, neither as it is nor through a view.

        Args:
            batch: The batch.

        Returns:
            Identities of tensors; none where no model was called with anything of the batch, since then nobody knows.
        """
        found = list(tensors(batch))
        exact = [tensor for tensor in found if id(tensor) in self._identities or _place(tensor) in self._places]
        # A view may begin elsewhere in the storage. It is one of this tensor, unless a part of the same storage is known.
        known = {place[0] for place in map(_place, exact) if place}
        parts = {storage for storage, _ in self._places} - known
        fed = {id(tensor) for tensor in exact}
        fed |= {id(tensor) for tensor in found if (place := _place(tensor)) and place[0] in parts}
        return {id(tensor) for tensor in found} - fed if fed else set()

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is, or lies in, what a model was called with."""
        place = _place(tensor)
        return id(tensor) in self._identities or (
            place is not None and place[0] in {storage for storage, _ in self._places}
        )

    def clear(self) -> None:
        """Another batch comes."""
        self._identities.clear()
        self._places.clear()


def _place(tensor: Tensor) -> Place | None:
    """Where a tensor lies; None for one without memory of its own: meta, sparse, functorch's wrappers."""
    try:
        storage = tensor.untyped_storage().data_ptr()
        return (storage, int(tensor.storage_offset())) if storage else None
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        return None

"""Who is watched: models and optimizers, in the order in which they joined, and what they are as plain data."""

import itertools
import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trimtab.recording.facts import optimizer_facts
from trimtab.recording.taps import Listener
from trimtab.recording.watched import WatchedModel


class Roster:
    """Models and optimizers, held weakly.

    Attributes:
        models: The watched models; an index of the record is a place in this list.
        changed: Whether somebody has joined, or become active or not, since the facts were last written.
    """

    def __init__(self) -> None:
        self.models: list[WatchedModel] = []
        self.changed = True
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._facts: list[dict[str, Any]] = []

    def watched(self, model: nn.Module) -> WatchedModel | None:
        """The watch of a model, None where it is not watched."""
        return next((watched for watched in self.models if watched.model is model), None)

    def add_model(self, listener: Listener, model: nn.Module, label: str) -> WatchedModel:
        """Put a model on the list.

        Args:
            listener: Hears its taps.
            model: Not on the list yet.
            label: What the user calls it, its class by default.

        Returns:
            Its watch.
        """
        watched = WatchedModel(listener, model, len(self.models), self._unused(label or type(model).__name__))
        self.models.append(watched)
        self.changed = True
        return watched

    def _unused(self, label: str) -> str:
        """The label, numbered where another model has it."""
        taken = {watched.label for watched in self.models}
        numbered = (f"{label}-{i}" for i in itertools.count(2))
        return next(name for name in itertools.chain([label], numbered) if name not in taken)

    def index(self, optimizer: Optimizer) -> int | None:
        """The place of an optimizer, None where it is not watched."""
        return next((i for i, reference in enumerate(self._optimizers) if reference() is optimizer), None)

    def add_optimizer(self, optimizer: Optimizer, label: str) -> int:
        """Put an optimizer on the list and return its place."""
        self._optimizers.append(weakref.ref(optimizer))
        self._facts.append({"label": label, "class": type(optimizer).__name__, "bases": [], "groups": []})
        self.changed = True
        return len(self._optimizers) - 1

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that still are."""
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    def chosen(self, bits: int) -> list[Optimizer]:
        """The optimizers at the places whose bits are set, those that still are."""
        found = (reference() for i, reference in enumerate(self._optimizers) if bits >> i & 1)
        return [optimizer for optimizer in found if optimizer is not None]

    def rates(self) -> list[list[float | Tensor]]:
        """Learning rate of each group of each optimizer; nothing of one that is gone."""
        optimizers = (reference() for reference in self._optimizers)
        return [[] if optimizer is None else rates(optimizer) for optimizer in optimizers]

    def trained(self) -> set[int]:
        """Identities of the parameters that an optimizer has."""
        return {id(p) for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]}

    def facts(self, was_updated: Callable[[Tensor], bool]) -> dict[str, Any]:
        """Models and optimizers as plain data; of an optimizer that is gone, what was last known stands.

        Args:
            was_updated: Whether a parameter has been trained under watch.

        Returns:
            "models" and "optimizers".
        """
        names: dict[int, str] = {}
        for watched in self.models:
            for name, parameter, _ in watched.named_parameters():
                names.setdefault(id(parameter), name if len(self.models) == 1 else f"{watched.label}.{name}")
        for facts, reference in zip(self._facts, self._optimizers, strict=True):
            optimizer = reference()
            if optimizer is not None:
                facts |= optimizer_facts(optimizer, names)
        trained = self.trained()
        return {"models": [watched.facts(trained, was_updated) for watched in self.models], "optimizers": self._facts}


def rates(optimizer: Optimizer, groups: int | None = None) -> list[float | Tensor]:
    """The learning rates of an optimizer's first groups as they are now; one on a device stays there, as a copy.

    Args:
        optimizer: Any optimizer.
        groups: How many groups to look at; None for all.

    Returns:
        One number a group, NaN where it has none.
    """
    found = (group.get("lr", float("nan")) for group in optimizer.param_groups[:groups])
    return [rate.detach().clone() if isinstance(rate, Tensor) and not rate.is_cpu else float(rate) for rate in found]

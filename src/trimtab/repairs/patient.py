"""The run that is to be mended, as those see it who propose changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.diagnosis.probes import BATCHES, drawn


class Applicable(Protocol):
    """What can be done to a setup."""

    def apply(self, setup: Setup) -> Setup:
        """Change it in place."""
        ...


@dataclass(frozen=True)
class Patient:
    """A run before anything is tried on it.

    Attributes:
        make: Gives it fresh, with the changes made so far.
        setup: One of it, to look at; it is neither trained nor changed.
        batches: A few of its batches.
    """

    make: Callable[[], Setup]
    setup: Setup = field(init=False)
    batches: Sequence[Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "setup", self.make())
        object.__setattr__(self, "batches", drawn(self.setup, BATCHES).batches)

    @property
    def model(self) -> nn.Module:
        """Its model."""
        return self.setup.model

    def takes(self, change: Applicable) -> bool:
        """Whether a change can be made; tried on a fresh copy.

        Args:
            change: The change.

        Returns:
            False where it raises `RepairError`, or fails for a reason that was not thought of: the others are still to be tried.
        """
        with unchanged():
            setup = self.make()
            try:
                change.apply(setup)
            except Exception:
                return False
        return True


def at(model: nn.Module, where: Sequence[str], kinds: tuple[type[nn.Module], ...]) -> list[str]:
    """Names of the modules of some kinds that a finding is about.

    Args:
        model: The model.
        where: Places of a finding, module or parameter names.
        kinds: Classes.

    Returns:
        Those at or within these places, in the order of the model; all of the model's where no place names any.
    """
    named = [name for name, module in model.named_modules() if isinstance(module, kinds)]
    inside = [name for name in named if any(_meets(name, place) for place in where)]
    return inside or named


def _meets(name: str, place: str) -> bool:
    return name == place or name.startswith(f"{place}.") or place.startswith(f"{name}.") or place == ""

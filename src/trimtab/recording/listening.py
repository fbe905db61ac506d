"""How a recorder hears of backward passes, and how everything it has hooked is let go of, whatever becomes of it."""

import weakref
from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor

from trimtab import _torch
from trimtab.recording.watched import WatchedModel


class Hearer(Protocol):
    """What an ear tells of backward passes."""

    def before_backward(self, losses: tuple[Tensor, ...]) -> None:
        """A pass begins."""

    def after_backward(self) -> None:
        """A pass has ended."""


class Ear:
    """Hears backward passes for a recorder that nobody but its user keeps alive."""

    def __init__(self, hearer: Hearer) -> None:
        self._hearer = weakref.ref(hearer)

    def before_backward(self, losses: tuple[Tensor, ...]) -> None:
        """Pass it on."""
        hearer = self._hearer()
        if hearer is not None:
            hearer.before_backward(losses)

    def after_backward(self) -> None:
        """Pass it on."""
        hearer = self._hearer()
        if hearer is not None:
            hearer.after_backward()


def take_hooks_off(models: Iterable[WatchedModel], handles: list[Any]) -> None:
    """Leave modules and tensors without any hook of ours."""
    for watched in models:
        watched.detach_taps()
        watched.detach_entries()
    for handle in handles:
        handle.remove()
    handles.clear()


def let_go(ear: Ear, models: Iterable[WatchedModel], *handles: list[Any]) -> None:
    """Leave torch as it was; also when the recorder was never closed."""
    _torch.stop_listening_to_backward(ear)
    _torch.force_eager(False, ear)
    for some in handles:
        take_hooks_off(models, some)

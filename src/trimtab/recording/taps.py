"""Hooks on modules: what they hold, and how they vanish from copies.

A tap hears a module's forward call and puts a hook on the output tensor for the gradient. It holds weak references only, it
swallows its own faults, and its copies and pickles are a function of the standard library that does nothing, so that a copied
or saved model carries no trace of trimtab.
"""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import unserializable_hook

from trimtab._torch import is_replica


class Listener(Protocol):
    """What hears the taps."""

    def entered(self, entry: "Entry", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward call of an entry module begins."""

    def left(self, tap: "Tap", args: tuple[Any, ...], output: Any) -> None:
        """A forward call of a tapped module has ended."""

    def ended(self, end: "End") -> None:
        """A forward call of a root has ended, by an error perhaps."""

    def arrived(self, site: int, scope: int, grad: Tensor) -> None:
        """The gradient of the loss at a site has been computed."""

    def fail(self, error: Exception) -> None:
        """Something of trimtab's own went wrong inside a hook."""


def _inert() -> Callable[..., None]:
    """Something that can be called with anything and does nothing, and that pickles as a piece of the standard library."""
    return contextlib.nullcontext().__exit__


class Hook:
    """A module hook that belongs to one listener and one module.

    Attributes:
        model: Index of the model.
        name: Name of the module in its model.
    """

    __slots__ = ("__weakref__", "listener", "model", "module", "name")

    def __init__(self, listener: Listener, module: nn.Module, model: int, name: str) -> None:
        self.listener = weakref.ref(listener)
        self.module = weakref.ref(module)
        self.model = model
        self.name = name

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _inert()

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (contextlib.nullcontext(), "__exit__"))


class Entry(Hook):
    """A forward pre-hook that tells when a forward call of a root begins."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tell the listener; never raises."""
        if torch.compiler.is_compiling():
            return
        listener = self.listener()
        if listener is None or self.module() is not module:
            return
        try:
            listener.entered(self, args, kwargs)
        except Exception as error:  # never into the user's step
            listener.fail(error)


class Tap(Hook):
    """A forward hook: one module's output and, through a hook on the tensor, the gradient at it.

    Attributes:
        sites: Index of the output site and of the gradient site, for each output tensor seen so far.
        heard: Whether a call has been heard.
    """

    __slots__ = ("heard", "sites")

    def __init__(self, listener: Listener, module: nn.Module, model: int, name: str) -> None:
        super().__init__(listener, module, model, name)
        self.sites: list[tuple[int, int]] = []
        self.heard = False

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Tell the listener; never raises."""
        if torch.compiler.is_compiling():
            return
        listener = self.listener()
        if listener is None or (self.module() is not module and not is_replica(module)):
            return
        try:
            listener.left(self, args, output)
        except Exception as error:  # never into the user's step
            listener.fail(error)


class End(Hook):
    """A forward hook that tells when a forward call of a root has ended, also where it raised."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Tell the listener; never raises."""
        listener = self.listener()
        if listener is not None and self.module() is module:
            listener.ended(self)


def gradient_hook(listener: "weakref.ref[Any]", site: int, scope: int) -> Callable[[Tensor | None], None]:
    """A tensor hook that tells the listener of the gradient at one site.

    Args:
        listener: Weak reference to a `Listener`.
        site: Index of the gradient site.
        scope: The forward call of the root that the tensor belongs to.

    Returns:
        The hook; it never raises and never changes the gradient.
    """

    def hook(grad: Tensor | None) -> None:
        heard = listener()
        if heard is not None and grad is not None:  # torch gives none for one output of several that nothing has read
            try:
                heard.arrived(site, scope, grad)
            except Exception as error:  # never into the user's backward pass
                heard.fail(error)

    # Torch warns of any other hook where its tensor is pickled.
    return unserializable_hook(hook)  # type: ignore[no-untyped-call, no-any-return]

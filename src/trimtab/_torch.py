"""The few private or patched names of torch that trimtab depends on, one function each, one test each.

- `torch._C._current_graph_task_id`: torch.utils.checkpoint itself uses it; -1 outside a backward pass.
- `torch._C._functorch.maybe_current_level`: None outside vmap, grad and jvp.
- `Module._is_replica`: set on the copies that `DataParallel` makes for each device.
- `Node._sequence_nr`: the number autograd gave an operation when it ran.
- `torch.autograd.backward`: the one Python function behind `Tensor.backward`; it is wrapped while somebody listens.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

__all__ = [
    "BackwardListener",
    "force_eager",
    "functorch_is_active",
    "in_backward",
    "is_replica",
    "listen_to_backward",
    "sequence_number",
    "stop_listening_to_backward",
]


def in_backward() -> bool:
    """Whether the calling thread is inside a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def functorch_is_active() -> bool:
    """Whether a functorch transform (vmap, grad, jvp) is running, whose tensors are wrapped."""
    return torch._C._functorch.maybe_current_level() is not None


def is_replica(module: torch.nn.Module) -> bool:
    """Whether `DataParallel` has made this module for one device, with the hooks of the original."""
    return bool(getattr(module, "_is_replica", False))


def sequence_number(node: Any) -> int:
    """The number of an autograd node: larger for operations that ran later on the same thread."""
    return int(node._sequence_nr())


def force_eager(on: bool) -> bool:
    """Run compiled code eagerly, or as it was.

    Args:
        on: Whether to run it eagerly.

    Returns:
        Whether there is a compiler in this process at all; where there is none, nothing is done.
    """
    if "torch._dynamo" not in sys.modules:
        return False
    torch.compiler.set_stance("force_eager" if on else "default")
    return True


class BackwardListener(Protocol):
    """Somebody who wants to know of every outermost call of `torch.autograd.backward`."""

    def before_backward(self, losses: tuple[torch.Tensor, ...]) -> None:
        """Called before the pass, with the tensors it starts from."""

    def after_backward(self) -> None:
        """Called when the pass has ended, also when it failed."""


_listeners: tuple[BackwardListener, ...] = ()
_original: Callable[..., None] | None = None
_lock = threading.Lock()


def _starts(tensors: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(tensors, torch.Tensor):
        return (tensors,)
    if isinstance(tensors, Iterable):
        return tuple(t for t in tensors if isinstance(t, torch.Tensor))
    return ()


def _wrap(backward: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(backward)
    def backward_with_listeners(*args: Any, **kwargs: Any) -> None:
        if not _listeners or in_backward():  # a checkpointed block runs a pass inside the pass
            return backward(*args, **kwargs)
        listeners = _listeners
        starts = _starts(args[0] if args else kwargs.get("tensors"))
        for listener in listeners:
            listener.before_backward(starts)
        try:
            return backward(*args, **kwargs)
        finally:
            for listener in listeners:
                listener.after_backward()

    return backward_with_listeners


def listen_to_backward(listener: BackwardListener) -> None:
    """Tell `listener` of every backward pass from now on.

    Args:
        listener: Must not raise: it runs inside the user's own call.
    """
    global _listeners, _original
    with _lock:
        if _original is None:
            _original = torch.autograd.backward
            torch.autograd.backward = _wrap(_original)
        _listeners = (*_listeners, listener)


def stop_listening_to_backward(listener: BackwardListener) -> None:
    """Undo `listen_to_backward`; the last one to leave puts torch's own function back.

    Args:
        listener: One that was listening; anybody else is ignored.
    """
    global _listeners, _original
    with _lock:
        _listeners = tuple(other for other in _listeners if other is not listener)
        ours = getattr(torch.autograd.backward, "__wrapped__", None)
        if not _listeners and _original is not None and ours is _original:
            torch.autograd.backward = _original  # type: ignore[assignment]
            _original = None

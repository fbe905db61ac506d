"""The few private or patched names of torch that trimtab depends on, one function each, one test each.

- `torch._C._current_graph_task_id`: torch.utils.checkpoint itself uses it; -1 outside a backward pass.
- `torch._C._functorch.maybe_current_level`: None outside vmap, grad and jvp.
- `torch._C._len_torch_dispatch_stack`: number of dispatch modes that see each operation (fake tensors, `make_fx`).
- `torch._C._is_tracing`: whether `torch.jit.trace` is writing operations down.
- `Module._forward_hooks`, `._forward_pre_hooks`, and the two for the backward pass: a module's hooks by number.
- `torch.nn.modules.module._has_any_global_hook`: whether there are hooks of all modules.
- `Module._is_replica`: set on the copies that `DataParallel` makes for each device.
- `Node._sequence_nr`: the number autograd gave an operation when it ran.
- `Node._input_metadata`: shapes of what an operation has made, which its backward pass is given gradients of.
- `torch.multiprocessing.reductions.StorageWeakRef`: a storage, not kept alive; while it is held, no other comes by its identity.
- `torch.autograd.backward`: the one Python function behind `Tensor.backward`; it is wrapped while somebody listens.
- `Module.__call__`: what every call of a module goes by; it is wrapped until a script's first training pass has come.
- `torch.compiler.set_stance(...)`: what it returns, a context manager, knows the stance before (`prev`).
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = [
    "BackwardListener",
    "dispatch_mode_is_active",
    "force_eager",
    "forward_hooks",
    "functorch_is_active",
    "has_global_hooks",
    "has_hooks",
    "in_backward",
    "is_replica",
    "is_traced",
    "listen_to_backward",
    "output_shape",
    "sequence_number",
    "stop_listening_to_backward",
    "weak_storage",
    "wrap_module_calls",
]


def in_backward() -> bool:
    """Whether the calling thread is inside a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)


def functorch_is_active() -> bool:
    """Whether a functorch transform (vmap, grad, jvp) is running, whose tensors are wrapped."""
    return torch._C._functorch.maybe_current_level() is not None


def dispatch_mode_is_active() -> bool:
    """Whether a `TorchDispatchMode` sees the operations of the calling thread."""
    return torch._C._len_torch_dispatch_stack() > 0


def is_traced() -> bool:
    """Whether `torch.jit.trace` is writing down the operations of the calling thread."""
    return bool(torch._C._is_tracing())


def forward_hooks(module: torch.nn.Module) -> tuple[Callable[..., Any], ...]:
    """What is called before and after a module's own forward."""
    return (*module._forward_pre_hooks.values(), *module._forward_hooks.values())


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether anything is called before or after a module's own forward or backward."""
    return bool(forward_hooks(module) or module._backward_hooks or module._backward_pre_hooks)


def has_global_hooks() -> bool:
    """Whether something is called before or after the forward or backward of every module there is."""
    return bool(torch.nn.modules.module._has_any_global_hook())  # type: ignore[no-untyped-call]


def is_replica(module: torch.nn.Module) -> bool:
    """Whether `DataParallel` has made this module for one device, with the hooks of the original."""
    return bool(getattr(module, "_is_replica", False))


def sequence_number(node: Any) -> int:
    """The number of an autograd node: larger for operations that ran later on the same thread."""
    return int(node._sequence_nr())


def is_packed(node: Any, name: str) -> bool:
    """Whether what an autograd node keeps must be brought back first: from a checkpoint, which computes it anew, or from elsewhere.

    Args:
        node: The node.
        name: The attribute, such as "_saved_self".

    Returns:
        Whether hooks of `torch.autograd.graph.saved_tensors_hooks` have packed it; False where there is no such tensor.
    """
    try:
        raw = getattr(node, f"_raw{name}", None)
        return getattr(raw, "unpack_hook", None) is not None
    except RuntimeError:  # freed
        return False


def output_shape(node: Any, index: int = 0) -> list[int] | None:
    """The shape of an output of the operation behind an autograd node, None where it is not known."""
    try:
        return [int(size) for size in node._input_metadata[index].shape]
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return None


def weak_storage(tensor: torch.Tensor) -> StorageWeakRef | None:
    """The memory a tensor lies in, not kept alive; None for one without memory of its own: meta, sparse, functorch's wrappers."""
    try:
        storage = tensor.untyped_storage()
        return StorageWeakRef(storage) if storage.data_ptr() else None  # type: ignore[no-untyped-call]
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        return None


_stance: Any = None
"""What puts the compiler's stance back to the user's own, while ours is in its place."""


def force_eager(on: bool) -> bool:
    """Run compiled code eagerly, or as it was.

    Args:
        on: Whether to run it eagerly.

    Returns:
        Whether there is a compiler in this process at all; where there is none, nothing is done.
    """
    global _stance
    if "torch._dynamo" not in sys.modules:
        return False
    if not on and _stance is None:
        return True
    change = torch.compiler.set_stance("force_eager")
    users = _stance if _stance is not None and change.prev.stance == "force_eager" else change
    if on:
        _stance = users
    else:  # if the user has chosen another stance since, that one stays
        users.__exit__(None, None, None)
        _stance = None
    return True


class BackwardListener(Protocol):
    """Somebody who wants to know of every outermost call of `torch.autograd.backward`."""

    def before_backward(self, losses: tuple[torch.Tensor, ...]) -> None:
        """Called before the pass, with the tensors it starts from."""

    def after_backward(self) -> None:
        """Called when the pass has ended, also when it failed."""


_listeners: tuple[BackwardListener, ...] = ()
_wrappers: weakref.WeakSet[Callable[..., None]] = weakref.WeakSet()
_lock = threading.Lock()
_call = threading.local()


def _starts(tensors: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(tensors, torch.Tensor):
        return (tensors,)
    if isinstance(tensors, Iterable):
        return tuple(t for t in tensors if isinstance(t, torch.Tensor))
    return ()


def _wrap(backward: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(backward)
    def backward_with_listeners(*args: Any, **kwargs: Any) -> None:
        # A checkpointed block runs a pass inside the pass; of several wrappers of ours around one call, one tells.
        if not _listeners or in_backward() or getattr(_call, "told", False):
            return backward(*args, **kwargs)
        listeners = _listeners
        starts = _starts(args[0] if args else kwargs.get("tensors"))
        _call.told = True
        try:
            for listener in listeners:
                listener.before_backward(starts)
            try:
                return backward(*args, **kwargs)
            finally:
                for listener in listeners:
                    listener.after_backward()
        finally:
            _call.told = False

    _wrappers.add(backward_with_listeners)
    return backward_with_listeners


def _passes_us(backward: Any) -> bool:
    """Whether a call comes by a wrapper of ours, as far as wrappers around it say what they wrap."""
    seen: set[int] = set()
    while backward is not None and id(backward) not in seen:
        if backward in _wrappers:
            return True
        seen.add(id(backward))
        backward = getattr(backward, "__wrapped__", None)
    return False


def listen_to_backward(listener: BackwardListener) -> None:
    """Tell `listener` of every backward pass from now on.

    Somebody else may have patched the function before us, and may take that patch away with ours inside or put another
    one around ours: so it is looked at anew each time.

    Args:
        listener: Must not raise: it runs inside the user's own call.
    """
    global _listeners
    with _lock:
        if not _passes_us(torch.autograd.backward):
            torch.autograd.backward = _wrap(torch.autograd.backward)
        _listeners = (*_listeners, listener)


def stop_listening_to_backward(listener: BackwardListener) -> None:
    """Undo `listen_to_backward`; the last one to leave puts back what was there before.

    A wrapper of ours inside somebody else's stays there and does nothing.

    Args:
        listener: One that was listening; anybody else is ignored.
    """
    global _listeners
    with _lock:
        _listeners = tuple(other for other in _listeners if other is not listener)
        while not _listeners and torch.autograd.backward in _wrappers:
            torch.autograd.backward = torch.autograd.backward.__wrapped__  # type: ignore[attr-defined]


def wrap_module_calls(around: Callable[..., Any]) -> Callable[[], None]:
    """Let every call of every module go by a function, before any hook is read.

    Args:
        around: `around(call, module, args, kwargs)` gives what `call(module, *args, **kwargs)` gives.

    Returns:
        A function that puts back what was there before.
    """
    original = torch.nn.Module.__call__

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return around(original, module, args, kwargs)

    torch.nn.Module.__call__ = call  # type: ignore[method-assign]

    def put_back() -> None:
        if torch.nn.Module.__call__ is call:
            torch.nn.Module.__call__ = original  # type: ignore[method-assign]

    return put_back

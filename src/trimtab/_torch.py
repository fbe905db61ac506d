"""The few private or patched names of torch that trimtab depends on, one function each, one test each.

- `torch._C._current_graph_task_id`: torch.utils.checkpoint itself uses it; -1 outside a backward pass.
- `torch.amp.GradScaler.scale`: it is wrapped while somebody listens, to know which scalers there are; `._scale`: the scale of one.
- `torch.autocast.__enter__`: it is wrapped while trimtab computes a loss in full precision whose code asks for less.
- `torch._C._functorch.maybe_current_level`: None outside vmap, grad and jvp.
- `torch._C._len_torch_dispatch_stack`: number of dispatch modes that see each operation (fake tensors, `make_fx`).
- `torch._C._get_dispatch_mode`: whether a mode of torch's own (fake tensors, proxies) is at work.
- `torch._C._is_tracing`: whether `torch.jit.trace` is writing operations down.
- `torch.jit._recursive.create_script_module`: what scripts a module, with its hooks; it is wrapped while somebody listens.
- `torch.cuda.is_current_stream_capturing`: whether a CUDA graph is being captured; it cannot be asked where CUDA is not in use.
- `Module._forward_hooks`, `._forward_pre_hooks`, and the two for the backward pass: a module's hooks by number.
- `torch.nn.modules.module._has_any_global_hook`: whether there are hooks of all modules, of which a compiled one warns; and the tables.
- `Module._compiled_call_impl`: what `Module.compile` has put in place of a module's call.
- `Module._is_replica`: set on the copies that `DataParallel` makes for each device.
- `Node._sequence_nr`: the number autograd gave an operation when it ran.
- `Node._input_metadata`: shapes of what an operation has made, which its backward pass is given gradients of.
- `torch.multiprocessing.reductions.StorageWeakRef`: a storage, not kept alive; while it is held, no other comes by its identity.
- `torch.autograd.backward`: the one Python function behind `Tensor.backward`; it is wrapped while somebody listens.
- `Module.__call__`: what every call of a module goes by; it is wrapped until a script's first training pass has come.
- `Optimizer.step.hooked`: that torch has wrapped a class's step to call the hooks of optimizers; `__wrapped__` is the step alone.
- `torch.compiler.set_stance(...)`: what it returns, a context manager, knows the stance before (`prev`).
- `torch.compile`: it is wrapped until it has brought the compiler into the process, while somebody wants compiled code to run eagerly.
- `torch._C._dynamo.eval_frame.set_code_exec_strategy`, and the attribute `_torchdynamo_disable`: what `torch.compiler.disable`
  brings about, which itself would bring in the whole compiler.
- `torch._C._dynamo.eval_frame.get_eval_frame_callback`: what compiles the calls of the running frame, if anything does.
- `torch._C._dynamo.eval_frame.set_fullgraph_compiled_frame_count`: how many frames the running call with `fullgraph=True` has
  compiled, -1 outside one; a call with none raises under the default stance.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

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
    "has_no_values",
    "hide_from_torchscript",
    "in_backward",
    "is_capturing",
    "is_compiled",
    "is_faked",
    "is_replica",
    "is_traced",
    "keep_from_view",
    "listen_to_backward",
    "loss_scales",
    "notice_scalers",
    "output_shape",
    "sequence_number",
    "step_unheard",
    "stop_listening_to_backward",
    "undisturbed",
    "weak_storage",
    "without_autocast",
    "wrap_module_calls",
]


F = TypeVar("F", bound=Callable[..., Any])


_has_any_global_hook = torch.nn.modules.module._has_any_global_hook


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


def is_faked() -> bool:
    """Whether the operations of the calling thread give fake tensors, or are written down by `make_fx`: there are no values to read."""
    keys = torch._C._TorchDispatchModeKey
    return dispatch_mode_is_active() and any(
        torch._C._get_dispatch_mode(key) is not None for key in (keys.FAKE, keys.PROXY)
    )


def is_capturing() -> bool:
    """Whether the operations of the calling thread go into a CUDA graph: nothing may be read then, and what we launched would be replayed."""
    return bool(torch.cuda.is_initialized()) and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def forward_hooks(module: torch.nn.Module) -> tuple[Callable[..., Any], ...]:
    """What is called before and after a module's own forward."""
    return (*module._forward_pre_hooks.values(), *module._forward_hooks.values())


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether anything is called before or after a module's own forward or backward."""
    return bool(forward_hooks(module) or module._backward_hooks or module._backward_pre_hooks)


def has_global_hooks() -> bool:
    """Whether something is called before or after the forward or backward of every module there is."""
    return bool(_has_any_global_hook())  # type: ignore[no-untyped-call]


def keep_from_view(handles: Iterable[Any]) -> Callable[[], None]:
    """Let a compiled module not warn of hooks of all modules that are trimtab's own.

    Args:
        handles: What registering the hooks has returned.

    Returns:
        A function that puts back what was there before.
    """
    module, own = torch.nn.modules.module, {handle.id for handle in handles}
    before = module._has_any_global_hook

    def has_any_other() -> bool:
        tables = (
            module._global_backward_pre_hooks,
            module._global_backward_hooks,
            module._global_forward_pre_hooks,
            module._global_forward_hooks,
        )
        return any(number not in own for table in tables for number in table)

    module._has_any_global_hook = has_any_other

    def put_back() -> None:
        if module._has_any_global_hook is has_any_other:
            module._has_any_global_hook = before

    return put_back


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether `torch.compile` has been called on a model, or on a part of it."""
    return any(m._compiled_call_impl is not None or type(m).__name__ == "OptimizedModule" for m in model.modules())


def is_replica(module: torch.nn.Module) -> bool:
    """Whether `DataParallel` has made this module for one device, with the hooks of the original."""
    return bool(getattr(module, "_is_replica", False))


class Handle:
    """Something that can be taken back once."""

    def __init__(self, take_back: Callable[[], None]) -> None:
        self._take_back: Callable[[], None] | None = take_back

    def remove(self) -> None:
        """Take it back."""
        take_back, self._take_back = self._take_back, None
        if take_back is not None:
            take_back()


def _replaced(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Handle:
    """Put a wrapper in a function's place; taking it back leaves alone what somebody else has put there since."""
    before = getattr(owner, name)
    ours = wrap(before)
    setattr(owner, name, ours)

    def put_back() -> None:
        if getattr(owner, name) is ours:
            setattr(owner, name, before)

    return Handle(put_back)


_hidden: list[type] = []
_scripts = Handle(lambda: None)


def has_no_values() -> bool:
    """Whether what runs is only looked at by somebody: transformed, traced or faked."""
    return functorch_is_active() or is_traced() or is_faked()


def hide_from_torchscript(kind: type) -> Handle:
    """Let `torch.jit.script` and `torch.jit.trace` not see hooks of one kind, which they would compile with the module.

    Args:
        kind: The class of the hooks.

    Returns:
        A handle with a `remove` method.
    """
    global _scripts
    if not _hidden:
        _scripts = _replaced(torch.jit._recursive, "create_script_module", _without_hidden_hooks)
    _hidden.append(kind)

    def show() -> None:
        _hidden.remove(kind)
        if not _hidden:
            _scripts.remove()

    return Handle(show)


def _without_hidden_hooks(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_script_module(nn_module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        kinds, taken = tuple(_hidden), []
        for module in nn_module.modules():
            for table in (module._forward_hooks, module._forward_pre_hooks):
                if any(isinstance(hook, kinds) for hook in table.values()):
                    taken.append((table, list(table.items())))
                    for number, hook in taken[-1][1]:
                        if isinstance(hook, kinds):
                            del table[number]
        try:
            return create(nn_module, *args, **kwargs)
        finally:
            for table, before in taken:
                table.clear()
                table.update(before)

    return create_script_module


_scalers: "weakref.WeakSet[torch.amp.GradScaler]" = weakref.WeakSet()
_noticing = 0
_scales = Handle(lambda: None)


def notice_scalers() -> Handle:
    """Know from now on which gradient scalers multiply a loss.

    Returns:
        A handle with a `remove` method.
    """
    global _noticing, _scales
    if not _noticing:
        _scales = _replaced(torch.amp.GradScaler, "scale", _telling)
    _noticing += 1

    def forget() -> None:
        global _noticing
        _noticing -= 1
        if not _noticing:
            _scalers.clear()
            _scales.remove()

    return Handle(forget)


def _telling(scale: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(scale)
    def scale_and_tell(self: torch.amp.GradScaler, outputs: Any) -> Any:
        if _noticing:
            _scalers.add(self)
        return scale(self, outputs)

    return scale_and_tell


def loss_scales() -> list[torch.Tensor]:
    """What the gradient scalers that have been noticed multiply by just now, each on its device."""
    scales = (
        getattr(scaler, "_scale", None) for scaler in list(_scalers)
    )  # none of one that is switched off, or unused yet
    return [scale for scale in scales if scale is not None]


@contextmanager
def without_autocast() -> Iterator[None]:
    """Leave every precision as it is: autocast that is on is off, and code that turns it on meanwhile does not.

    Yields:
        Nothing.
    """

    inside = True

    def leave() -> None:
        nonlocal inside
        inside = False

    def wrap(enter: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(enter)
        def enter_without_effect(self: Any) -> Any:
            if not inside:  # somebody has wrapped this one
                return enter(self)
            asked, self._enabled = self._enabled, False
            try:
                return enter(self)
            finally:
                self._enabled = asked

        return enter_without_effect

    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    with ExitStack() as stack:
        for device in devices:
            stack.enter_context(torch.autocast(device, enabled=False))
        stack.callback(_replaced(torch.autocast, "__enter__", wrap).remove)
        stack.callback(leave)
        yield


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


def step_unheard(optimizer: torch.optim.Optimizer) -> None:
    """One step of an optimizer of our own, of which hooks of all optimizers (a user's, or those of a watched run) hear nothing."""
    step: Any = type(optimizer).step
    (step.__wrapped__ if getattr(step, "hooked", False) else step)(optimizer)


_stance: Any = None
"""What puts the compiler's stance back to the user's own, while ours is in its place."""

_awaiting: tuple[Callable[..., Any], Callable[..., Any]] | None = None
"""Our wrapper of `torch.compile` and what it wraps, while no compiler has come."""

_eager: set[int] = set()
"""Identities of those who want compiled code to run eagerly."""


def force_eager(on: bool, who: object = None) -> None:
    """Run compiled code eagerly, or as it was. Where there is no compiler yet, from its coming on.

    Args:
        on: Whether to run it eagerly.
        who: On whose behalf; it runs eagerly as long as anybody wants it. Not kept alive.
    """
    (_eager.add if on else _eager.discard)(id(who))
    if "torch._dynamo" in sys.modules:
        _take_stance(bool(_eager))
    elif _eager:
        _await_compiler()
    else:
        _stop_awaiting_compiler()


def _take_stance(eager: bool) -> None:
    global _stance
    if (not eager and _stance is None) or torch._C._dynamo.eval_frame.get_eval_frame_callback():
        return  # inside a call that has been compiled, the compiler takes no other stance
    change = torch.compiler.set_stance("force_eager")
    users = _stance if _stance is not None and change.prev.stance == "force_eager" else change
    if eager:
        _stance = users
    else:  # if the user has chosen another stance since, that one stays
        users.__exit__(None, None, None)
        _stance = None
        _excuse_running_graph()


def _excuse_running_graph() -> None:
    """A call with `fullgraph=True` that is running just now has run eagerly for our sake: it need not have compiled anything."""
    count = torch._C._dynamo.eval_frame.set_fullgraph_compiled_frame_count
    before = count(-1)
    if before >= 0:
        count(max(before, 1))


def _await_compiler() -> None:
    """Take our stance as soon as `torch.compile` brings the compiler into the process."""
    global _awaiting
    original = torch.compile
    if _awaiting is not None:
        return

    @functools.wraps(original)
    def compile_and_take_stance(*args: Any, **kwargs: Any) -> Any:
        compiled = original(*args, **kwargs)
        if "torch._dynamo" in sys.modules:  # it comes with the first function, not with the decorator
            _stop_awaiting_compiler()
            _take_stance(bool(_eager))
        return compiled

    _awaiting = (compile_and_take_stance, original)
    torch.compile = compile_and_take_stance


def _stop_awaiting_compiler() -> None:
    global _awaiting
    if _awaiting is not None and torch.compile is _awaiting[0]:  # else somebody has put another wrapper around ours
        torch.compile = _awaiting[1]
    _awaiting = None


def undisturbed(function: F) -> F:
    """Keep the compiler away from a function of trimtab's own that may be called from compiled code.

    Args:
        function: Written in Python.

    Returns:
        The same: it breaks a graph where it is called, and neither it nor what it calls is compiled.
    """
    _not_compiled(function, deep=True)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def _not_compiled(function: Callable[..., Any], deep: bool) -> None:
    """Leave a function's frame alone, and (deep) the frames of all that it calls."""
    c = torch._C._dynamo.eval_frame
    action = c._FrameAction
    c.set_code_exec_strategy(
        function.__code__, c._FrameExecStrategy(action.SKIP, action.SKIP if deep else action.DEFAULT)
    )


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


for _function in (in_backward, _starts):
    _not_compiled(_function, deep=True)


def _wrap(backward: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(backward)
    def backward_with_listeners(*args: Any, **kwargs: Any) -> None:
        # A checkpointed block runs a pass inside the pass; of several wrappers of ours around one call, one tells.
        if torch.compiler.is_compiling() or not _listeners or in_backward() or getattr(_call, "told", False):
            return backward(*args, **kwargs)
        listeners = _listeners
        starts = _starts(args[0] if args else kwargs.get("tensors"))
        _call.told = True
        try:
            _tell_before(listeners, starts)
            try:
                return backward(*args, **kwargs)
            finally:
                _tell_after(listeners)
        finally:
            _call.told = False

    _not_compiled(backward_with_listeners, deep=False)
    _wrappers.add(backward_with_listeners)
    return backward_with_listeners


@undisturbed
def _tell_before(listeners: tuple[BackwardListener, ...], starts: tuple[torch.Tensor, ...]) -> None:
    for listener in listeners:
        listener.before_backward(starts)


@undisturbed
def _tell_after(listeners: tuple[BackwardListener, ...]) -> None:
    for listener in listeners:
        listener.after_backward()


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

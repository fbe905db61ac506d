"""Find the models and optimizers of a script that knows nothing of trimtab.

A global forward pre-hook sees each root before its children, global step hooks see every optimizer. The hooks that cost
something on every module call are there only until every optimizer's parameters are found in a model.
"""

import dis
import functools
import inspect
import os
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trimtab import _torch
from trimtab.recording import Recorder
from trimtab.runner.script import PACKAGE

LIBRARIES = tuple({sysconfig.get_paths()[key] + os.sep for key in ("stdlib", "purelib", "platlib")})
PATIENCE = 10
"""Steps after which a model that no optimizer trains is left alone."""
REFLECTION = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""Functions that read, hand out or write a frame's own copy of its variables."""


def _guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook whose own faults end the watching and never reach the user's step."""

    @functools.wraps(hook)
    def guarded(self: "Discovery", *args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self.recorder.fault is None and os.getpid() == self.pid:
            try:
                hook(self, *args)
            except Exception as error:
                self._stop_listening()  # but to optimizers, which may be running their hooks just now
                self.recorder.fail(error)

    return guarded


class Discovery:
    """Watches the whole process for roots and optimizers, and hands them to a recorder.

    Attributes:
        on_found: Called once, when the first model has been found.
    """

    def __init__(self, recorder: Recorder, on_found: Callable[[], None]) -> None:
        self.recorder = recorder
        self.on_found = on_found
        self._handles: list[Any] = []
        self._module_handles: list[Any] = []
        self._into_view: Callable[[], None] = lambda: None
        self._owner: weakref.ref[nn.Module] | None = None
        self._roots: list[weakref.ref[nn.Module]] = []
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._steps = 0
        self._places: dict[str, tuple[str, int]] = {}
        self.pid = os.getpid()

    def start(self) -> None:
        """Begin to look."""
        self._handles.append(register_optimizer_step_pre_hook(self._stepping))
        _torch.listen_to_backward(self)
        self._look_for_roots()

    def close(self) -> None:
        """Take every hook away; models that nothing has trained until now are no part of the run."""
        if self._optimizers and os.getpid() == self.pid:
            self.recorder.drop_untrained()
        self._stop_listening()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _stop_listening(self) -> None:
        self._stop_looking_for_roots()
        _torch.stop_listening_to_backward(self)

    # ---------------------------------------------------------------------------------------------------- roots

    def _look_for_roots(self) -> None:
        if not self._module_handles:
            self._module_handles = [
                register_module_forward_pre_hook(self._calling),
                register_module_forward_hook(self._called, always_call=True),
            ]
            self._into_view = _torch.keep_from_view(self._module_handles)

    @_guarded
    def _calling(self, module: nn.Module, args: Any) -> None:
        if self._owner is not None and self._owner() is not None:
            return
        self._owner = weakref.ref(module)
        if torch.is_grad_enabled() and not _torch.in_backward() and not any(r() is module for r in self._roots):
            frame = sys._getframe(1)
            if is_under_construction(frame):
                return
            self._roots.append(weakref.ref(module))
            if any(p.requires_grad for p in module.parameters()):
                self._found(module, args, frame)

    @_guarded
    def _called(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._owner is not None and self._owner() is module:
            self._owner = None

    def _found(self, root: nn.Module, args: Any, frame: FrameType) -> None:
        self._note_place("forward", frame)
        model, label = owner(root, frame)
        first = not self.recorder.models
        watched = self.recorder.add_model(model, label)
        self.recorder.absorb_parts(watched)
        self._steps = 0
        self.recorder.enter(watched, root, args if isinstance(args, tuple) else (args,))
        if first:
            self.on_found()

    # ---------------------------------------------------------------------------------------------------- steps

    @_guarded
    def _stepping(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if any(reference() is optimizer for reference in self._optimizers):
            self._steps += 1
            if self._steps == PATIENCE:
                self.recorder.drop_untrained()
            return
        self._steps = 0
        self._optimizers.append(weakref.ref(optimizer))
        self._note_place("step", sys._getframe(1))
        self.recorder.add_optimizer(optimizer, variable(optimizer, sys._getframe(1)))
        known = {id(p) for watched in self.recorder.models for _, p, _ in watched.named_parameters()}
        if all(id(p) in known for group in optimizer.param_groups for p in group["params"]):
            self._stop_looking_for_roots()
        else:
            self._look_for_roots()

    def _stop_looking_for_roots(self) -> None:
        for handle in self._module_handles:
            handle.remove()
        self._module_handles.clear()
        self._into_view()
        self._owner = None

    @_guarded
    def before_backward(self, losses: tuple[Tensor, ...]) -> None:
        """Note once where the backward pass is called."""
        self._note_place("backward", sys._getframe(1))

    def after_backward(self) -> None:
        """One look was enough."""
        _torch.stop_listening_to_backward(self)

    def _note_place(self, what: str, frame: FrameType) -> None:
        if what in self._places:
            return
        for user in user_frames(frame):
            self._places[what] = (os.path.abspath(user.f_code.co_filename), user.f_lineno)
            self.recorder.store.facts({"places": self._places})
            return


def user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the user's own code, the innermost first.

    Args:
        frame: Where to start.

    Yields:
        Frames whose code lies neither in trimtab nor in an installed library.
    """
    while frame is not None:
        if is_users(frame):
            yield frame
        frame = frame.f_back


def is_users(frame: FrameType) -> bool:
    """Whether a frame's code lies neither in trimtab nor in an installed library."""
    file = frame.f_code.co_filename
    return not file.startswith((PACKAGE, "<", *LIBRARIES))


def local_variables(frame: FrameType) -> list[tuple[str, object]]:
    """The local variables of a running frame.

    Before Python 3.13 a look at `f_locals` leaves a copy in a function's frame, which would keep the first batch and all that
    hangs on it alive until the function returns: it is emptied again. The same copy is what `locals()` hands out, so that a
    function which asks for it is left alone.

    Args:
        frame: A frame on the stack.

    Returns:
        Names and values.
    """
    held = frame.f_locals if _is_open(frame) else {}
    found = list(held.items())
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(held) is dict:
        held.clear()
    return found


def _is_open(frame: FrameType) -> bool:
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED or REFLECTION.isdisjoint(code.co_names):
        return True
    called = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return REFLECTION.isdisjoint(called)  # `model.eval()` is none of them


def is_under_construction(frame: FrameType | None) -> bool:
    """Whether a call stands in the constructor of a module, which tries its parts (say to learn their output's size)."""
    while frame is not None:
        if frame.f_code.co_name == "__init__" and any(
            isinstance(value, nn.Module) for name, value in local_variables(frame) if name == "self"
        ):
            return True
        frame = frame.f_back
    return False


def owner(root: nn.Module, frame: FrameType | None) -> tuple[nn.Module, str]:
    """The largest module in the user's hands that holds `root`, and what the user calls it.

    A Lightning module is never called itself; a GAN kept in one module is called by its parts. Their names are better told
    from the whole.

    Args:
        root: A module that was called from no other module.
        frame: Where it was called.

    Returns:
        The module (`root` itself where nothing holds it) and a label.
    """
    best, size = root, sum(1 for _ in root.modules())
    outer = frame
    while outer is not None:
        if not outer.f_code.co_filename.startswith(PACKAGE):
            for _, value in local_variables(outer):
                if isinstance(value, nn.Module):
                    parts = list(value.modules())
                    if len(parts) > size and any(part is root for part in parts):
                        best, size = value, len(parts)
        outer = outer.f_back
    return best, variable(best, frame) or type(best).__name__


def variable(value: object, frame: FrameType | None) -> str:
    """The name of a variable of the user's that holds `value`, "" when there is none.

    Of several the outermost: a function that trains whatever it is given calls it `model`, its callers know better.

    Args:
        value: What is looked for.
        frame: Where to start.

    Returns:
        The name.
    """
    found = ""
    for user in user_frames(frame):
        names = [name for name, held in local_variables(user) if held is value]
        found = next((name for name in names if name != "self" and not name.startswith("_")), found)
    return found

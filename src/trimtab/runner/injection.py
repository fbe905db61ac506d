"""Changes made from outside to a script that is running: at its first training pass, on the model and optimizer that it holds then."""

import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trimtab import _torch
from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.diagnosis.probes.calls import mapped
from trimtab.errors import RepairError
from trimtab.recording.walk import measurable
from trimtab.repairs.change import Change
from trimtab.runner.discovery import is_under_construction, owner, variable


class InjectionError(RepairError):
    """A change cannot be made to a script from outside."""


IN_THE_SCRIPT = {
    "model": "the model itself is the script's",
    "optimizer": "the optimizer is made in the script",
    "batches": "the batches are drawn in the script",
    "loss": "the loss is computed in the script",
    "step": "the training step is written in the script",
    "evaluate": "the evaluation is written in the script",
}


@dataclass
class Held:
    """What a script holds at its first training pass.

    Attributes:
        model: What its optimizers train: the module that is called, or a larger one, or several in one.
        root: The module that is called.
        optimizers: Its optimizers.
        schedulers: Those that change these optimizers' rates.
        args: What the root is called with.
        kwargs: The same by name.
        label: What the script calls the model.
        labels: What it calls each of several models; empty where there is one.
        prefix: What stands before a name of the model's in the record's names.
        optimizer_labels: What it calls each optimizer, "" where that is not known.
    """

    model: nn.Module
    root: nn.Module
    optimizers: list[Optimizer]
    schedulers: list[Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    label: str = "model"
    labels: list[str] = field(default_factory=list)
    prefix: str = ""
    optimizer_labels: list[str] = field(default_factory=list)

    def setup(self, steps: int) -> "ScriptSetup":
        """The script as a setup, as far as that goes.

        Args:
            steps: Training steps of a run.

        Returns:
            The setup.
        """
        batch = (*self.args, self.kwargs) if self.kwargs else self.args
        return ScriptSetup(
            self.model,
            self.optimizers[0] if len(self.optimizers) == 1 else self.optimizers,
            lambda: [batch],
            self._answer,
            steps,
            scheduler=_twin(self.schedulers),
        )

    def inject(self, changes: Iterable[Change], steps: int, seed: int) -> None:
        """Make changes.

        Args:
            changes: The changes.
            steps: Training steps of a run.
            seed: Of what they draw; the script's own random states stay as they are.

        Raises:
            RepairError: One cannot be made.
        """
        setup = self.setup(steps)
        twin = setup.scheduler
        with unchanged():
            seed_all(seed)
            for change in changes:
                change.apply(setup)
        if setup.scheduler is not twin:
            self._reroute(setup.scheduler)

    def _answer(self, model: nn.Module, batch: Any) -> Tensor:
        """In place of the script's loss, which nobody knows: the model runs, but no gradient comes of it."""
        found = measurable(self.root(*self.args, **self.kwargs), 4)
        value = sum((t.float().square().mean() for t in found), torch.zeros(()))
        return _NoGradient.apply(value)  # type: ignore[no-any-return,no-untyped-call]

    def _reroute(self, new: Any) -> None:
        """Let the script's own call of its scheduler step another one."""
        if not self.schedulers:
            for optimizer in self.optimizers[-1:]:
                optimizer.register_step_post_hook(lambda *_: new.step())
            return
        if len(self.schedulers) > 1:
            raise InjectionError("the script has several schedulers")
        own = self.schedulers[0]

        def step(self: Any, *args: Any, **kwargs: Any) -> None:
            if new is not None:
                new.step(*args, **kwargs)

        own.__class__ = type(type(own).__name__, (type(own),), {"step": step})


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        raise InjectionError("it needs the gradient of the loss, which is computed in the script")


class ScriptSetup(Setup):
    """A script in the form of a setup: what is in the script's own hands can be read, but not replaced."""

    _fixed = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fixed = True

    def __setattr__(self, name: str, value: Any) -> None:
        if self._fixed and name in IN_THE_SCRIPT and value is not getattr(self, name):
            raise InjectionError(IN_THE_SCRIPT[name])
        super().__setattr__(name, value)


class Several(nn.Module):
    """Several models of a script under one roof, which is never called."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_modules", {}):
            raise InjectionError(IN_THE_SCRIPT["model"])
        super().__setattr__(name, value)

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> Any:
        """Nobody would call it."""
        raise InjectionError("the script has several models")

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        """Nobody would call it."""
        raise InjectionError("the script has several models")


class _Schedulers:
    """Several schedulers as one, for what changes them all."""

    def __init__(self, several: list[Any]) -> None:
        self._schedulers = several

    def step(self) -> None:
        """Step each."""
        for one in self._schedulers:
            one.step()


def _twin(schedulers: list[Any]) -> Any:
    """A scheduler with the state of the script's own, which may be wrapped in another: the script's own call is led to that one then."""
    if not schedulers:
        return None
    if len(schedulers) > 1:
        return _Schedulers(schedulers)
    own = schedulers[0]
    twin = object.__new__(type(own))
    twin.__dict__ = own.__dict__
    return twin


def seed_all(seed: int) -> None:
    """Seed the process's generators, whatever has been made of `torch.manual_seed`."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    np.random.mtrand._rand.seed(seed)
    random._inst.seed(seed)


class FirstPass:
    """Waits for the first forward call that trains a model which an optimizer has.

    Args:
        found: Given what the script holds, before that call; once.
    """

    def __init__(self, found: Callable[[Held], None]) -> None:
        self._found = found
        self._inside = False
        self._optimizers: list[Optimizer] = []
        self._put_back: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin to wait."""
        made, init = self._optimizers, Optimizer.__init__

        def noted(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            made.append(optimizer)

        Optimizer.__init__ = noted  # type: ignore[method-assign, assignment]
        self._put_back.append(lambda: setattr(Optimizer, "__init__", init))
        self._put_back.append(_torch.wrap_module_calls(self._call))

    def stop(self) -> None:
        """Leave torch as it was."""
        while self._put_back:
            self._put_back.pop()()

    def _call(self, call: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._inside or not self._put_back or _torch.in_backward() or not torch.is_grad_enabled():
            return call(module, *args, **kwargs)
        frame = sys._getframe(2)
        if self._is_trained(module) and not is_under_construction(frame):
            self.stop()
            self._found(_held(module, args, kwargs, self._optimizers, frame))
            return call(module, *args, **kwargs)
        self._inside = True  # its parts are no roots
        try:
            return call(module, *args, **kwargs)
        finally:
            self._inside = False

    def _is_trained(self, module: nn.Module) -> bool:
        trained = _parameters_of(self._optimizers)
        own = list(module.parameters())
        return any(id(p) in trained for p in own) and not any(is_lazy(p) for p in own)


def _parameters_of(optimizers: Iterable[Optimizer]) -> set[int]:
    return {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}


def _held(
    root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], optimizers: list[Optimizer], frame: FrameType
) -> Held:
    trained = _parameters_of(optimizers)
    outer, label = owner(root, frame)
    args, kwargs = mapped((args, kwargs), torch.Tensor.detach)
    found = Held(root, root, optimizers, _schedulers(optimizers), args, kwargs, label)
    found.optimizer_labels = [variable(optimizer, frame) for optimizer in optimizers]
    if trained <= {id(p) for p in root.parameters()}:
        found.prefix = next(name for name, module in outer.named_modules() if module is root)
    elif trained <= {id(p) for p in outer.parameters()}:
        found.model = outer
    else:
        found.model = Several()
        for model in _largest(trained):
            name = variable(model, frame) or type(model).__name__
            found.model.add_module(name, model)
            found.labels.append(name)
    return found


def _schedulers(optimizers: list[Optimizer]) -> list[Any]:
    """The schedulers of some optimizers that are no part of another one."""
    found = [s for s in _alive(LRScheduler) if any(getattr(s, "optimizer", None) is o for o in optimizers)]
    parts = {id(part) for one in found for part in getattr(one, "_schedulers", ())}
    return [one for one in found if id(one) not in parts]


def _largest(trained: set[int]) -> list[nn.Module]:
    """The models that hold parameters which are trained, and that no other such model holds."""
    models = [m for m in _alive(nn.Module) if any(id(p) in trained for p in m.parameters())]
    parts = {id(part) for model in models for part in model.modules() if part is not model}
    return [model for model in models if id(model) not in parts]


def _alive(kind: type) -> list[Any]:
    import gc

    return [value for value in gc.get_objects() if issubclass(type(value), kind)]

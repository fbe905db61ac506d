"""The step clock: hooks on an optimizer's step, the one place where gradients are summed, averaged and unscaled."""

import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from torch.optim import Optimizer

from trimtab._torch import undisturbed

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class StepListener(Protocol):
    """What hears the clock."""

    def before_step(self, optimizer: Optimizer) -> None:
        """The gradients are as the optimizer will use them."""

    def after_step(self, optimizer: Optimizer) -> None:
        """The parameters have been updated."""

    def closure_begins(self, optimizer: Optimizer) -> None:
        """The optimizer's step runs a closure, whose backward passes belong to this step."""

    def closure_failed(self) -> None:
        """The closure has raised an error of the user's own."""

    def fail(self, error: Exception) -> None:
        """Something of trimtab's own went wrong inside a hook."""


def innermost(optimizer: Optimizer) -> Optimizer:
    """The optimizer whose step does the work, inside the wrappers that accelerate and Lightning put around one.

    Args:
        optimizer: Any optimizer; one that is made of another and has hooks of its own is no mere wrapper.

    Returns:
        The optimizer itself where it is not wrapped.
    """
    inner = getattr(optimizer, "optimizer", None)
    if not isinstance(inner, Optimizer) or inner is optimizer:
        return optimizer
    hooks = vars(optimizer).get("_optimizer_step_pre_hooks")
    return inner if hooks is None or hooks is inner._optimizer_step_pre_hooks else optimizer


def attach(listener: StepListener, optimizer: Optimizer) -> list[Any]:
    """Hook an optimizer's step.

    With a closure, gradients exist only after it has run; the hook hands the optimizer a closure that tells the listener after
    each run, so that the last one is what the step used.

    Args:
        listener: Told before and after each step, held weakly.
        optimizer: Its state, its copies and its pickles stay as they are.

    Returns:
        Handles with a `remove` method.
    """
    reference = weakref.ref(listener)

    @undisturbed
    def before(opt: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        heard = reference()
        if heard is None:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        try:
            if closure is None:
                heard.before_step(opt)
                return None
            heard.closure_begins(opt)
        except Exception as error:  # never into the user's step
            heard.fail(error)
            return None
        told = _told(closure, reference, opt)
        return ((args[0], told, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": told})

    @undisturbed
    def after(opt: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        heard = reference()
        if heard is not None:
            try:
                heard.after_step(opt)
            except Exception as error:  # never into the user's step
                heard.fail(error)

    return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]


def _told(closure: Callable[[], Any], reference: "weakref.ref[Any]", optimizer: Optimizer) -> Callable[[], Any]:
    def closure_that_tells() -> Any:
        try:
            value = closure()
        except BaseException:
            heard = reference()
            if heard is not None:
                heard.closure_failed()
            raise
        heard = reference()
        if heard is not None:
            try:
                heard.before_step(optimizer)
            except Exception as error:  # never into the user's step
                heard.fail(error)
        return value

    return closure_that_tells

"""Running a model on examples and batches without leaving a trace in it or in the random state."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from trimtab._torch import force_eager
from trimtab.errors import NormalizationError
from trimtab.norms._arguments import refuse, require_module, shown
from trimtab.norms._hooks import hooks_forget

Forward: TypeAlias = Callable[[nn.Module, Any], Any]
Batches: TypeAlias = Iterable[Any] | Callable[[], Iterable[Any]]


def copy_of(model: nn.Module) -> nn.Module:
    """A deep copy of a model.

    Args:
        model: The model.

    Returns:
        The copy.

    Raises:
        NormalizationError: If it is no module, or something in it cannot be copied.
    """
    require_module("model", model)
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise NormalizationError(
            f"the model cannot be copied ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}); "
            "tensors with a history, such as old-style weight_norm leaves behind, go with a forward pass under torch.no_grad()"
        ) from error


def own(value: Any) -> Any:
    """A batch or example whose tensors are copies: a model may change its input in place, and the user's stay as they are."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {key: own(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(own, value))
    return type(value)(map(own, value)) if type(value) in (tuple, list) else value


def call(model: nn.Module, example: Any) -> Any:
    """Call a model with a copy of an example.

    Args:
        model: The model.
        example: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.

    Returns:
        What the model returns.
    """
    given = own(example)
    with told_what_was_given("example", example):
        if isinstance(given, Mapping):
            return model(**given)
        return model(*given) if isinstance(given, tuple) else model(given)


@contextmanager
def told_what_was_given(name: str, value: object) -> Iterator[None]:
    """Errors of the user's own model pass as they are, with a note of what trimtab called it with.

    Args:
        name: The argument that it came from.
        value: What it was called with.

    Yields:
        Nothing.
    """
    try:
        yield
    except Exception as error:
        error.add_note(f"The model raised this when it was called with {name}, which is {shown(value)}.")
        raise


def run(forward: Forward, model: nn.Module, batch: Any) -> Any:
    """Call a model by the user's own function.

    Args:
        forward: How the model is called.
        model: The model.
        batch: One of `batches`.

    Returns:
        What the function returns.
    """
    with told_what_was_given("a batch of batches", batch):
        return forward(model, batch)


def feed(model: nn.Module, batch: Any) -> Any:
    """Call a model with what a DataLoader gives.

    Args:
        model: The model.
        batch: A tensor; a tuple or list whose first element is the input, as `update_bn` takes it; or a mapping of
            keyword arguments.

    Returns:
        What the model returns.
    """
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0]) if isinstance(batch, (tuple, list)) else model(batch)


def outcome(model: nn.Module, example: Any) -> Any:
    """What a model returns for an example in the mode it is in, with the same random numbers each time.

    Args:
        model: The model. Its buffers may move: hand over a copy.
        example: As for `call`.

    Returns:
        What the model returns.
    """
    with undisturbed(model, training=None):
        torch.manual_seed(0)
        return call(model, example)


@contextmanager
def undisturbed(model: nn.Module, training: bool | None = False) -> Iterator[None]:
    """Without gradients, and with every mode, the random state and what hooks note put back; compiled code runs eagerly.

    Args:
        model: The model.
        training: The mode of every module meanwhile; None leaves each as it is.

    Yields:
        Nothing.
    """
    modes = [(module, module.training) for module in model.modules()]
    compiled = any(type(module).__name__ == "OptimizedModule" for module, _ in modes)
    devices = {p.device for p in model.parameters() if p.is_cuda}
    indices = [device.index for device in devices if device.index is not None]
    with torch.no_grad(), torch.random.fork_rng(devices=indices), hooks_forget(model):
        try:
            if training is not None:
                model.train(training)
            if compiled:
                force_eager(True)  # hooks put on after compiling would not be called
            yield
        finally:
            if compiled:
                force_eager(False)
            for module, mode in modes:
                module.training = mode


def fresh_passes(batches: Batches, several: bool) -> Callable[[], Iterable[Any]]:
    """Batches as a function that gives a pass each call, each batch as a copy of its own.

    Args:
        batches: A DataLoader, a list, or a function that returns a fresh iterable.
        several: Whether more than one pass is needed.

    Returns:
        The function.

    Raises:
        NormalizationError: If nothing can be iterated over, or several passes are needed over a one-shot iterator.
    """
    if isinstance(batches, (str, bytes, Mapping, nn.Module, type)):
        refuse("batches", batches, "an iterable of batches or a function that returns one is needed")
    if not isinstance(batches, Iterable):
        if callable(batches):
            return lambda: map(own, _iterable(batches()))
        refuse("batches", batches, "an iterable of batches or a function that returns one is needed")
    if isinstance(batches, (Tensor, np.ndarray)):
        refuse("batches", batches, "an iterable of batches is needed, not one batch; write batches=[batch]")
    if several and isinstance(batches, Iterator):
        raise NormalizationError(
            "batches must give more than one pass, but it is a one-shot iterator; "
            "give the DataLoader, a list or a function that returns a fresh iterator"
        )
    return lambda: map(own, batches)


def _iterable(given: Any) -> Iterable[Any]:
    if not isinstance(given, Iterable):
        refuse("what batches() returns", given, "an iterable of batches is needed")
    return given


def tensors(output: Any) -> list[Tensor]:
    """The floating tensors in whatever a model returns.

    Args:
        output: A tensor, or tuples, lists, mappings and objects that hold them.

    Returns:
        The tensors in order.
    """
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        output = list(output.values())
    elif not isinstance(output, (tuple, list)):
        output = (
            list(vars(output).values()) if hasattr(output, "__dict__") and not isinstance(output, nn.Module) else []
        )
    return [tensor for part in output for tensor in tensors(part)]


def difference(before: Any, after: Any) -> tuple[float, float, float]:
    """How far two outputs are apart, in float64.

    Args:
        before: What the model returned before.
        after: What it returns now.

    Returns:
        The largest absolute difference, the root of the mean squared difference, and the root of the mean square of
        `before`; infinite where the outputs have other shapes or only one is finite, 0 for no tensors at all.
    """
    old, new = tensors(before), tensors(after)
    if [t.shape for t in old] != [t.shape for t in new]:
        return float("inf"), float("inf"), float("inf")
    if not old:
        return 0.0, 0.0, 0.0
    a = torch.cat([t.detach().cpu().double().flatten() for t in old])
    b = torch.cat([t.detach().cpu().double().flatten() for t in new])
    if not a.numel():
        return 0.0, 0.0, 0.0
    delta = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, a - b).nan_to_num(nan=float("inf"))
    return float(delta.abs().max()), float(delta.square().mean().sqrt()), float(a.square().mean().sqrt())

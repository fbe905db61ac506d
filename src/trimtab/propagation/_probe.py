"""A copy of a model to measure on, so that the model, its buffers and every random state stay as they are."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from trimtab.norms._arguments import shown
from trimtab.norms._kinds import BATCH_KINDS, CONVOLUTIONS, TRANSPOSED, kind_of
from trimtab.norms._passes import copy_of, feed, own, tensors, told_what_was_given, undisturbed
from trimtab.propagation._checks import PropagationError

LAYERS = (nn.Linear, nn.Bilinear, *CONVOLUTIONS, *TRANSPOSED)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
Watcher = Callable[[str, Tensor], Tensor | None]


def copy_to_measure(model: nn.Module) -> nn.Module:
    """A copy without dropout, whose batch normalizations stay in the mode they are in.

    Args:
        model: The model.

    Returns:
        The copy.

    Raises:
        PropagationError: If a parameter has no value yet.
    """
    for name, parameter in model.named_parameters() if isinstance(model, nn.Module) else ():
        if nn.parameter.is_lazy(parameter) or parameter.is_meta:
            raise PropagationError(f"model has {name} without values; run a batch through it, or load its state, first")
    copy = copy_of(model)
    modes = [(module, module.training) for module in copy.modules() if kind_of(module) in BATCH_KINDS]
    copy.eval()
    for module, training in modes:
        module.training = training
    return copy


def require_batch(batch: Any, finite: bool = False) -> None:
    """Let only batches pass that have something in them.

    Args:
        batch: As for `run`.
        finite: Whether every number must be finite.

    Raises:
        PropagationError: If it is empty, has no values, or numbers that are not finite.
    """
    needed = "a tensor (N, ...), a tuple or list whose first element is the input, or a mapping of keyword arguments is needed"
    if batch is None or (isinstance(batch, (tuple, list, Mapping)) and not len(batch)):
        raise PropagationError(f"batch is {shown(batch)}; {needed}")
    given = dict(batch) if isinstance(batch, Mapping) else batch[0] if isinstance(batch, (tuple, list)) else batch
    found = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)]
    if found and not any(tensor.numel() for tensor in found):
        raise PropagationError(f"batch holds no example, only {shown(found[0])}; {needed}")
    for tensor in found:
        if tensor.is_meta:
            raise PropagationError(f"batch holds {shown(tensor)} on the meta device, without values; values are needed")
        if finite and bool((tensor.isnan() | (tensor == torch.inf)).any()):  # -inf is what masks are made of
            raise PropagationError(f"batch holds {shown(tensor)} that is not finite everywhere; look at the data first")


@contextmanager
def measuring(model: nn.Module) -> Iterator[None]:
    """Run a copy without a trace, with attention as plain operations: a fused one has neither parts nor a jvp.

    Args:
        model: The copy.

    Yields:
        Nothing; gradients are off until somebody enables them.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    with undisturbed(model, training=None), sdpa_kernel(SDPBackend.MATH):
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


def run(model: nn.Module, batch: Any) -> Tensor:
    """What a model returns for a batch, as one tensor.

    Args:
        model: The model.
        batch: A tensor; a tuple or list whose first element is the input; or a mapping of keyword arguments.

    Returns:
        The first floating tensor of the output.

    Raises:
        PropagationError: If the model returns none.
    """
    with told_what_was_given("batch", batch):
        found = tensors(feed(model, own(batch)))
    if not found:
        raise PropagationError(f"{type(model).__name__} returned no floating tensor for the batch; one is needed")
    return found[0]


def layer_names(model: nn.Module) -> tuple[str, ...]:
    """The layers with a weight matrix or kernel, in the order of their registration."""
    return tuple(name for name, module in model.named_modules() if isinstance(module, LAYERS))


@contextmanager
def heard(model: nn.Module, names: tuple[str, ...], watcher: Watcher) -> Iterator[None]:
    """Tell somebody of the output of each of some modules, once each.

    What follows a module gets a copy of its output: an in-place activation would overwrite what was heard.

    Args:
        model: The copy.
        names: The modules.
        watcher: Called with name and output; what it returns, if anything, takes the output's place.

    Yields:
        Nothing.
    """
    seen: set[str] = set()

    def hook(name: str) -> Callable[..., Any]:
        def hear(module: nn.Module, inputs: Any, output: Any) -> Any:
            if name in seen or not isinstance(output, Tensor) or not output.is_floating_point():
                return None
            seen.add(name)
            instead = watcher(name, output)
            return (output if instead is None else instead).clone()

        return hear

    handles = [model.get_submodule(name).register_forward_hook(hook(name)) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def input_of(batch: Any) -> Tensor | None:
    """The one floating tensor that a model is fed with, if there is one.

    Args:
        batch: As for `run`.

    Returns:
        The tensor; None where the input is whole numbers or several tensors.
    """
    given = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if isinstance(given, Mapping):
        return None
    return given if isinstance(given, Tensor) and given.is_floating_point() else None

"""One call of a setup's model, told apart from the loss around it: what the model was given, and given again with a change."""

import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.errors import SetupError
from trimtab.norms._passes import own, undisturbed
from trimtab.recording.walk import tensors

SEED = 20160617
"""Of everything random inside a pass, so that two passes differ by what was changed alone; any number would do."""


class Declined(Exception):  # noqa: N818 - no error: an answer of a probe
    """A probe cannot be made on this setup; its message says why."""


class _Answered(BaseException):
    """The model has been called: what the loss does with the answer is not needed."""


@dataclass(frozen=True)
class Drawn:
    """A few batches of a setup.

    Attributes:
        batches: The batches, at least one.
        size: Samples a batch, where the loader says so: it stacks samples along the first axis.
    """

    batches: list[Any]
    size: int | None


@dataclass(frozen=True)
class Call:
    """What a model was called with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among it, in order."""
        return [*tensors(self.args), *tensors(self.kwargs)]

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Call":
        """The call with each tensor replaced by what `change` makes of it."""
        return Call(mapped(self.args, change), mapped(dict(self.kwargs), change))


def drawn(setup: Setup, count: int) -> Drawn:
    """The first batches of a setup; nothing that can be put back has moved afterwards.

    Args:
        setup: The setup.
        count: How many; passes are cycled.

    Returns:
        The batches.
    """
    passes: list[Any] = []
    with unchanged(used_by=(setup.batches,)) as kept:

        def note(batches: Any) -> None:
            passes.append(batches)
            kept.add_data(batches)

        found = list(islice(setup.stream(on_pass=note), count))
    return Drawn(found, stacked(passes[0]))


def stacked(batches: Any) -> int | None:
    """How many samples a loader stacks along the first axis; None for what is no loader of torch, or collates in its own way."""
    stacks = isinstance(batches, DataLoader) and batches.collate_fn is default_collate
    return batches.batch_size if stacks else None


def refuse_empty(batch: Any) -> None:
    """Refuse a batch without samples.

    Args:
        batch: The batch.

    Raises:
        SetupError: All of its tensors are empty.
    """
    shapes = [tuple(tensor.shape) for tensor in tensors(batch)]
    if shapes and all(0 in shape for shape in shapes):
        raise SetupError(f"batches must give batches with samples in them, but the first is empty: {shapes}")


@contextmanager
def still(setup: Setup, training: bool = False) -> Iterator[None]:
    """A block in which the setup's own model may be run: in one mode, without gradients, everything put back.

    Args:
        setup: The setup.
        training: Whether batch normalizations normalize by the batch; dropout is off in any case.

    Yields:
        Nothing.
    """
    model = setup.model
    with (
        unchanged(model, *model.parameters(), *model.buffers(), used_by=(setup.loss,)),
        undisturbed(model, training),
    ):
        if training:
            without_dropout(model)
        yield


def without_dropout(model: nn.Module) -> None:
    """Put every dropout into evaluation mode."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
        elif isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and module.dropout:
            module.eval()  # nothing but its dropout depends on the mode


def first_call(setup: Setup, batch: Any) -> Call:
    """What the setup's model is called with first, while the loss of a batch is computed.

    Args:
        setup: The setup.
        batch: The batch.

    Returns:
        The call.

    Raises:
        Declined: The loss cannot be computed, or calls only parts of the model.
    """
    found: list[Call] = []

    def hear(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(Call(own(args), own(kwargs)))
        raise _Answered

    handle = setup.model.register_forward_pre_hook(hear, with_kwargs=True)
    try:
        loss_of(setup, batch)
    except _Answered:
        pass
    finally:
        handle.remove()
    if not found:
        raise Declined("the loss does not call the model itself, only parts of it")
    if not found[0].tensors:
        raise Declined("the model is called without a tensor")
    return found[0]


def loss_of(setup: Setup, batch: Any, change: Callable[[Call], Call] | None = None) -> tuple[Tensor, list[Tensor]]:
    """The loss of a batch, with what the model is given first changed on the way.

    Args:
        setup: The setup.
        batch: The batch, which is copied.
        change: What to make of the first call of the model.

    Returns:
        The loss, and the floating tensors that the model gave at that call.

    Raises:
        Declined: The loss cannot be computed so.
    """
    calls = 0
    answers: list[list[Tensor]] = []

    def give(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1 or change is None:
            return None
        changed = change(Call(args, kwargs))
        return changed.args, dict(changed.kwargs)

    def hear(module: nn.Module, args: Any, output: Any) -> None:
        if not answers:
            answers.append(floating(output))

    handles = [
        setup.model.register_forward_pre_hook(give, with_kwargs=True),
        setup.model.register_forward_hook(hear),
    ]
    try:
        seeded()
        loss = setup.loss(setup.model, own(batch))
    except Exception as error:
        raise Declined(f"the loss of a batch cannot be computed ({type(error).__name__})") from error
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise Declined("the loss is no scalar tensor")
    return loss, answers[0] if answers else []


def answer(model: nn.Module, call: Call) -> list[Tensor]:
    """The floating tensors that a model gives for a call, with the same random numbers each time.

    Args:
        model: The model.
        call: What it is given; copied.

    Returns:
        The tensors.

    Raises:
        Declined: It cannot be called so.
    """
    seeded()
    try:
        return [t.clone() for t in floating(model(*own(call.args), **own(dict(call.kwargs))))]
    except Exception as error:
        raise Declined(f"the model cannot be called again ({type(error).__name__})") from error


def seeded() -> None:
    """Begin every random sequence of the process anew; whoever calls this puts them back."""
    torch.manual_seed(SEED)
    np.random.seed(SEED % 2**32)
    random.seed(SEED)


def floating(output: Any) -> list[Tensor]:
    """The floating tensors of an output that have a value for more than one thing."""
    found = tensors(output) if not hasattr(output, "__dict__") else tensors(_fields(output))
    return [t.detach() for t in found if t.is_floating_point() and t.numel() > 1]


def _fields(output: Any) -> Any:
    return output if isinstance(output, (Tensor, Mapping, list, tuple)) else vars(output)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A nest of containers with its tensors replaced.

    Args:
        value: A tensor, or mappings, lists, tuples and dataclasses that hold some.
        change: Gives what takes a tensor's place.

    Returns:
        The same nest; what is no tensor stays.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        changed = {key: mapped(item, change) for key, item in value.items()}
        kind: Any = type(value)
        return kind(changed) if type(value) is not dict and _takes_a_mapping(type(value)) else changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, change) for item in value))
    if type(value) in (tuple, list):
        return type(value)(mapped(item, change) for item in value)
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        names = [name for name, field in value.__dataclass_fields__.items() if field.init]
        return replace(value, **{name: mapped(getattr(value, name), change) for name in names})
    return value


def _takes_a_mapping(kind: type) -> bool:
    try:
        return len(inspect.signature(kind).parameters) > 0
    except (TypeError, ValueError):
        return True


def facts_of(probe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a probe finds, or why it could not be made.

    Args:
        probe: Gives the facts.

    Returns:
        The facts; {"declined": why} where there are none.
    """
    try:
        return probe()
    except Declined as reason:
        return {"declined": str(reason)}
    except Exception as error:  # of the user's own, in code that a probe runs in another way than training does
        return {"declined": f"{type(error).__name__}: {error}"[:200]}

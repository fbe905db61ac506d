"""What a setup's model is fed with, and what its answers are compared with: found on a batch, changed for a whole run."""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.diagnosis.probes.calls import mapped, still
from trimtab.errors import RepairError
from trimtab.norms._passes import own
from trimtab.recording.walk import tensors

BATCHES = 64
"""Batches, or one pass where that is shorter, that statistics of the data are taken from."""


class _Heard(BaseException):
    """The data has come in: what is done with it is not needed."""


@dataclass(frozen=True, slots=True)
class Port:
    """Where a floating tensor of the data enters a model.

    Attributes:
        module: Name of the module that is given it, "" for the model itself.
        index: Which of the floating tensors that the module is given.
        ndim: Its axes.
        axis: The one of the features.
    """

    module: str
    index: int
    ndim: int
    axis: int


def first_pass(setup: Setup, count: int = BATCHES) -> list[Any]:
    """Batches of one pass at most; nothing that can be put back has moved afterwards.

    Args:
        setup: The setup.
        count: Most batches.

    Returns:
        The batches.
    """
    with unchanged(used_by=(setup.batches,)) as kept:
        source = setup.batches()
        kept.add_data(source)
        return list(islice(iter(source), count))


def ports(setup: Setup) -> list[Port]:
    """The floating tensors of data that the first module to be given any is given.

    Args:
        setup: The setup.

    Returns:
        One for each.

    Raises:
        RepairError: No module is given floating data: token numbers, or a loss that computes by itself.
    """
    with still(setup), torch.enable_grad():
        name, given = _entrance(setup, first_pass(setup, 1)[0])
    axis = 1 if _convolves_first(setup.model.get_submodule(name)) else -1
    return [
        Port(name, index, tensor.ndim, _features(tensor, axis))
        for index, tensor in enumerate(given)
        if tensor.numel() > 1
    ]


def fed(setup: Setup, port: Port) -> list[Tensor]:
    """What comes in at a port, with the changes made to it so far.

    Args:
        setup: The setup.
        port: The port.

    Returns:
        A tensor a batch.

    Raises:
        RepairError: Nothing of this kind comes in there.
    """
    found = []
    with still(setup), torch.enable_grad():
        for batch in first_pass(setup):
            name, given = _entrance(setup, batch)
            if name != port.module or len(given) <= port.index or given[port.index].ndim != port.ndim:
                raise RepairError(f"the model is not given a tensor of {port.ndim} axes at place {port.index}")
            found.append(given[port.index])
    return found


def change_input(setup: Setup, port: Port, name: str, held: dict[str, Tensor], change: Callable[..., Tensor]) -> None:
    """Let a model change what comes in at a port, in either mode, by tensors that it holds from now on.

    They are buffers of the module, so that they are saved, copied and moved with it.

    Args:
        setup: The setup.
        port: The port.
        name: Of the change; the buffers are called after it.
        held: The tensors.
        change: Given what comes in and the tensors by name, gives what takes its place.
    """
    module = setup.model.get_submodule(port.module)
    module.register_forward_pre_hook(_Input(port.index, hold(module, name, held), change), with_kwargs=True)


def hold(module: nn.Module, name: str, held: dict[str, Tensor]) -> dict[str, str]:
    """Register buffers under names that are free.

    Args:
        module: The module.
        name: Their common beginning.
        held: The tensors.

    Returns:
        Names of the buffers, by the names of the tensors.
    """
    taken, number = name, 2
    while any(hasattr(module, f"{taken}_{key}") for key in held):
        taken, number = f"{name}_{number}", number + 1
    like = next((t for t in (*module.parameters(), *module.buffers())), None)
    for key, tensor in held.items():
        narrow = like is not None and like.device.type == "mps" and tensor.dtype == torch.float64  # it has none
        module.register_buffer(
            f"{taken}_{key}", tensor if like is None else tensor.to(like.device, torch.float32 if narrow else None)
        )
    return {key: f"{taken}_{key}" for key in held}


@dataclass
class _Input:
    """A forward pre-hook that changes one of the floating tensors a module is given."""

    index: int
    buffers: dict[str, str]
    change: Callable[..., Tensor]

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        held = {key: getattr(module, name) for key, name in self.buffers.items()}
        seen = -1

        def maybe(tensor: Tensor) -> Tensor:
            nonlocal seen
            seen += tensor.is_floating_point()
            return self.change(tensor, **held) if tensor.is_floating_point() and seen == self.index else tensor

        return mapped(args, maybe), mapped(kwargs, maybe)


def change_batches(setup: Setup, change: Callable[[Iterable[Any]], Iterable[Any]]) -> None:
    """Let each pass over the training batches be changed.

    Args:
        setup: The setup.
        change: Given a pass, gives the one to train on.
    """
    before = setup.batches

    @functools.wraps(before)
    def batches() -> Iterable[Any]:
        return _Pass(before, change)

    setup.batches = batches


class _Pass:
    """A pass that begins when it is iterated over: a DataLoader draws a random number then."""

    def __init__(self, source: Callable[[], Iterable[Any]], change: Callable[[Iterable[Any]], Iterable[Any]]) -> None:
        self._source, self._change = source, change

    def __iter__(self) -> Iterator[Any]:
        return iter(self._change(self._source()))

    def __len__(self) -> int:
        return len(self._source())  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Compared:
    """A target and the answer it is for.

    Attributes:
        entry: Which of the tensors of a batch the target is.
        target: The target.
        answer: What the model gives; None where that is not one tensor.
    """

    entry: int
    target: Tensor
    answer: Tensor | None


def compared(setup: Setup) -> Compared:
    """The floating tensor of the batches that the model is not given, and what the model gives for the rest.

    Args:
        setup: The setup.

    Returns:
        Of the first batch; of several such tensors the one that is as large as the answer, else the last.

    Raises:
        RepairError: There is none, or the loss does not call the model itself.
    """
    batch = own(first_pass(setup, 1)[0])
    given, answers = _heard(setup, batch)
    floating = [(i, t) for i, t in enumerate(tensors(batch)) if t.is_floating_point()]
    free = [(i, t) for i, t in floating if not any(_same(t, other) for other in given)]
    if not free:
        raise RepairError("the batches hold no floating-point target: the model is given all of it")
    answer = answers[0] if answers and isinstance(answers[0], Tensor) else None
    fitting = [(i, t) for i, t in free if answer is not None and t.numel() == answer.numel()]
    entry, target = (fitting or free[-1:])[0]
    return Compared(entry, target, answer)


def with_entry(batch: Any, entry: int, change: Callable[[Tensor], Tensor]) -> Any:
    """A batch with one of its tensors changed.

    Args:
        batch: The batch.
        entry: Which of its tensors.
        change: Gives what takes its place.

    Returns:
        The batch anew.
    """
    seen = -1

    def maybe(tensor: Tensor) -> Tensor:
        nonlocal seen
        seen += 1
        return change(tensor) if seen == entry else tensor

    return mapped(batch, maybe)


def loss_of(setup: Setup, batch: Any) -> float:
    """The loss of a batch in evaluation mode, everything left as it was.

    Args:
        setup: The setup.
        batch: The batch.

    Returns:
        The loss.

    Raises:
        RepairError: It cannot be computed.
    """
    with still(setup):
        try:
            return float(setup.loss(setup.model, own(batch)))
        except Exception as error:
            raise RepairError(f"the loss of a batch cannot be computed ({type(error).__name__})") from error


def _entrance(setup: Setup, batch: Any) -> tuple[str, list[Tensor]]:
    """The first module that is given floating data, and what it is given; gradients must be on, to tell data from signals."""
    found: list[tuple[str, list[Tensor]]] = []
    names = {module: name for name, module in setup.model.named_modules()}

    def hear(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        floating = [t for t in (*tensors(args), *tensors(kwargs)) if t.is_floating_point()]
        if any(t.numel() > 1 and not t.requires_grad for t in floating):
            found.append((names[module], [t.detach().clone() for t in floating]))
            raise _Heard

    handles = [module.register_forward_pre_hook(hear, with_kwargs=True) for module in names]
    try:
        setup.loss(setup.model, own(batch))
    except _Heard:
        return found[0]
    except Exception as error:
        raise RepairError(f"the loss of a batch cannot be computed ({type(error).__name__})") from error
    finally:
        for handle in handles:
            handle.remove()
    raise RepairError("no module is given floating-point data")


def _heard(setup: Setup, batch: Any) -> tuple[list[Tensor], list[Any]]:
    """What the model itself is given and gives while the loss of a batch is computed."""
    given: list[Tensor] = []
    answers: list[Any] = []

    def take(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given.extend((*tensors(args), *tensors(kwargs)))

    handles = [
        setup.model.register_forward_pre_hook(take, prepend=True, with_kwargs=True),
        setup.model.register_forward_hook(lambda module, args, output: answers.append(output)),
    ]
    try:
        with still(setup):
            setup.loss(setup.model, batch)
    except Exception as error:
        raise RepairError(f"the loss of a batch cannot be computed ({type(error).__name__})") from error
    finally:
        for handle in handles:
            handle.remove()
    if not answers:
        raise RepairError("the loss does not call the model itself")
    return given, answers


def _same(tensor: Tensor, given: Tensor) -> bool:
    """Whether what a model is given is made of a tensor: its memory, or its values in another dtype or layout."""
    if tensor.untyped_storage().data_ptr() == given.untyped_storage().data_ptr():
        return True
    return tensor.numel() == given.numel() and torch.equal(tensor.flatten(), given.flatten().to(tensor))


def _convolves_first(module: nn.Module) -> bool:
    kinds = (nn.Linear, nn.RNNBase, nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase)
    first = next((m for m in module.modules() if isinstance(m, kinds)), None)
    return isinstance(first, (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase))


def _features(tensor: Tensor, axis: int) -> int:
    """The axis of the features: the second of a table and of pictures; of a sequence the second or the last, by the first layer."""
    if tensor.ndim <= 2:
        return tensor.ndim - 1
    return 1 if tensor.ndim > 3 or axis == 1 else 2

"""Which axis of what a model is given tells the samples apart."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from trimtab.diagnosis.probes.calls import Call, Drawn
from trimtab.recording.walk import tensors

_AXES = {
    nn.RNNBase: 3, nn.MultiheadAttention: 3, nn.TransformerEncoderLayer: 3, nn.TransformerDecoderLayer: 3,
    nn.Conv1d: 3, nn.Conv2d: 4, nn.Conv3d: 5,
}  # fmt: skip
"""Axes of a batch; with one less, PyTorch takes the input for a single sample."""


def sample_axis(drawn: Drawn, call: Call, time: int | None = None) -> int | None:
    """The axis of samples in a model's inputs, where something says which it is.

    The loader's batch size does (it stacks along the first axis); so does the axis of time where it is known, a target with a
    number for each sample, and an input that has no axis of time.

    Args:
        drawn: The batches.
        call: What the model was called with for the first of them.
        time: The axis of time.

    Returns:
        0 or 1; None where samples first and sequences first look the same.
    """
    main = call.tensors[0]
    sizes = main.shape[:2]
    if drawn.size is not None and drawn.size in sizes:
        return list(sizes).index(drawn.size)
    if time in (0, 1) and main.ndim >= 2:
        return 1 - time
    if not may_be_sequences(main):
        return 0
    given = {id(t) for t in call.tensors}
    for tensor in tensors(drawn.batches[0]):
        single = tensor.ndim == 1 or (tensor.ndim == 2 and tensor.shape[1] == 1)
        if id(tensor) not in given and single and list(sizes).count(tensor.shape[0]) == 1:
            return list(sizes).index(tensor.shape[0])
    return None


def may_be_sequences(main: Tensor) -> bool:
    """Whether an input could have sequences along its first axis: (time, samples) of numbers, (time, samples, features)."""
    return main.ndim == 3 or (main.ndim == 2 and not main.is_floating_point())


@contextmanager
def noticing_single_samples(model: nn.Module) -> Iterator[list[str]]:
    """Notice layers that are given one sample without an axis for the batch, so that their first axis is something else.

    Args:
        model: The model.

    Yields:
        Their classes, while the model runs.
    """
    found: list[str] = []

    def hear(module: nn.Module, args: tuple[Any, ...]) -> None:
        axes = next(axes for kind, axes in _AXES.items() if isinstance(module, kind))
        if args and isinstance(args[0], Tensor) and args[0].ndim < axes:
            found.append(type(module).__name__)

    handles = [m.register_forward_pre_hook(hear) for m in model.modules() if isinstance(m, tuple(_AXES))]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def cut(call: Call, axis: int, count: int, start: int = 0) -> Call:
    """A call with some of its samples.

    Args:
        call: The call.
        axis: The axis of samples.
        count: How many to keep.
        start: The first to keep.

    Returns:
        The call; tensors of another size along the axis stay whole.
    """
    return per_sample(call, axis, lambda t: t.narrow(axis, start, count))


def per_sample(call: Call, axis: int, change: Callable[[Tensor], Tensor]) -> Call:
    """A call with a change to each tensor that holds samples along an axis."""
    main = call.tensors[0]
    size = main.shape[axis]
    return call.changed(lambda t: change(t) if t.ndim > axis and t.shape[axis] == size else t)

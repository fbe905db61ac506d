"""What a model is trained to say of a sequence: its next element, read off the target that the loss compares with."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.diagnosis.probes.calls import Call

SHIFTS = (1, 2, 3, 4)
"""How far ahead a model may be asked to look."""

SAME = 0.99
"""Share of the positions at which the target must be the element ahead."""

VARIES = 0.05
"""Share of the positions at which a sequence must differ from its next element: of a constant one, every shift is the target."""

FEATURES = 8
"""Features of a sequence that are tried as the one to be foretold."""


@dataclass(frozen=True)
class Ahead:
    """A sequence whose later elements are the target.

    Attributes:
        index: Which of the tensors the model is called with.
        time: Its axis of time.
        shift: How far ahead the target is; 0 for the element itself.
    """

    index: int
    time: int
    shift: int


def elements_ahead(call: Call, target: Tensor) -> list[Ahead]:
    """The sequences among a model's inputs of which the target is the same, some steps ahead.

    Args:
        call: What the model is called with.
        target: What the loss compares with, in any layout that keeps the order.

    Returns:
        The sequences; with a shift of 0 only whole numbers, where the target is the input itself.
    """
    found = []
    for index, tensor in enumerate(call.tensors):
        for sequence, axes in _sequences(tensor):
            for axis, time in axes:
                shift = _shift(sequence, axis, target)
                if shift is not None and (shift or not tensor.is_floating_point()):
                    found.append(Ahead(index, time, shift))
    return found


_Axes = tuple[tuple[int, int], ...]
_FIRST_TWO: _Axes = ((1, 1), (0, 0))


def _sequences(tensor: Tensor) -> list[tuple[Tensor, _Axes]]:
    """What of a tensor could be a sequence that is foretold, with the axes that could be time: in it, and in the tensor."""
    if not tensor.is_floating_point():
        return [(tensor, _FIRST_TWO)] if tensor.ndim == 2 and tensor.dtype != torch.bool else []
    if tensor.ndim == 2:
        return [(tensor, _FIRST_TWO)]
    if tensor.ndim != 3:
        return []
    found: list[tuple[Tensor, _Axes]] = [(tensor, (*_FIRST_TWO, (2, 2)))]
    for axis, axes in ((2, _FIRST_TWO), (1, ((1, 2),))):
        if tensor.shape[axis] <= FEATURES:
            found += [(tensor.select(axis, f), axes) for f in range(tensor.shape[axis])]
    if bool(((tensor == 0) | (tensor == 1)).all()) and bool((tensor.sum(2) == 1).all()):
        found.append((tensor.argmax(2), _FIRST_TWO))
    return found


def _shift(sequence: Tensor, time: int, target: Tensor) -> int | None:
    """How far a target is ahead of a sequence; None where it is something else."""
    if sequence.shape[time] < 4 or sequence.is_floating_point() != target.is_floating_point():
        return None
    length = sequence.shape[time]
    x = sequence.movedim(time, -1)
    if float((x[..., 1:] != x[..., :-1]).float().mean()) < VARIES:
        return None
    for shift in (*SHIFTS, 0):
        ahead = x[..., shift:]
        if shift and any(_agree(y, ahead) for y in _laid_out(target, sequence, time, length - shift)):
            return shift
        if any(_agree(y[..., : length - shift], ahead) for y in _laid_out(target, sequence, time, length)):
            return shift
    return None


def _laid_out(target: Tensor, sequence: Tensor, time: int, length: int) -> list[Tensor]:
    """A target as a sequence of a length, time last: in the sequence's own order of axes, and with the first two exchanged."""
    shape = list(sequence.shape)
    shape[time] = length
    if target.numel() != torch.Size(shape).numel():
        return []
    found = [target.reshape(shape).movedim(time, -1)]
    if len(shape) >= 2 and time < 2:
        swapped = [shape[1], shape[0], *shape[2:]]
        found.append(target.reshape(swapped).transpose(0, 1).movedim(time, -1))
    return found


def _agree(target: Tensor, ahead: Tensor) -> bool:
    """Whether two are the same but for positions that the loss leaves out (negative classes)."""
    counted = torch.ones_like(target, dtype=torch.bool) if target.is_floating_point() else target >= 0
    return int(counted.sum()) >= 4 and float((target == ahead)[counted].float().mean()) >= SAME

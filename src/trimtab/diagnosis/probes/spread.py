"""What a change of one part of the input reaches: in a tensor, and at which module it first leaves its place."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trimtab.diagnosis.probes.calls import Call, answer, floating
from trimtab.recording.facts import named_modules

LARGEST = 2**22
"""Numbers of an output up to which a module's is kept to look for the place; larger ones are passed over."""


def astray(before: Tensor, after: Tensor, size: int, own: slice) -> float:
    """How far a change of some places along an axis has moved the others, relative to how far it has moved anything.

    Args:
        before: A tensor.
        after: The same after the change.
        size: Length of the axis: samples, or time steps. Axes that are a multiple of it may hold it flattened.
        own: The places that were changed.

    Returns:
        Largest difference elsewhere over the largest of all; 0 where no axis has that length, or the rest is as it was.
    """
    if before.shape != after.shape:
        return 0.0
    moved = _moved(before, after)
    most = float(moved.max()) if moved.numel() else 0.0
    if most == 0.0:
        return 0.0
    left = [float(rest.max()) for rest in _elsewhere(moved, size, own)]
    return min(left) / most if left else 0.0


def _moved(before: Tensor, after: Tensor) -> Tensor:
    """Differences beyond rounding; 0 where there is none."""
    a, b = before.detach().double(), after.detach().double()
    same = (a == b) | (a.isnan() & b.isnan())
    scale = a[torch.isfinite(a)].square().mean().sqrt() if bool(torch.isfinite(a).any()) else a.new_tensor(1.0)
    difference = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=1e300, posinf=1e300)
    return torch.where(difference > torch.finfo(before.dtype).eps ** 0.5 * scale, difference, 0.0)


def _elsewhere(moved: Tensor, size: int, own: slice) -> Iterator[Tensor]:
    """The differences without those at the places that were changed, for each way in which an axis can hold the places.

    Of several axes that have the length, as in attention's weights, a place may be changed along any.

    Yields:
        The differences that are left, one tensor for each way.
    """
    axes = [axis for axis, length in enumerate(moved.shape) if length == size]
    if axes:
        rest = moved.clone()
        for axis in axes:
            rest.movedim(axis, 0)[own] = 0.0
        yield rest
        return
    for axis, length in enumerate(moved.shape):
        if length and length % size == 0 and size > 1:
            for shape, at in (((size, length // size), axis), ((length // size, size), axis + 1)):
                rest = moved.reshape(*moved.shape[:axis], *shape, *moved.shape[axis + 1 :]).clone()
                rest.movedim(at, 0)[own] = 0.0
                yield rest


@dataclass(frozen=True)
class Place:
    """Where a change first left its place.

    Attributes:
        name: The module at which it was first seen.
        inside: Whether that module did it; else what runs between the modules, in the code of the model itself.
    """

    name: str
    inside: bool


def first_place(model: nn.Module, before: Call, after: Call, size: int, own: slice) -> Place | None:
    """The first module at which a change is seen where it does not belong.

    Args:
        model: The model.
        before: A call.
        after: The same with a change of some places along an axis.
        size: Length of that axis.
        own: The places.

    Returns:
        The place; None where no module shows it, only what the model itself gives.
    """
    calm, stirred = _heard(model, before), _heard(model, after)
    for (name, kind, caller, old), (other, _, _, new) in zip(calm, stirred, strict=False):
        if name != other or len(old) != len(new):
            return None  # it went another way
        if not any(astray(a, b, size, own) > 0 for a, b in zip(old, new, strict=True)):
            continue
        if kind == "output":
            return Place(name, inside=True)
        return Place(caller, inside=True) if caller else Place(name, inside=False)
    return None


Heard = tuple[str, str, str, list[Tensor]]


def _heard(model: nn.Module, call: Call) -> list[Heard]:
    """Inputs and outputs of all modules below the root, in the order in which they came: name, kind, the caller's name, tensors."""
    heard: list[Heard] = []
    stack: list[str] = []
    handles = []

    def hooks(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
        def enter(module: nn.Module, args: object) -> None:
            heard.append((name, "input", stack[-1] if stack else "", _kept(args)))
            stack.append(name)

        def leave(module: nn.Module, args: object, output: object) -> None:
            stack.pop()
            heard.append((name, "output", stack[-1] if stack else "", _kept(output)))

        return enter, leave

    for name, module in named_modules(model):
        if name:
            enter, leave = hooks(name)
            handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        answer(model, call)
    finally:
        for handle in handles:
            handle.remove()
    return heard


def _kept(value: object) -> list[Tensor]:
    return [t.clone() for t in floating(value) if t.numel() <= LARGEST]

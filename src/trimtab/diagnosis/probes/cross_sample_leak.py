"""Does the answer for one sample depend on the other samples of its batch?

In evaluation mode it must not: a batch normalization uses its running statistics there, or, where it keeps none, those of the batch as
it was before the change. One sample is replaced by another one, and every other sample's answer must stay as it is, to the last bit
but for rounding.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.diagnosis.probes.calls import Call, Declined, Drawn, answer, facts_of, first_call, still
from trimtab.diagnosis.probes.samples import cut, may_be_sequences, noticing_single_samples, per_sample, sample_axis
from trimtab.diagnosis.probes.spread import astray, first_place
from trimtab.recording.batch_statistics import is_batch_norm

SIZES = (7, 5, 11, 13, 3, 6, 9, 10, 12, 14, 15, 8, 4, 2)
"""Samples that are looked at, by preference: a number that no other axis has, nor a multiple of it, tells the axes apart."""

FAR = -3.0
"""Factor on a sample of floating numbers, so that what is taken from the batch's largest value is seen too."""


def probe(setup: Setup, drawn: Drawn) -> dict[str, Any]:
    """Replace samples and see whose answers move.

    Args:
        setup: The setup; everything is as it was afterwards.
        drawn: Its first batches.

    Returns:
        "mixed": whether samples mix; if so "others", how far the other samples' answers move relative to the own one, "at", the first
        module at which they do ("" for none), and "inside", whether that module does it; or "declined".
    """
    return facts_of(lambda: _probe(setup, drawn))


def _probe(setup: Setup, drawn: Drawn) -> dict[str, Any]:
    with still(setup):
        call = first_call(setup, drawn.batches[0])
        with noticing_single_samples(setup.model) as single:
            answer(setup.model, call)
        axis = sample_axis(drawn, call)
        if single and drawn.size is None:
            raise Declined(f"{single[0]} is given one sample, without an axis for a batch")
        if axis is not None:
            return _mixing(setup.model, call, axis)
        found = _mixing(setup.model, call, 0)
        if found["mixed"] and may_be_sequences(call.tensors[0]) and not _mixing(setup.model, call, 1)["mixed"]:
            raise Declined(
                "nothing says whether samples or time steps come first, and along one of the two nothing mixes"
            )
        return found


def _mixing(model: nn.Module, call: Call, axis: int) -> dict[str, Any]:
    """Whether samples mix along an axis."""
    count = _count(call, axis)
    part = cut(call, axis, count)
    with frozen_statistics(model) as frozen:
        answer(model, part)
        frozen.append(True)
        before = answer(model, part)
        for place, change in _changes(part, axis, count):
            after = answer(model, change)
            own = slice(place, place + 1)
            others = max((astray(a, b, count, own) for a, b in zip(before, after, strict=False)), default=0.0)
            if others > 0.0:
                _require_separate_samples(model, call, part, axis, count, before)
                at = first_place(model, part, change, count, own)
                return {"mixed": True, "others": others, "at": at.name if at else "", "inside": bool(at and at.inside)}
    return {"mixed": False}


def _count(call: Call, axis: int) -> int:
    """How many samples to look at."""
    main = call.tensors[0]
    most = main.shape[axis] if main.ndim > axis else 0
    if most < 2:
        raise Declined("the batch has one sample")
    others = {n for t in call.tensors for i, n in enumerate(t.shape) if i != axis}
    fitting = [n for n in SIZES if n <= most]
    return next((n for n in fitting if n > 2 and not any(o % n == 0 for o in others)), fitting[0])


def _changes(part: Call, axis: int, count: int) -> Iterator[tuple[int, Call]]:
    """Calls with one sample replaced: the first, the last, and one that is far from all."""
    for place, source in ((0, 1), (count - 1, count - 2)):
        yield place, per_sample(part, axis, _replacing(axis, place, source))
    middle = count // 2
    yield middle, per_sample(part, axis, lambda t: _scaled(t, axis, middle) if t.is_floating_point() else t)


def _replacing(axis: int, place: int, source: int) -> Callable[[Tensor], Tensor]:
    def replaced(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed.select(axis, place).copy_(tensor.select(axis, source))
        return changed

    return replaced


def _scaled(tensor: Tensor, axis: int, place: int) -> Tensor:
    changed = tensor.clone()
    changed.select(axis, place).mul_(FAR)
    return changed


def _require_separate_samples(
    model: nn.Module, whole: Call, part: Call, axis: int, count: int, before: list[Tensor]
) -> None:
    """Samples that cannot be had without the others (nodes of one graph) belong together; noise that is drawn tells nothing."""
    again = answer(model, part)
    if any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, again, strict=False)):
        raise Declined("the model gives another answer each time it is asked")
    try:
        less = answer(model, cut(part, axis, max(count // 2, 1)))
    except Declined as error:
        raise Declined("the model does not take a part of its batch") from error
    if not any(a.shape != b.shape for a, b in zip(before, less, strict=False)):
        raise Declined("the model's answers are not one for each sample")


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[list[bool]]:
    """Let batch normalizations that do not use their running statistics use those they saw before, once told to.

    Args:
        model: The model.

    Yields:
        A list; from when it holds something on, the statistics of the calls before are used.
    """
    frozen: list[bool] = []
    seen: dict[int, tuple[Tensor, Tensor]] = {}

    def hear(module: Any, args: tuple[Any, ...], output: Any) -> Any:
        x = args[0]
        if module.running_mean is not None and not module.training:
            return None
        if not frozen:
            axes = [axis for axis in range(x.ndim) if axis != 1]
            seen[id(module)] = (x.mean(axes), x.var(axes, correction=0))
            return None
        mean, variance = seen[id(module)]
        return nn.functional.batch_norm(
            x, mean, variance, getattr(module, "weight", None), getattr(module, "bias", None), False, 0.0, module.eps
        )

    handles = [module.register_forward_hook(hear) for module in model.modules() if is_batch_norm(module)]
    try:
        yield frozen
    finally:
        for handle in handles:
            handle.remove()

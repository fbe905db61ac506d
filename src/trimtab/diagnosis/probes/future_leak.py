"""Does a model that is to foretell a sequence see what it is to foretell?

The target that the loss compares with is read off the autograd graph. Where it is the input some steps ahead, the later part of the
input is replaced, and the answers before it must stay as they are.
"""

from typing import Any

import torch
from torch import Tensor

from trimtab._setup import Setup
from trimtab.diagnosis.probes.calls import Call, Declined, Drawn, answer, facts_of, first_call, loss_of, still
from trimtab.diagnosis.probes.spread import astray, first_place
from trimtab.diagnosis.probes.targets import Ahead, elements_ahead
from trimtab.recording.graph import loss_target
from trimtab.recording.walk import tensors

SAMPLES = 8
"""Samples that are looked at."""


def probe(setup: Setup, drawn: Drawn) -> dict[str, Any]:
    """Replace the end of sequences and see whether the answers before it move.

    Args:
        setup: The setup; everything is as it was afterwards.
        drawn: Its first batches.

    Returns:
        "ahead": how many steps ahead the target is of the input, None where it is something else; then "leaks"; if so "others", how
        far the answers move that should not, relative to those that may, "at", the first module at which it is seen ("" for none), and
        "inside", whether that module does it. With "ahead" 0, "leaks" is whether a model that looks at the past is shown what it is to
        say. Or "declined".
    """
    return facts_of(lambda: _probe(setup, drawn))


def _probe(setup: Setup, drawn: Drawn) -> dict[str, Any]:
    with still(setup):
        call = first_call(setup, drawn.batches[0])
        if not any(t.ndim in (2, 3) for t in call.tensors):
            return {"ahead": None}
        with torch.enable_grad():
            target = loss_target(loss_of(setup, drawn.batches[0])[0])
        ahead = [] if target is None else elements_ahead(call, target)
        shifted = [a for a in ahead if a.shift]
        if target is None:  # a loss made by hand: what else the batch holds may be its target
            others = [t for t in tensors(drawn.batches[0]) if not any(t.equal(x) for x in call.tensors)]
            shifted = [a for t in others for a in elements_ahead(call, t) if a.shift]
        if not shifted:
            return _unshifted(setup, call, ahead)
        # An encoder may look anywhere: where one sequence is kept from the future, the others are not what is foretold from.
        found = [_leak(setup, call, each) for each in shifted]
        return next((f for f in found if not f["leaks"]), found[0])


def _leak(setup: Setup, call: Call, ahead: Ahead) -> dict[str, Any]:
    """Whether answers depend on what lies ahead."""
    length = call.tensors[ahead.index].shape[ahead.time]
    part = _fewer(call, ahead)
    before = answer(setup.model, part)
    answers = [t for t in before if any(n in (length, length - ahead.shift) or n % length == 0 for n in t.shape)]
    if not answers:
        raise Declined("the model gives no answer for each position")
    for start in (length // 2, max(length // 3, 1)):
        changed = _replaced(part, ahead, start)
        after = answer(setup.model, changed)
        own = slice(max(start - ahead.shift + 1, 0), None)
        others = max(
            (astray(a, b, n, own) for a, b in zip(before, after, strict=False) for n in _lengths(a, length, ahead)),
            default=0.0,
        )
        if others > 0.0:
            again = answer(setup.model, part)
            if any(not torch.equal(a, b) for a, b in zip(before, again, strict=False)):
                raise Declined("the model gives another answer each time it is asked")
            at = first_place(setup.model, part, changed, length, own)
            return {
                "ahead": ahead.shift,
                "leaks": True,
                "others": others,
                "at": at.name if at else "",
                "inside": bool(at and at.inside),
            }
    return {"ahead": ahead.shift, "leaks": False}


def _unshifted(setup: Setup, call: Call, ahead: list[Ahead]) -> dict[str, Any]:
    """A model that reads from left to right and is to say what it reads: the shift was forgotten."""
    for each in ahead:
        length = call.tensors[each.index].shape[each.time]
        middle = length // 2
        part = _fewer(call, each)
        before = answer(setup.model, part)
        future, here, past = (
            answer(setup.model, _replaced(part, each, start, stop))
            for start, stop in ((middle + 1, None), (middle, middle + 1), (middle - 1, middle))
        )
        pairs = list(zip(before, future, here, past, strict=False))
        if any(astray(a, f, length, slice(middle + 1, None)) > 0 for a, f, _, _ in pairs):
            continue  # it looks at both sides, as an encoder does
        at = slice(middle, middle + 1)
        if any(_moves(a, h, length, at) and _moves(a, p, length, at) for a, _, h, p in pairs):
            return {"ahead": 0, "leaks": True, "others": 1.0, "at": "", "inside": False}
    return {"ahead": 0 if ahead else None, "leaks": False}


def _moves(before: Tensor, after: Tensor, length: int, at: slice) -> bool:
    """Whether the answer at some positions moves."""
    axes = [axis for axis, n in enumerate(before.shape) if n == length]
    return bool(axes) and not torch.equal(before.movedim(axes[0], 0)[at], after.movedim(axes[0], 0)[at])


def _lengths(answer_: Tensor, length: int, ahead: Ahead) -> list[int]:
    """The length that an answer has along time: the input's, or what is left of it after the shift."""
    if any(n % length == 0 for n in answer_.shape):
        return [length]
    return [length - ahead.shift] if length - ahead.shift in answer_.shape else []


def _fewer(call: Call, ahead: Ahead) -> Call:
    """The call with a few samples, where it has an axis for them besides time."""
    axis = 1 - ahead.time if ahead.time in (0, 1) else 0
    size = call.tensors[ahead.index].shape[axis]
    length = call.tensors[ahead.index].shape[ahead.time]
    if size <= SAMPLES or size == length:
        return call
    return call.changed(lambda t: t.narrow(axis, 0, SAMPLES) if t.ndim > axis and t.shape[axis] == size else t)


def _replaced(call: Call, ahead: Ahead, start: int, stop: int | None = None) -> Call:
    """The call with some positions of one sequence replaced by what stands elsewhere in it."""
    chosen = call.tensors[ahead.index]

    def change(tensor: Tensor) -> Tensor:
        if tensor is not chosen:
            return tensor
        changed = tensor.clone().movedim(ahead.time, 0)
        here = changed[start:stop]
        there = _unlike(changed, here, start)
        changed[start:stop] = there
        return changed.movedim(0, ahead.time)

    return call.changed(change)


def _unlike(sequence: Tensor, here: Tensor, start: int) -> Tensor:
    """Values of the sequence that differ from those at some positions as often as can be had by turning it."""
    turned = [sequence.roll(k, 0)[start : start + len(here)] for k in range(1, min(len(sequence), 8))]
    if sequence.ndim > 1:
        turned += [t.roll(1, 1) for t in turned[:3]]
    return max(turned, key=lambda there: float((there != here).float().mean())).clone()

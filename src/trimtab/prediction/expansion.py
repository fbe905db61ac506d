"""Operations that are several plain ones in one, as these: so that no law stands anywhere twice."""

import math
from collections.abc import Callable, Sequence

from trimtab.prediction.fused_attention import BIASES, attention
from trimtab.prediction.registry import Call, Value
from trimtab.prediction.steps import Steps


def expanded_calls(calls: Sequence[Call]) -> list[Call]:
    """The operations, with those that stand for several as these.

    Args:
        calls: The operations in order.

    Returns:
        The operations; tensors between those that have taken a place are numbered below zero.
    """
    steps = Steps()
    for call in calls:
        expansion = EXPANSIONS.get(call.name)
        if expansion is None:
            steps.calls.append(call)
        else:
            steps.states = call.states
            expansion(call, steps)
    return steps.calls


def _out(call: Call) -> Value:
    out = call.outputs[0]
    assert out is not None
    return out


def _gated(call: Call, steps: Steps) -> None:
    """A gated linear unit, a sigmoid(b) of both halves (Dauphin et al. 2017, arXiv:1612.08083)."""
    out, dimension = _out(call), call.argument(1, "dim", -1)
    first, second, gate = (steps.new(out.shape) for _ in range(3))
    steps.add("split", (call.args[0], out.shape[dimension], dimension), first, second)
    steps.add("mul", (first, steps.add("sigmoid", (second,), gate)), out)


def _shuffled(call: Call, steps: Steps) -> None:
    """Channels as positions, or back (Shi et al. 2016, arXiv:1609.05158)."""
    x, r, out = call.args[0], int(call.args[1]), _out(call)
    *batch, channels, height, width = x.shape
    n = len(batch)
    if call.name == "aten.pixel_shuffle":
        apart, order = (*batch, channels // r**2, r, r, height, width), (0, 3, 1, 4, 2)
    else:
        apart, order = (*batch, channels, height // r, r, width // r, r), (0, 2, 4, 1, 3)
    turned = [*range(n), *(n + k for k in order)]
    moved = steps.add("permute", (steps.view(x, apart), turned), steps.new([apart[d] for d in turned]))
    steps.view(moved, out.shape, out)


def _repeated(call: Call, steps: Steps) -> None:
    x, times = call.args[:2]
    shape = [1] * (len(times) - len(x.shape)) + list(x.shape)
    apart = [n for size in shape for n in (1, size)]
    wide = [n for pair in zip(times, shape, strict=True) for n in pair]
    copies = steps.add("expand", (steps.view(x, apart), wide), steps.new(wide))
    steps.view(copies, _out(call).shape, _out(call))


def _scattered(call: Call, steps: Steps) -> None:
    """A tensor with a part of it taken from another: what is left of it and the part, joined."""
    x, source = call.args[:2]
    dimension = int(call.argument(2, "dim", 0)) % len(x.shape)
    n = x.shape[dimension]
    if call.name == "aten.select_scatter":
        start, width = int(call.args[3]) % n, 1
        source = steps.view(source, (*x.shape[:dimension], 1, *x.shape[dimension + 1 :]))
    else:
        start = min(int(call.argument(3, "start") or 0) % n, n)
        width = source.shape[dimension]
    parts: list[Value] = [source]
    left = n - width
    if left:
        kept = steps.new((*x.shape[:dimension], left, *x.shape[dimension + 1 :]))
        parts.insert(0 if start else 1, steps.add("narrow", (x, dimension, 0, left), kept))
    steps.add("cat", (parts, dimension), _out(call))


def _folded(call: Call, steps: Steps) -> None:
    """The diagonal, of which entries are as alike as those of different rows and columns."""
    x, out = call.args[0], _out(call)
    i, j = (int(call.argument(k, name, d)) % len(x.shape) for k, name, d in ((2, "dim1", 0), (3, "dim2", 1)))
    rest = [d for d in range(len(x.shape)) if d not in {i, j}]
    turned = steps.add("permute", (x, [*rest, i, j]), steps.new([x.shape[d] for d in (*rest, i, j)]))
    flat = steps.view(turned, (*turned.shape[:-2], math.prod(turned.shape[-2:])))
    steps.add("narrow", (flat, len(rest), 0, out.shape[-1]), out)


def _packed(call: Call, steps: Steps) -> None:
    """Sequences of different lengths one step after the other: entries of as many of the steps as there are."""
    x, out = call.args[0], _out(call)
    if call.argument(2, "batch_first"):
        x = steps.add("transpose", (x, 0, 1), steps.new((x.shape[1], x.shape[0], *x.shape[2:])))
    flat = steps.view(x, (x.shape[0] * x.shape[1], *x.shape[2:]))
    steps.add("narrow", (flat, 0, 0, out.shape[0]), out)


def _length(call: Call, steps: Steps) -> None:
    """The Euclidean norm, a root of a sum of squares."""
    x, out = call.args[0], _out(call)
    if call.argument(1, "ord", 2) != 2:
        steps.calls.append(call)
        return
    square = steps.add("mul", (x, x), steps.new(x.shape))
    total = steps.add(
        "sum", (square, call.argument(2, "dim"), call.argument(3, "keepdim", False)), steps.new(out.shape)
    )
    steps.add("sqrt", (total,), out)


EXPANSIONS: dict[str, Callable[[Call, Steps], None]] = {
    **dict.fromkeys(BIASES, attention),
    "aten.glu": _gated,
    "aten.pixel_shuffle": _shuffled,
    "aten.pixel_unshuffle": _shuffled,
    "aten.repeat": _repeated,
    "aten.select_scatter": _scattered,
    "aten.slice_scatter": _scattered,
    "aten.diagonal": _folded,
    "aten._pack_padded_sequence": _packed,
    "aten.linalg_vector_norm": _length,
}

"""What is written in several operations but is one: gates, and RMS normalization.

Term by term the n of (h - n) z + n would stand there twice as if its parts knew nothing of each other: five times its second moment in
a GRU. And the gradient through the mean square of a RMS normalization takes away 1/n where it would seem to add it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from trimtab.prediction.expansion import expanded_calls
from trimtab.prediction.fields import applied, field_of, state_of
from trimtab.prediction.registry import Call, Gradients, Value, register_rule
from trimtab.prediction.rules.pointwise import added, multiplied, summed_to
from trimtab.prediction.state import State

BLEND = "trimtab.blend"


def blended(calls: Sequence[Call]) -> list[Call]:
    """The operations, with each gate of three as one, and what stands for several as these.

    Args:
        calls: The operations in order.

    Returns:
        The operations; a blend takes h, n and z.
    """
    calls = expanded_calls(calls)
    uses = Counter(v.id for call in calls for v in call.args if isinstance(v, Value))
    dead = [c for c in calls if c.name == "aten.clone" and not any(v is not None and uses[v.id] for v in c.outputs)]
    uses.subtract(c.args[0].id for c in dead)  # copies that autograd keeps for itself
    made: dict[int, Call] = {}
    inside = {id(call) for call in dead}
    found = []
    for call in calls:
        root = _root_mean_square(call, made, uses)
        if root is not None:
            parts, x, dimensions, eps = root
            inside |= {id(part) for part in parts}
            call = Call("trimtab.rms_norm", call.function, (x, dimensions, eps), {}, call.outputs, call.states)
        gate = _gate(call, made, uses)
        if gate is not None:
            product, difference, z = gate
            inside |= {id(product), id(difference)}
            h, n = difference.args[:2]
            states = difference.states | product.states | call.states
            call = Call(BLEND, call.function, (h, n, z), {}, call.outputs, states)
        found.append(call)
        made |= {v.id: call for v in call.outputs if v is not None}
    return [call for call in found if id(call) not in inside]


def _gate(call: Call, made: dict[int, Call], uses: Counter[int]) -> tuple[Call, Call, Value] | None:
    """The product and the difference that end in this sum, and the gate, if that is what they are."""
    if call.name != "aten.add" or call.kwargs or not all(isinstance(v, Value) for v in call.args):
        return None
    for first, again in (call.args, call.args[::-1]):
        product = made.get(first.id)
        if (
            product is None
            or product.name != "aten.mul"
            or uses[first.id] > 1
            or not isinstance(product.args[1], Value)
        ):
            continue
        for part, gate in (product.args, product.args[::-1]):
            difference = made.get(part.id)
            if difference is None or difference.name != "aten.sub" or difference.kwargs or uses[part.id] > 1:
                continue
            if isinstance(difference.args[1], Value) and difference.args[1].id == again.id:
                return product, difference, gate
    return None


def _root_mean_square(
    call: Call, made: dict[int, Call], uses: Counter[int]
) -> tuple[tuple[Call, ...], Value, list[int], float] | None:
    """The parts of x rsqrt(mean x^2 + eps), x, over what the mean goes, and eps."""
    if call.name != "aten.mul" or not all(isinstance(v, Value) for v in call.args):
        return None
    for x, scale in (call.args, call.args[::-1]):
        root, parts = made.get(scale.id), []
        for names in (("aten.rsqrt",), ("aten.add",), ("aten.mean",), ("aten.pow", "aten.square", "aten.mul")):
            if root is None or root.name not in names or uses[root.outputs[0].id if root.outputs[0] else 0] != 1:
                break
            parts.append(root)
            root = made.get(root.args[0].id)
        else:
            _, plus, mean, square = parts
            power = square.args[1] if len(square.args) > 1 else 2
            twice = power == 2 or (isinstance(power, Value) and power.id == x.id)
            if square.args[0].id == x.id and twice and isinstance(plus.args[1], float | int) and not plus.kwargs:
                return tuple(parts), x, list(mean.argument(1, "dim")), float(plus.args[1])
    return None


def _weights(call: Call) -> tuple[State, State]:
    z = call.state(call.args[2])
    field, _ = applied([z.field or field_of(call.args[2].id, z)], lambda values: torch.ones_like(values) - values)
    return replace(z, field=None), replace(state_of(field), field=None)


def _forward(call: Call) -> State:
    share, rest = _weights(call)
    return added(multiplied(call.state(call.args[0]), share), multiplied(call.state(call.args[1]), rest))


def _backward(call: Call, gradients: Sequence[State | None]) -> Gradients:
    gradient = gradients[0]
    if gradient is None:
        return {}
    h, n, _ = call.args
    share, rest = _weights(call)
    between = added(call.state(h), call.state(n).scaled(-1.0))
    parts = zip(call.args, (share, rest, between), strict=True)
    return {v.id: summed_to(multiplied(gradient, part), v.shape) for v, part in parts if not v.known}


register_rule(BLEND, forward=_forward, backward=_backward)

"""Gates written in three operations, (h - n) z + n, as the one blend z h + (1 - z) n that they are.

Term by term n would stand there twice as if its parts knew nothing of each other: five times its second moment in a GRU.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from trimtab.prediction.fields import applied, field_of, state_of
from trimtab.prediction.registry import Call, Gradients, Value, register_rule
from trimtab.prediction.rules.pointwise import added, multiplied, summed_to
from trimtab.prediction.state import State

BLEND = "trimtab.blend"


def blended(calls: Sequence[Call]) -> list[Call]:
    """The operations, with each gate of three as one.

    Args:
        calls: The operations in order.

    Returns:
        The operations; a blend takes h, n and z.
    """
    uses = Counter(v.id for call in calls for v in call.args if isinstance(v, Value))
    dead = [c for c in calls if c.name == "aten.clone" and not any(v is not None and uses[v.id] for v in c.outputs)]
    uses.subtract(c.args[0].id for c in dead)  # copies that autograd keeps for itself
    made: dict[int, Call] = {}
    inside = {id(call) for call in dead}
    found = []
    for call in calls:
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

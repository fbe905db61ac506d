"""Moments along the written-down operations: forward in their order, gradients back against it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trimtab.prediction.axes import aligned
from trimtab.prediction.fields import passed
from trimtab.prediction.registry import Call, Value, rule_for
from trimtab.prediction.rules import pointwise
from trimtab.prediction.rules.pointwise import mixed, multiplied
from trimtab.prediction.state import NoRuleError, State, dims_of, independent, size

RULE_FAILS = (NoRuleError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""A rule that trips over what it did not foresee has no answer, as one that says so: the user's call goes on."""

KEEPS_PARTS = frozenset({"aten.stack", "aten.transpose", "aten.permute", "aten.clone"})
"""What leaves a stack one."""


@dataclass(slots=True)
class Flow:
    """What was propagated.

    Attributes:
        states: The state of each tensor of the signal.
        gradients: The gradient of the loss at each tensor that passes one on.
        shown: The second moment of the gradient at every tensor, also in the middle of a pointwise chain.
        uncovered: How often each operation passed a measured value through.
        read: The sites whose state owes something to a measured value since the sites before.
    """

    states: dict[int, State] = field(default_factory=dict)
    gradients: dict[int, State] = field(default_factory=dict)
    shown: dict[int, float] = field(default_factory=dict)
    uncovered: Counter[str] = field(default_factory=Counter)
    read: set[int] = field(default_factory=set)
    _lost: set[int] = field(default_factory=set)


def forward(
    calls: Sequence[Call], sources: Mapping[int, State], values: Mapping[int, tuple[float, float]], sites: set[int]
) -> Flow:
    """Propagate the signal (tolerance: theory of finite width, in `State.scatter`).

    Args:
        calls: The operations.
        sources: What is read from the batch.
        values: What was measured, for operations without a rule.
        sites: Tensors that are sites: what comes after one is judged anew for being covered.

    Returns:
        The states.
    """
    flow = Flow(dict(sources))
    for call in calls:
        call.states.update({v.id: flow.states[v.id] for v in values_of(call) if v.id in flow.states})
        try:
            found = _by_rule(call)
        except RULE_FAILS:
            flow.uncovered[call.name] += 1
            found = [_as_measured(value, values) for value in call.outputs]
        for value, state in zip(call.outputs, found, strict=False):
            if value is not None and state is not None:
                if state.parts is not None and call.name not in KEEPS_PARTS:
                    state = replace(state, parts=None)
                if state.measured and value.id in sites:  # the site answers for it, those behind it do not
                    flow.read.add(value.id)
                    state = replace(state, measured=False)
                call.states[value.id] = state
                flow.states[value.id] = state
    return flow


def values_of(call: Call) -> list[Value]:
    """The tensors in the arguments of an operation."""
    found: list[Value] = []

    def look(item: object) -> None:
        if isinstance(item, Value):
            found.append(item)
        elif isinstance(item, list | tuple):
            for part in item:
                look(part)

    look(call.args)
    look(list(call.kwargs.values()))
    return found


def _by_rule(call: Call) -> list[State | None]:
    rule = rule_for(call.name)
    if rule is not None:
        found = rule.forward(call)
    elif pointwise.is_pointwise(call):
        found = pointwise.forward(call)
    else:
        raise NoRuleError(f"no rule for {call.name}")
    states: list[State | None] = [found] if isinstance(found, State) else list(found)
    for value, state in zip(call.outputs, states, strict=False):
        if value is None or state is None:
            continue
        if tuple(size(factors) for factors in state.dims) != value.shape or not np.all(np.isfinite(state.kappa)):
            raise NoRuleError(f"the rule for {call.name} gives {state.dims} for a tensor of {value.shape}")
    return list(states)


def _as_measured(value: Value | None, values: Mapping[int, tuple[float, float]]) -> State | None:
    if value is None or value.id not in values:
        return None
    q, mean = values[value.id]
    state = independent(value.shape, q)
    kappa = state.kappa.copy()
    kappa[kappa < q] = min(mean**2, q)
    return State(dims_of(value.shape), kappa, mean, measured=True)


def backward(flow: Flow, calls: Sequence[Call], seeds: Mapping[int, State], measured: Mapping[int, float]) -> None:
    """Propagate the gradient by the adjoint rule of each operation, in reverse.

    Args:
        flow: The states; takes the gradients.
        calls: The operations, which hold the states of their tensors.
        seeds: The gradient at the outputs.
        measured: Mean squares of the gradient at sites, for what lies below an operation without a rule.
    """
    for key, state in seeds.items():
        _deposit(flow, key, state)
    for call in reversed(calls):
        for value in call.outputs:
            if value is not None and value.id in flow._lost and value.id in measured:
                flow.gradients[value.id] = replace(independent(value.shape, measured[value.id]), measured=True)
                flow.shown[value.id] = measured[value.id]
                flow._lost.discard(value.id)
        gradients = [flow.gradients.get(v.id) if v is not None else None for v in call.outputs]
        lost = any(v is not None and v.id in flow._lost for v in call.outputs)
        if lost or not any(g is not None for g in gradients):
            if lost:
                flow._lost.update(v.id for v in values_of(call) if not v.known)
            _show(flow, call)
            continue
        try:
            _back(flow, call, gradients)
        except RULE_FAILS:
            flow._lost.update(v.id for v in values_of(call) if not v.known)
        _show(flow, call)


def _back(flow: Flow, call: Call, gradients: list[State | None]) -> None:
    out = call.outputs[0]
    state = call.states.get(out.id) if out is not None else None
    if state is not None and state.field is not None and state.field.base != (out.id if out else None):
        if gradients[0] is not None:  # the chain back to its Gaussian in one step
            _deposit(flow, state.field.base, multiplied(gradients[0], passed(state.field)), show=False)
            _show_base(flow, call, state, gradients[0])
        return
    rule = rule_for(call.name)
    found = rule.backward(call, gradients) if rule is not None else pointwise.backward(call, gradients)
    for key, gradient in found.items():
        _deposit(flow, key, gradient)
    for key, moment in call.shown.items():
        flow.shown[key] = flow.shown.get(key, 0.0) + moment


def _show_base(flow: Flow, call: Call, state: State, gradient: State) -> None:
    """The base of a chain shows what it gets from the whole chain, not from its links."""
    assert state.field is not None
    gain = float(state.field.weights @ state.field.slopes**2)
    base = state.field.base
    flow.shown[base] = flow.shown.get(base, 0.0) + gradient.second_moment * gain


def _show(flow: Flow, call: Call) -> None:
    """Inside a chain, each link shows what comes back through it."""
    out = call.outputs[0] if call.outputs else None
    if out is None or not call.partials:
        return
    state = call.states[out.id]
    arriving = flow.shown.get(out.id)
    if arriving is None or state.field is None:
        return
    for key, partial in call.partials.items():
        if key != state.field.base:
            flow.shown[key] = flow.shown.get(key, 0.0) + arriving * partial


def _deposit(flow: Flow, key: int, gradient: State, show: bool = True) -> None:
    before = flow.gradients.get(key)
    if before is not None:
        first, second = aligned(before, gradient)
        total = replace(
            first, kappa=first.kappa + second.kappa, mean=first.mean + second.mean, profile=mixed(before, gradient)
        )
        weight = second.second_moment / max(total.second_moment, 1e-300)
        scatter = ((1 - weight) * first.scatter**0.5 + weight * second.scatter**0.5) ** 2
        gradient = replace(total, scatter=scatter, measured=before.measured or gradient.measured)
    flow.gradients[key] = gradient
    if show:
        flow.shown[key] = flow.shown.get(key, 0.0) + (
            gradient.second_moment - (before.second_moment if before else 0.0)
        )

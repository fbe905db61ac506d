"""The scores of attention: a softmax over the product of two signals, and what entered it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trimtab.prediction.engine import Flow, values_of
from trimtab.prediction.judging import centre, factor, log_variance
from trimtab.prediction.listening import Heard
from trimtab.prediction.registry import Call, Value
from trimtab.prediction.state import State
from trimtab.report.prediction import Attention

PRODUCTS = frozenset({"aten.bmm", "aten.mm", "aten.baddbmm", "aten.addmm"})
VIEWS = frozenset(
    f"aten.{name}" for name in ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "clone", "expand", "permute", "transpose",
    "t", "contiguous", "select", "slice", "split", "split_with_sizes", "chunk", "unbind")
)  # fmt: skip
"""What gives the same numbers another place."""
JOINS = frozenset({"aten.add", "aten.sub", "aten.masked_fill", "aten.where"})
"""What puts a mask or a bias of positions on scores."""
DEEPEST = 16


@dataclass(frozen=True, slots=True)
class _Scores:
    """A product of two signals on its way to a softmax.

    Attributes:
        product: The operation that sums over the head dimension.
        value: The last tensor on the way without mask or bias that has numbers of its own.
        scale: The constant that the product has been multiplied with, nan where it is not one.
        after: How much of it comes behind `value`.
    """

    product: Call
    value: Value
    scale: float
    after: float = 1.0
    joined: bool = False


def attentions(
    calls: Sequence[Call], flow: Flow, values: Mapping[int, tuple[float, float]], heard: Sequence[Heard]
) -> tuple[Attention, ...]:
    """What enters every softmax over scores.

    Args:
        calls: The operations, with the states of their tensors.
        flow: What was propagated.
        values: What was measured of each tensor: mean square and mean.
        heard: The sites; an attention has the name of the first one behind it.

    Returns:
        The attentions in order.
    """
    made = {v.id: call for call in calls for v in call.outputs if v is not None}
    names = {site.value.id: site.name for site in reversed(heard)}

    def sites(scores: _Scores) -> tuple[str, ...]:
        return _sites(scores.product, made, names)

    found: list[Attention] = []
    waiting: list[tuple[_Scores, Call]] = []
    for call in calls:
        if call.name in {"aten._softmax", "aten._safe_softmax"} and isinstance(call.args[0], Value):
            scores = _scores(call.args[0], made, DEEPEST)
            if scores is not None:
                waiting.append((scores, call))
        name = next((names[v.id] for v in call.outputs if v is not None and v.id in names), None)
        if name is not None:
            found += [_attention(name, sites(scores), scores, softmax, flow, values) for scores, softmax in waiting]
            waiting = []
    return (*found, *(_attention("", sites(scores), scores, softmax, flow, values) for scores, softmax in waiting))


def _scores(value: Value, made: Mapping[int, Call], depth: int) -> _Scores | None:
    call = made.get(value.id)
    if call is None or depth == 0:
        return None
    signals = [v for v in values_of(call) if v.real and not v.known]
    if call.name in PRODUCTS:
        pair = [v for v in call.args[-2:] if isinstance(v, Value) and not v.known]
        if len(pair) < 2:
            return None
        scale = math.prod(_scale_of(v, made) for v in pair) * float(call.kwargs.get("alpha", 1))
        return _Scores(call, value, scale)
    for signal in signals:
        inner = _scores(signal, made, depth - 1)
        if inner is not None:
            return _onward(call, signal, value, inner)
    return None


def _onward(call: Call, signal: Value, value: Value, inner: _Scores) -> _Scores:
    constant = _constant(call, signal)
    if call.name in VIEWS:
        return inner
    if constant is not None and inner.joined:
        return replace(inner, scale=inner.scale * constant, after=inner.after * constant)
    if constant is not None:
        return replace(inner, value=value, scale=inner.scale * constant)
    if call.name in JOINS:
        return replace(inner, joined=True)
    return _Scores(inner.product, value, math.nan)


def _sites(product: Call, made: Mapping[int, Call], names: Mapping[int, str]) -> tuple[str, ...]:
    """The nearest sites in front of queries and keys."""
    found = []
    for value in values_of(product):
        for _ in range(DEEPEST):
            if value.id in names:
                found.append(names[value.id])
                break
            before = [v for v in values_of(made[value.id]) if v.real and not v.known] if value.id in made else []
            if not before:
                break
            value = before[0]
    return tuple(dict.fromkeys(found))


def _constant(call: Call, signal: Value) -> float | None:
    """The one number that an operation multiplies with, None if it does something else."""
    if call.name == "aten._to_copy":
        return 1.0
    if call.name not in {"aten.mul", "aten.div"} or call.kwargs or len(call.args) != 2:
        return None
    other = call.args[1] if call.args[0] == signal else call.args[0]
    if isinstance(other, Value):
        if not other.known or math.prod(other.shape) != 1 or other.id not in call.states:
            return None
        other = call.states[other.id].mean
    if call.name == "aten.mul":
        return float(other)
    return 1.0 / float(other) if other and call.args[0] == signal else None


def _scale_of(value: Value, made: Mapping[int, Call]) -> float:
    """The constants that queries or keys have been multiplied with on their own way to the product."""
    scale = 1.0
    for _ in range(DEEPEST):
        call = made.get(value.id)
        signals = [v for v in values_of(call) if v.real and not v.known] if call is not None else []
        if call is None or len(signals) != 1:
            break
        constant = 1.0 if call.name in VIEWS else _constant(call, signals[0])
        if constant is None:
            break
        scale, value = scale * constant, signals[0]
    return scale


def _attention(
    name: str,
    sources: tuple[str, ...],
    scores: _Scores,
    softmax: Call,
    flow: Flow,
    values: Mapping[int, tuple[float, float]],
) -> Attention:
    state, out = flow.states.get(scores.value.id), softmax.outputs[0]
    keys = softmax.args[0].shape[softmax.args[1]]
    q, mean = values.get(scores.value.id, (math.nan, math.nan))
    scatter = log_variance(state) if state is not None else math.nan
    weights = flow.states.get(out.id) if out is not None else None
    before = softmax.states.get(softmax.args[0].id)
    squares = values.get(out.id, (math.nan, math.nan))[0] if out is not None else math.nan
    return Attention(
        name,
        int(scores.product.args[-2].shape[-1]),
        int(keys),
        scores.scale,
        centre(_spread(state), scatter) * scores.after**2,
        (q - mean**2) * scores.after**2,
        factor(scatter),
        keys * weights.second_moment if weights is not None else math.nan,
        keys * squares,
        keys * before.mask.second_moment if before is not None and before.mask is not None else 1.0 / keys,
        sources,
    )


def _spread(state: State | None) -> float:
    return max(state.second_moment - state.mean**2, 0.0) if state is not None else math.nan

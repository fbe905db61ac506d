"""Operations entry by entry: any function of one Gaussian by quadrature; sums and products of different tensors."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.prediction.axes import aligned, fold
from trimtab.prediction.fields import Field, applied, far, field_of, state_of
from trimtab.prediction.laws import law_of_sum
from trimtab.prediction.registry import Call, Gradients, Value
from trimtab.prediction.state import Array, NoRuleError, State, size

UNTAGGED = frozenset({"aten._prelu_kernel"})
"""What works entry by entry although PyTorch does not say so."""
SUMS = {"aten.add": 1.0, "aten.sub": -1.0}


def is_pointwise(call: Call) -> bool:
    """Whether PyTorch itself says that the operation works entry by entry."""
    return call.name in UNTAGGED or torch.Tag.pointwise in getattr(call.function, "tags", ())


def forward(call: Call) -> State:
    """A function of one Gaussian by quadrature; else a sum, product or quotient.

    Args:
        call: The operation.

    Returns:
        The state of its result.

    Raises:
        NoRuleError: If it joins different tensors in another way.
    """
    fields = _fields(call)
    if fields is not None:
        return _function(call, fields)
    a, b = call.args[0], call.args[1] if len(call.args) > 1 else None
    if call.name in SUMS and isinstance(a, Value) and isinstance(b, Value):
        total = added(call.state(a), call.state(b).scaled(SUMS[call.name] * call.kwargs.get("alpha", 1)))
        return rooted(rooted(total, a), b)
    if call.name == "aten.mul" and isinstance(b, Value):
        return multiplied(call.state(a), call.state(b))
    if call.name == "aten.div" and isinstance(b, Value):
        return multiplied(call.state(a), _reciprocal(call, b))
    raise NoRuleError(f"{call.name} of different tensors")


def backward(call: Call, gradients: Sequence[State | None]) -> Gradients:
    """The adjoint of sums and products; functions of one Gaussian are taken back by the engine.

    Args:
        call: The operation.
        gradients: At its result.

    Returns:
        The gradients at its inputs.

    Raises:
        NoRuleError: If it is none of these.
    """
    gradient = gradients[0]
    if gradient is None or not call.args:
        return {}
    a, b = call.args[0], call.args[1] if len(call.args) > 1 else None
    found: dict[int, State] = {}
    if call.name in SUMS:
        factor = float(call.kwargs.get("alpha", 1))
        parts = [(a, gradient), (b, gradient.scaled(factor))]
    elif call.name == "aten.mul" and isinstance(b, Value):
        parts = [(a, multiplied(gradient, call.state(b))), (b, multiplied(gradient, call.state(a)))]
    elif call.name == "aten.div" and isinstance(b, Value):
        inverse = _reciprocal(call, b)
        parts = [
            (a, multiplied(gradient, inverse)),
            (b, multiplied(multiplied(gradient, call.state(a)), multiplied(inverse, inverse))),
        ]
    else:
        raise NoRuleError(f"{call.name} of different tensors")
    for value, part in parts:
        if isinstance(value, Value) and not value.known:
            found[value.id] = summed_to(part, value.shape)
    return found


def _fields(call: Call) -> dict[int, Field] | None:
    """The arguments as functions of one Gaussian, None if they are not."""
    values = [v for v in (*call.args, *call.kwargs.values()) if isinstance(v, Value)]
    found = {}
    for value in values:
        if not value.known:
            state = call.state(value)
            found[value.id] = state.field or field_of(value.id, state)
        elif size(value.shape) != 1 and call.name != "aten._prelu_kernel":
            return None
    return found if len({f.base for f in found.values()}) == 1 else None


def _function(call: Call, fields: dict[int, Field]) -> State:
    places = [
        k
        for k, item in enumerate(call.args)
        if isinstance(item, Value)  # numbers stay where they are
    ]
    values: list[Value] = [call.args[k] for k in places]
    function = functional(call.function)

    def on_nodes(*tensors: Tensor | float) -> Tensor:
        args = list(call.args)
        like = next(t for t in tensors if isinstance(t, Tensor))
        for place, tensor in zip(places, tensors, strict=True):
            args[place] = tensor if isinstance(tensor, Tensor) else torch.full_like(like, tensor)
        kwargs = {k: v for k, v in call.kwargs.items() if k not in {"dtype", "device", "memory_format", "layout"}}
        result: Tensor = function(*args, **kwargs)
        return result

    arguments: list[Field | float] = [fields[v.id] if not v.known else call.state(v).mean for v in values]
    try:
        field, partials = applied(arguments, on_nodes)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise NoRuleError(f"{call.name} cannot be evaluated on numbers: {error}") from error
    call.partials = {v.id: p for v, p in zip(values, partials, strict=True) if not v.known}
    state = state_of(field)
    out = call.outputs[0]
    if out is not None and tuple(size(f) for f in state.dims) != out.shape:
        raise NoRuleError(f"{call.name} broadcasts")
    return state


def functional(function: Any) -> Any:
    """The twin of an operation that leaves its input as it is."""
    schema = function._schema
    namespace, _, name = schema.name.partition("::")
    if not name.endswith("_"):
        return function
    packet = getattr(getattr(torch.ops, namespace), name[:-1])
    return getattr(packet, schema.overload_name or "default")


def added(a: State, b: State) -> State:
    """A sum of tensors that know nothing of each other but their means: E[x x'] add, and 2 E x E y comes to it.

    A residual branch begins with random weights, so that it is uncorrelated with its input (De & Smith 2020,
    arXiv:2002.10444); where one is a pointwise function of the other, the quadrature adds them instead.

    Args:
        a: One term.
        b: The other.

    Returns:
        The state of the sum.
    """
    a, b = _fielded(a, b)
    kappa = a.kappa + b.kappa + 2.0 * a.mean * b.mean + _common(a, b)
    first, second = a.second_moment, b.second_moment
    total = float(kappa.reshape(-1)[-1])
    spread, scatter = 2.0, 0.0
    if total > 0:
        spread = ((a.spread + 1) * first**2 + (b.spread + 1) * second**2 + 6 * first * second) / (
            first + second
        ) ** 2 - 1
        scatter = ((first * a.scatter**0.5 + second * b.scatter**0.5) / total) ** 2
    alike = (first * a.alike + second * b.alike) / (first + second) if total > 0 else 0.0
    state = State(a.dims, kappa, a.mean + b.mean, spread, scatter, alike, measured=a.measured or b.measured)
    return replace(
        state,
        near=_near_sum(a, b),
        mask=a.mask or b.mask,
        law=law_of_sum(a, b),
        profile=mixed(a, b),
        roots=a.roots | b.roots,
    )


def _fielded(a: State, b: State) -> tuple[State, State]:
    """Both aligned, with the functions that their entries are, for what their sum is like."""
    first, second = aligned(a, b)
    first = replace(first, field=a.field, law=a.law, profile=a.profile if a.ndim == first.ndim else ())
    return first, replace(second, field=b.field, law=b.law, profile=b.profile if b.ndim == first.ndim else ())


def rooted(state: State, value: Value) -> State:
    """The state of a sum with a bias, if `value` is one: what all samples have in common comes from it."""
    return replace(state, roots=state.roots | {value.id}) if value.known and size(value.shape) > 1 else state


def _common(a: State, b: State) -> Array | float:
    """Twice the covariance of two terms in one unit, where both take what their samples share from the same bias."""
    if not a.roots & b.roots or a.kappa.shape != b.kappa.shape or not a.dims[-1]:
        return 0.0
    unit = a.axes(-1)
    index = tuple(1 if axis in unit else 0 for axis in range(a.kappa.ndim))
    shared = [max(float(s.kappa[index]) - s.mean**2, 0.0) for s in (a, b)]
    same = np.zeros_like(a.kappa)
    same[tuple(1 if axis in unit else slice(None) for axis in range(a.kappa.ndim))] = 1.0
    return np.asarray(2.0 * same * (shared[0] * shared[1]) ** 0.5)


def mixed(a: State, b: State) -> tuple[Array, ...]:
    """The profile of a sum of images: weighted by their second moments."""
    if not (a.profile or b.profile) or a.ndim != b.ndim:
        return ()
    first, second = a.second_moment, b.second_moment
    share = first / (first + second) if first + second > 0 else 0.5
    flat = np.ones(1)
    one, other = a.profile or (flat,) * len(b.profile), b.profile or (flat,) * len(a.profile)
    return tuple(np.asarray(share * x + (1.0 - share) * y) for x, y in zip(one, other, strict=True))


def _near_sum(a: State, b: State) -> tuple[float, ...]:
    if a.ndim != 4 or not (a.near or b.near):
        return ()
    over = [max(s.second_moment - far(s), 0.0) for s in (a, b)]
    total = sum(over)
    if total <= 0:
        return ()
    count = max(len(a.near), len(b.near))
    padded = [(*s.near, *[0.0] * (count - len(s.near))) for s in (a, b)]
    return tuple((over[0] * x + over[1] * y) / total for x, y in zip(*padded, strict=True))


def multiplied(a: State, b: State) -> State:
    """A product of tensors that know nothing of each other: E[x x'] multiply.

    Args:
        a: One factor.
        b: The other.

    Returns:
        The state of the product.
    """
    a, b = aligned(a, b)
    spread = (a.spread + 1.0) * (b.spread + 1.0) - 1.0
    state = State(a.dims, a.kappa * b.kappa, a.mean * b.mean, spread, a.scatter + b.scatter, max(a.alike, b.alike))
    near = a.near if a.ndim == 4 and a.near else b.near if b.ndim == 4 else ()
    return replace(
        state, near=near, measured=a.measured or b.measured, profile=a.profile or b.profile, roots=a.roots | b.roots
    )


def _reciprocal(call: Call, value: Value) -> State:
    """1/y, by quadrature over y."""
    state = call.state(value)
    field, _ = applied([state.field or field_of(value.id, state)], torch.reciprocal)
    return replace(state_of(field), field=None)


def summed_to(gradient: State, shape: Sequence[int]) -> State:
    """The gradient summed over what was broadcast: E[g g'] of a sum of n entries is n^2 times that of their mean."""
    extra = gradient.ndim - len(shape)
    shapes = [1] * extra + list(shape)
    wide = [d for d, n in enumerate(shapes) if n == 1 and gradient.dims[d]]
    if wide:
        axes = gradient.axes(*wide)
        n = size([gradient.sizes[a] for a in axes])
        kappa = fold(gradient.kappa, gradient.sizes, axes) * float(n) ** 2
        kappa = kappa.reshape([2] * (kappa.ndim - len(axes)))
        dims = tuple(() if d in wide else f for d, f in enumerate(gradient.dims))
        gradient = replace(gradient, dims=dims, kappa=kappa, mean=gradient.mean * n)
    return replace(gradient, dims=gradient.dims[extra:], field=None)

"""Batch, layer, group and instance normalization, in training and in evaluation mode."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trimtab.prediction.axes import aligned, centred, fold, merged, refactored
from trimtab.prediction.registry import Call, Gradients, Value, register_rule
from trimtab.prediction.rules.contractions import shared
from trimtab.prediction.rules.pointwise import added, multiplied
from trimtab.prediction.state import GAUSSIAN, Array, NoRuleError, State, size


@dataclass(frozen=True, slots=True)
class _Norm:
    """One normalization: over which axes of which state, with which scale and shift behind it."""

    state: State
    axes: tuple[int, ...]
    eps: float
    weight: State | None
    bias: State | None
    running: tuple[State, State] | None = None
    over_samples: bool = False
    centred: bool = True


def variance_of(state: State, axes: Sequence[int]) -> float:
    """The variance over axes, of which each group has its own mean."""
    return max(float(centred(state.kappa, state.sizes, axes).reshape(-1)[-1]), 0.0)


def _level(norm: _Norm) -> float:
    return variance_of(norm.state, norm.axes) if norm.centred else norm.state.second_moment


def _off_mean(norm: _Norm, state: State) -> Array:
    return centred(state.kappa, state.sizes, norm.axes) if norm.centred else state.kappa


def _forward(norm: _Norm) -> State:
    """(x - mean)/sqrt(var + eps): the variance of each group is what it is, so no scatter of its level is left."""
    state, variance = norm.state, _level(norm)
    if norm.running is not None:
        return _scaled(_evaluated(norm), norm)
    kappa = _off_mean(norm, state) / max(variance + norm.eps, 1e-300)
    share = norm.eps / max(variance + norm.eps, 1e-300)
    plain = State(
        state.dims,
        kappa,
        0.0 if norm.centred else state.mean / max(variance + norm.eps, 1e-300) ** 0.5,
        GAUSSIAN,
        share**2 * state.scatter,
        state.alike,
        near=state.near,
        measured=state.measured,
        profile=state.profile,
    )
    return _scaled(plain, norm)


def _evaluated(norm: _Norm) -> State:
    """With running statistics; the means that training has left are taken to be those of the channels."""
    state = norm.state
    assert norm.running is not None
    mean, variance = norm.running
    level = 1.0 / (variance.mean + norm.eps) * (1.0 + _relative_variance(variance))
    apart = fold(state.kappa, state.sizes, norm.axes)
    size_of_mean = math.sqrt(max(float(apart.reshape(-1)[-1]), 0.0))
    left = abs(size_of_mean - math.sqrt(mean.second_moment)) / size_of_mean if size_of_mean > 0 else 0.0
    kappa = (state.kappa - apart * (1.0 - left**2)) * level
    return replace(state, kappa=kappa, mean=state.mean * left * level**0.5, spread=GAUSSIAN, field=None)


def _relative_variance(state: State) -> float:
    return max(state.second_moment / state.mean**2 - 1.0, 0.0) if state.mean else 0.0


def _scaled(state: State, norm: _Norm) -> State:
    near, profile = state.near, state.profile
    if norm.weight is not None:
        state = replace(multiplied(state, norm.weight), spread=state.spread)
    if norm.bias is not None:
        state = added(state, norm.bias)
    return replace(state, near=near, profile=profile)


def _backward(norm: _Norm, gradient: State) -> State:
    """gamma/sqrt(var + eps) times the projection off the mean and off the normalised values (Ioffe & Szegedy 2015)."""
    state = norm.state
    if norm.weight is not None:
        gradient = multiplied(gradient, norm.weight)
    state, gradient = aligned(state, gradient)
    if norm.running is not None:
        level = 1.0 / (norm.running[1].mean + norm.eps) * (1.0 + _relative_variance(norm.running[1]))
        return replace(gradient, kappa=gradient.kappa * level)
    variance = _level(norm)
    spread = max(variance + norm.eps, 1e-300)
    flat = _off_mean(norm, state) / spread
    # each group divides by its own variance; the mean of 1/var is above 1/mean by their scatter
    chance = state.alike if norm.over_samples else 0.0
    alike = shared(replace(state, kappa=flat, mean=0.0, alike=chance), norm.axes) if variance > 0 else 0.0
    level = (1.0 + min(2.0 * alike, 1.0) * (variance / spread) ** 2) / spread
    kappa = _off_mean(norm, gradient)
    along = fold(kappa * flat, state.sizes, norm.axes)
    kappa = (kappa - flat * along) * level
    turn = (variance / spread) ** 2 * state.scatter
    return replace(gradient, kappa=kappa, mean=0.0, scatter=gradient.scatter + turn, field=None)


def _known(call: Call, value: Any, shape: Sequence[int]) -> State | None:
    """Scale or shift, with its dimensions where those of the input are."""
    if not isinstance(value, Value):
        return None
    state = call.state(value)
    dims = iter([d for d in state.dims if d])
    wanted = [d for d, n in enumerate(shape) if n > 1]
    placed: list[tuple[int, ...]] = [()] * len(shape)
    for d in wanted:
        placed[d] = next(dims, ())
    return replace(state, dims=tuple(placed))


def _batch(call: Call) -> _Norm:
    names = call.function._schema.arguments
    given = dict(zip((a.name for a in names), call.args, strict=False)) | call.kwargs
    x = given["input"]
    state = call.state(x)
    shape = [n if d == 1 else 1 for d, n in enumerate(x.shape)]
    training = bool(given.get("training", given.get("train", call.name == "aten._batch_norm_with_update")))
    running = None
    if not training:
        running = call.state(given["running_mean"]), call.state(given["running_var"])
    axes = state.axes(*(d for d in range(state.ndim) if d != 1))
    if training and size([state.sizes[a] for a in axes]) < 2:
        raise NoRuleError("a batch of one value a channel")
    eps = float(next((given[k] for k in ("eps", "epsilon") if k in given), 1e-5))
    weight, bias = (_known(call, given.get(k), shape) for k in ("weight", "bias"))
    return _Norm(state, axes, eps, weight, bias, running, over_samples=True)


def _layer(call: Call) -> _Norm:
    x, shape, weight, bias, eps = call.args[:5]
    state = call.state(x)
    first = len(x.shape) - len(shape)
    whole = [1] * first + list(shape)
    axes = state.axes(*range(first, state.ndim))
    return _Norm(state, axes, float(eps), _known(call, weight, whole), _known(call, bias, whole))


def _group(call: Call) -> _Norm:
    x, weight, bias, _, channels, _, groups, eps = call.args[:8]
    state = call.state(x)
    cut = (groups,) if groups > 1 else ()
    state = refactored(state, [(), cut, *[()] * (state.ndim - 2)])
    inside = state.axes(1)[len(cut) :]
    axes = (*inside, *(a for d in range(2, state.ndim) for a in state.axes(d)))
    shape = [channels if d == 1 else 1 for d in range(state.ndim)]
    return _Norm(state, axes, float(eps), _known(call, weight, shape), _known(call, bias, shape))


def _root_mean_square(call: Call) -> _Norm:
    """RMS normalization, found in its parts by `prediction.patterns`."""
    x, dimensions, eps = call.args
    state = call.state(x)
    return _Norm(state, state.axes(*dimensions), eps, None, None, centred=False)


def _register(make: Callable[[Call], _Norm], *names: str) -> None:
    def forward(call: Call) -> Sequence[State | None]:
        return [merged(_forward(make(call))), *[None] * (len(call.outputs) - 1)]

    def backward(call: Call, gradients: Sequence[State | None]) -> Gradients:
        gradient = gradients[0]
        return {} if gradient is None else {call.args[0].id: merged(_backward(make(call), gradient))}

    register_rule(*names, forward=forward, backward=backward)


_register(
    _batch, "aten.native_batch_norm", "aten._native_batch_norm_legit", "aten.cudnn_batch_norm", "aten._batch_norm_with_update",
    "aten.miopen_batch_norm", "aten._batch_norm_no_update", "aten._native_batch_norm_legit_no_training",
)  # fmt: skip
_register(_layer, "aten.native_layer_norm")
_register(_root_mean_square, "trimtab.rms_norm")
_register(_group, "aten.native_group_norm")

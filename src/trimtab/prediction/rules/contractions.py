"""Matrix products: a layer's weights on its input, or attention's tensors on each other."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trimtab.prediction.axes import Labels, contract, fold, matched, named
from trimtab.prediction.registry import Call, Gradients, Value, register_rule
from trimtab.prediction.rules.pointwise import added, rooted, summed_to
from trimtab.prediction.state import GAUSSIAN, State, size

NAMES = {"aten.mm": ("nk", "km", "nm"), "aten.bmm": ("bnk", "bkm", "bnm"), "aten.mv": ("nk", "k", "n")}
"""Dimensions of both factors and of the product, by a letter."""


def noise(state: State, summed: int, kept: Sequence[int]) -> float:
    """Var log of a sum's second moment from summing so few entries: spread/n, less where the samples differ.

    The samples of a batch share the weights; what their entries squared have in common scatters with 1/n and does not
    average out over the batch (law: Hanin & Nica 2018, arXiv:1812.05994, for one sample).

    Args:
        state: What is summed.
        summed: How many of its entries.
        kept: Its other axes, the samples and positions.

    Returns:
        The variance of the log.
    """
    return state.spread * shared(state, kept) / max(summed, 1)


def shared(state: State, rows: Sequence[int]) -> float:
    """Share of the variance of x^2 that all rows have in common, with the correlation that they have by chance."""
    return min(common(state, rows) + state.alike, 1.0) if state.second_moment > 0 else 1.0


def common(state: State, axes: Sequence[int]) -> float:
    """Mean, over pairs along axes, of Cov(x^2, x'^2)/Var x^2 = (2 c^2 + 4 m^2 c)/(2 v^2 + 4 m^2 v) for Gaussians of mean m.

    Args:
        state: Of which tensor.
        axes: Along which of its axes pairs differ.

    Returns:
        The mean, from 0 to 1.
    """
    level = state.mean**2
    variance = state.second_moment - level
    if variance <= 1e-12 * state.second_moment:
        return 1.0
    picked, count = state.kappa, 1.0
    for axis in range(picked.ndim):
        if axis not in axes:
            picked = picked.take([1], axis)
    c = picked - level
    square = np.maximum((2.0 * c**2 + 4.0 * level * c) / (2.0 * variance**2 + 4.0 * level * variance), 0.0)
    for axis in axes:
        n = state.sizes[axis]
        square = (square.take([1], axis) + (n - 1) * square.take([0], axis)) / n
        count *= n
    return min(max(float(square.reshape(-1)[0]), _neighbours(state) / count), 1.0)


def _neighbours(state: State) -> float:
    """How many positions of an image count as one: the sum of squared correlations over all that lie near."""
    if not state.near or state.ndim != 4:
        return 1.0
    reach = 2 ** (len(state.near) - 1)
    steps = np.arange(-reach, reach + 1)
    apart = np.abs(steps[:, None]) + np.abs(steps)
    lags = [0.0, *(2.0**k for k in range(len(state.near)))]
    square = np.interp(apart, lags, [1.0, *state.near], right=0.0) ** 2
    return float(min(square.sum(), size(state.dims[2]) * size(state.dims[3])))


def product(a: State, first: str, b: State, second: str, out: str) -> State:
    """A contraction by letters of dimensions, with the scatter of its finite number of terms.

    Args:
        a: One factor.
        first: A letter for each of its dimensions.
        b: The other.
        second: Its letters.
        out: Those of the product.

    Returns:
        The state of the product.
    """
    for letter in first:
        if letter in second:
            a, b = matched(a, first.index(letter), b, second.index(letter))
    names, others = named(a, list(first)), named(b, list(second))
    where = dict(zip(second, others, strict=True)) | dict(zip(first, names, strict=True))
    labels: Labels = [where[letter] for letter in out]
    state = contract(a, names, b, others, labels)
    summed = [k for k, letter in enumerate(first) if letter not in out]
    rows = [k for k, letter in enumerate(first) if letter in out]
    terms = size([n for k in summed for n in a.dims[k]])
    return grown(replace(state, spread=GAUSSIAN, scatter=state.scatter + noise(a, terms, a.axes(*rows))), a, terms)


def grown(result: State, state: State, terms: float) -> State:
    """The result of a contraction of `state`, whose samples are more alike by the chance of so few terms."""
    more = state.spread / GAUSSIAN / max(terms, 1.0)
    return replace(result, alike=min(state.alike + more, 1.0))


def _multiply(call: Call) -> State:
    first, second, out = NAMES[call.name]
    a, b = call.args[:2]
    return _signal_first(call, a, first, b, second, out)


def known_share(state: State, weight: State, summed: Sequence[int], result: float) -> float:
    """Share of a product's second moment that the sums over known weights have for certain, by the mean of what they weigh.

    Inputs of mean m give each unit m times its sum of weights, the second moment of which over the units was measured.

    Args:
        state: What is weighed.
        weight: The weights.
        summed: Axes of the weights that are summed over.
        result: The second moment of the product.

    Returns:
        The share, from 0 to 1.
    """
    n = size([weight.sizes[a] for a in summed])
    sums = float(fold(weight.kappa, weight.sizes, summed).reshape(-1)[-1]) * float(n) ** 2
    return min(max(state.mean**2 * sums / result, 0.0), 1.0) if result > 0 else 0.0


def _signal_first(call: Call, a: Value, first: str, b: Value, second: str, out: str) -> State:
    if a.known:
        a, first, b, second = b, second, a, first
    state, other = call.state(a), call.state(b)
    result = product(state, first, other, second, out)
    if not b.known:
        return result
    summed = other.axes(*(k for k, letter in enumerate(second) if letter not in out))
    share = known_share(state, other, summed, result.second_moment)
    # of (m s + v)^2 with s known, the variance is 4 m^2 s^2 v^2 + 2 v^4
    result = replace(result, spread=result.spread * (1.0 - share**2))
    return replace(result, roots=frozenset({b.id})) if state.roots else result


def _multiply_back(call: Call, gradients: Sequence[State | None]) -> Gradients:
    return _back(call, call.args[0], call.args[1], NAMES[call.name], gradients[0])


def _back(call: Call, a: Value, b: Value, names: tuple[str, str, str], gradient: State | None) -> Gradients:
    """Adjoint: the gradient contracted with the other factor (g_in = n_out E W^2 g_out, Schoenholz et al. 2017)."""
    found: dict[int, State] = {}
    if gradient is None:
        return found
    first, second, out = names
    if not a.known:
        found[a.id] = product(gradient, out, call.state(b), second, first)
    if not b.known:
        other = product(gradient, out, call.state(a), first, second)
        found[b.id] = other if b.id not in found else added(found[b.id], other)
    return found


def _added(call: Call, names: tuple[str, str, str]) -> State:
    bias, a, b = call.args[:3]
    first, second, out = names
    result = _signal_first(call, a, first, b, second, out).scaled(float(call.kwargs.get("alpha", 1)))
    beta = float(call.kwargs.get("beta", 1))
    return rooted(added(result, call.state(bias).scaled(beta)), bias) if beta else result


def _added_back(call: Call, names: tuple[str, str, str], gradients: Sequence[State | None]) -> Gradients:
    bias, a, b = call.args[:3]
    gradient = gradients[0]
    if gradient is None:
        return {}
    found = dict(_back(call, a, b, names, gradient.scaled(float(call.kwargs.get("alpha", 1)))))
    if not bias.known:
        found[bias.id] = summed_to(gradient.scaled(float(call.kwargs.get("beta", 1))), bias.shape)
    return found


for _name in NAMES:
    register_rule(_name, forward=_multiply, backward=_multiply_back)


def _register_added(name: str, names: tuple[str, str, str]) -> None:
    register_rule(
        name,
        forward=lambda call: _added(call, names),
        backward=lambda call, gradients: _added_back(call, names, gradients),
    )


for _name, _of in (("aten.addmm", "aten.mm"), ("aten.baddbmm", "aten.bmm"), ("aten.addmv", "aten.mv")):
    _register_added(_name, NAMES[_of])

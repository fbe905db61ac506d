"""Entries that are a function of one Gaussian entry each: the function on quadrature nodes.

A chain of pointwise operations stays such a function, also where branches of it meet (x * sigmoid(x)), so that its
moments are exact for a Gaussian argument and no activation needs a name.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trimtab.prediction.state import Array, State

REACH = 9.0  # standard deviations; P(|z| > 9) = 2e-19
PANELS = np.linspace(-REACH, REACH, 37)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)
TERMS = 24
"""Hermite coefficients of a function that its correlation map is made of; the rest is taken as one more term."""


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A function of u ~ N(mean, variance) at the nodes of a quadrature.

    Attributes:
        base: Which tensor holds u.
        start: The state of u.
        z: Nodes, in standard deviations.
        weights: Of the nodes; they sum to one.
        values: The function.
        slopes: Its derivative by u.
    """

    base: int
    start: State
    z: Array
    weights: Array
    values: Array
    slopes: Array


def field_of(base: int, start: State) -> Field:
    """The identity: entries of a tensor, taken as Gaussian, as a function of themselves."""
    variance = max(start.second_moment - start.mean**2, 0.0)
    sigma = variance**0.5
    if start.law is not None and sigma > 0:
        points, masses = start.law
        whole = replace(start, field=None)
        return Field(base, whole, (points - start.mean) / sigma, masses, points, np.ones_like(points))
    # panels are cut where u crosses 0, +-1 and +-3, the kinks of the functions in use
    cuts = tuple(round((k - start.mean) / sigma, 12) for k in (-3.0, -1.0, 0.0, 1.0, 3.0)) if sigma > 0 else ()
    z, weights = _grid(tuple(c for c in cuts if abs(c) < REACH))
    values = start.mean + sigma * z
    return Field(base, replace(start, field=None), z, weights, values, np.ones_like(z))


@functools.lru_cache(maxsize=64)
def _grid(cuts: tuple[float, ...]) -> tuple[Array, Array]:
    edges = np.unique([*PANELS, *cuts])
    half = 0.5 * np.diff(edges)[:, None]
    z = (edges[:-1, None] + half * (1.0 + NODES)).ravel()
    weights = (half * WEIGHTS).ravel() * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    return z, weights / weights.sum()


def applied(fields: list[Field | float], function: Callable[..., Tensor]) -> tuple[Field, list[float]]:
    """A pointwise function of fields over one base, with its derivative by autograd.

    Args:
        fields: The arguments: fields of one base, and numbers.
        function: Called with float64 tensors in the place of the fields.

    Returns:
        The field of the result, and the mean squared derivative by each argument (0 for a number).
    """
    with torch.enable_grad():
        arguments = [
            torch.tensor(f.values, dtype=torch.float64, requires_grad=True) if isinstance(f, Field) else f
            for f in fields
        ]
        inputs = [a for a in arguments if isinstance(a, Tensor)]
        out = function(*arguments)
        found = torch.autograd.grad(out.sum(), inputs, allow_unused=True) if out.requires_grad else [None] * len(inputs)
    slopes, partials, k = None, [], 0
    for f in fields:
        if not isinstance(f, Field):
            partials.append(0.0)
            continue
        gradient = found[k]
        partial = np.zeros_like(f.z) if gradient is None else gradient.numpy()
        k += 1
        slopes = partial * f.slopes if slopes is None else slopes + partial * f.slopes
        partials.append(float(f.weights @ np.nan_to_num(partial**2, posinf=0.0)))
    first = next(f for f in fields if isinstance(f, Field))
    assert slopes is not None
    values = out.detach().numpy()
    good = np.isfinite(values) & np.isfinite(slopes)  # rsqrt, log: nodes beyond the edge of the domain are left out
    weights = np.where(good, first.weights, 0.0)
    total = weights.sum()
    return (
        Field(
            first.base,
            first.start,
            first.z,
            weights / total if total > 0 else weights,
            np.where(good, values, 0.0),
            np.where(good, slopes, 0.0),
        ),
        partials,
    )


def state_of(field: Field) -> State:
    """The state of a tensor of such entries (length and correlation maps, Poole et al. 2016, arXiv:1606.05340)."""
    start, w, v = field.start, field.weights, field.values
    mean, q = float(w @ v), float(w @ v**2)
    fourth = float(w @ v**4)
    kappa = correlated(field, v)
    variance = start.second_moment - start.mean**2
    slope = 0.0
    if q > 0 and variance > 0:
        slope = float(w @ (v * field.slopes * (np.sqrt(variance) * field.z))) / q  # d log q'/d log Var u
    linear = float(w @ (v * field.z)) ** 2 / (q - mean**2) if q > mean**2 else 0.0  # chance correlations pass in part
    near: tuple[float, ...] = ()
    if start.near:
        apart, same = _far(start)
        points = np.array([apart + r * (same - apart) for r in start.near])
        mapped = _dual(field, v, points)
        low, high = _dual(field, v, np.array([apart, same]))
        near = tuple((mapped - low) / (high - low)) if high > low else ()
    return State(
        start.dims,
        kappa,
        mean,
        max(fourth / q**2 - 1.0, 0.0) if q > 0 else 0.0,
        slope**2 * start.scatter,
        start.alike * min(linear, 1.0) ** 2,
        near=near,
        measured=start.measured,
        profile=start.profile,
        roots=start.roots,
        field=field,
    )


def passed(field: Field) -> State:
    """The state of the derivative, which a gradient is multiplied with on its way to u."""
    start, w, s = field.start, field.weights, field.slopes
    q = float(w @ s**2)
    turn = float(w @ (s**2 * (field.z**2 - 1.0))) / (2.0 * q) if q > 0 else 0.0  # d log E phi'^2/d log Var u
    return State(
        start.dims,
        correlated(field, s),
        float(w @ s),
        max(float(w @ s**4) / q**2 - 1.0, 0.0) if q > 0 else 0.0,
        turn**2 * start.scatter,
        start.alike,
        measured=start.measured,
    )


def correlated(field: Field, values: Array) -> Array:
    """E[f(u) f(u')] for every pair of entries of the base."""
    return _dual(field, values, field.start.kappa)


def _dual(field: Field, values: Array, kappa: Array) -> Array:
    """The dual of f: sum of a_k^2 rho^k over its Hermite coefficients (Daniely et al. 2016, arXiv:1602.05897)."""
    variance = field.start.second_moment - field.start.mean**2
    q = float(field.weights @ values**2)
    if variance <= 0:
        return np.asarray(np.full(kappa.shape, q))
    rho = np.clip((kappa - field.start.mean**2) / variance, -1.0, 1.0)
    coefficients = _hermite(field.z) @ (field.weights * values)
    power = coefficients**2
    if field.start.law is not None:  # no Gaussian: the first terms give the shape, mean and second moment are exact
        shape = power[1:6].sum()
        if not shape > 0.0:
            return np.asarray(power[0] + (q - power[0]) * (rho >= 1.0))
        power = np.append(power[0], power[1:6] * (q - power[0]) / shape)
        return np.asarray(np.polynomial.polynomial.polyval(rho, power))
    total = np.polynomial.polynomial.polyval(rho, power)
    return np.asarray(total + max(q - power.sum(), 0.0) * np.abs(rho) ** (TERMS * 2))


def _hermite(z: Array) -> Array:
    rows = [np.ones_like(z), z]
    for k in range(1, TERMS - 1):
        rows.append((z * rows[-1] - np.sqrt(k) * rows[-2]) / np.sqrt(k + 1))
    return np.stack(rows)


def _far(state: State) -> tuple[float, float]:
    """Covariance of one channel at two far positions of one sample, and at the same position."""
    return far(state), state.second_moment


def far(state: State) -> float:
    """E[x x'] of one sample and channel at two positions of an image (dimensions 2 and 3)."""
    index = [1] * state.kappa.ndim
    for axis in state.axes(2, 3):
        index[axis] = 0
    return float(state.kappa[tuple(index)])

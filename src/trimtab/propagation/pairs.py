"""Expectations over two correlated Gaussian pre-activations, by quadrature within quadrature."""

from collections.abc import Callable, Sequence

import numpy as np

from trimtab.norms._arguments import shown
from trimtab.propagation._activation import Array
from trimtab.propagation._checks import PropagationError, require_between, require_not_negative, require_places
from trimtab.propagation.gaussian import expectation

REACH = 9.0  # standard deviations; P(|z| > 9) = 2e-19
PANELS = np.linspace(-REACH, REACH, 19)
RINGS = np.array([s * 4.0**k for s in (-1.0, 1.0) for k in range(-2, 9)])
STEPS = np.array([-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0])  # around a kink, in widths of what blurs it
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
BLOCK = 2**20  # points of the plane that are held at a time

Pair = Callable[[Array, Array], Array]


def pair_expectation(f: Pair, q_a: float, q_b: float, d: float, kinks: Sequence[float] = ()) -> float:
    """E f(u, v) for zero-mean Gaussian u, v of variances q_a, q_b and correlation c = 1 - d (Poole et al. 2016, eq. 5).

    v = c sqrt(q_b/q_a) u + sqrt(q_b d (2 - d)) z: the inner integral over z is cut at the kinks of f in v, the outer
    one at those in u and around the places where the inner one bends; both are finer around 0. The distance d from full
    correlation is the argument because 1 - c has lost its digits where c is near 1.

    Args:
        f: The function of u and v, over arrays of one shape.
        q_a: Variance of u.
        q_b: Variance of v.
        d: 1 - c, between 0 and 2.
        kinks: Where f or one of its derivatives jumps, in u or in v.

    Returns:
        The expectation, to about 1e-12 of E |f|.

    Raises:
        PropagationError: If a variance is negative or not finite, or d is outside [0, 2].
    """
    require_not_negative("the variance q_a", q_a)
    require_not_negative("the variance q_b", q_b)
    if not callable(f):
        raise PropagationError(f"f is {shown(f)}; a function of two arrays is needed")
    require_places("kinks", kinks)
    require_between("d = 1 - c", d, 0.0, 2.0)
    if q_a == 0.0 or q_b == 0.0 or d in {0.0, 2.0}:
        return _on_a_line(f, q_a, q_b, 1.0 - d, kinks)
    scale, slope, width = np.sqrt(q_a), (1.0 - d) * np.sqrt(q_b / q_a), np.sqrt(q_b * d * (2.0 - d))
    features = np.array([0.0, *kinks])
    blurred = [k + width * STEPS / max(abs(slope), 1e-6) for k in (*kinks, *(k / slope for k in kinks if slope))]
    cuts = np.concatenate([(features[:, None] + np.append(RINGS, 0.0)).ravel(), *blurred])
    edges = np.unique(np.concatenate([PANELS, np.clip(cuts / scale, -REACH, REACH)]))
    z, weight = _nodes(edges)
    u = scale * z
    around = np.unique((features[:, None] + np.append(RINGS, 0.0)).ravel())
    total, rows = 0.0, max(1, BLOCK // ((len(PANELS) + len(around)) * len(NODES)))
    for start in range(0, len(u), rows):
        some = slice(start, start + rows)
        total += float(np.sum(weight[some] * _inner(f, u[some], slope, width, around)))
    return total


def _inner(f: Pair, u: Array, slope: float, width: float, around: Array) -> Array:
    """Return E over z of f(u, slope u + width z) for every u."""
    middle = (slope * u)[:, None]
    cuts = np.clip((around - middle) / width, -REACH, REACH)
    edges = np.sort(np.concatenate([np.broadcast_to(PANELS, (len(u), len(PANELS))), cuts], axis=1), axis=1)
    edges = edges[:, np.any(np.diff(edges, axis=1, prepend=-np.inf) > 0.0, axis=0)]
    z, weight = _nodes(edges)
    v = middle + width * z
    return np.asarray(np.sum(weight * f(np.broadcast_to(u[:, None], v.shape), v), axis=1))


def _nodes(edges: Array) -> tuple[Array, Array]:
    """Return the Gauss-Legendre nodes between edges along the last axis, and their Gaussian weights."""
    half = 0.5 * np.diff(edges)[..., None]
    z = edges[..., :-1, None] + half * (1.0 + NODES)
    weight = half * WEIGHTS * np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    return z.reshape(*edges.shape[:-1], -1), weight.reshape(*edges.shape[:-1], -1)


def _on_a_line(f: Pair, q_a: float, q_b: float, c: float, kinks: Sequence[float]) -> float:
    """Return E f where u and v are multiples of one Gaussian, or one of them is 0."""
    beside = np.array([-1.0, 1.0]) * np.finfo(np.float64).tiny  # the two sides of 0, where phi may have a kink
    if q_a == 0.0 and q_b == 0.0:
        return float(np.mean(f(beside, beside if c >= 0.0 else -beside)))
    if q_a == 0.0:
        return float(np.mean([expectation(_first_held(f, u), q_b, 0.0, kinks) for u in beside]))
    if q_b == 0.0:
        return float(np.mean([expectation(_first_held(lambda v, u: f(u, v), v), q_a, 0.0, kinks) for v in beside]))
    ratio = np.sign(c) * np.sqrt(q_b / q_a)
    turns = sorted({*kinks, *(k / ratio for k in kinks)})
    return expectation(lambda u: f(u, ratio * u), q_a, 0.0, turns)


def _first_held(f: Pair, held: float) -> Callable[[Array], Array]:
    return lambda w: f(np.full_like(w, held), w)

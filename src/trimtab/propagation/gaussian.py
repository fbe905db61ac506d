"""Expectations over a Gaussian pre-activation, by quadrature split where the function is not smooth."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from torch import nn

from trimtab.propagation._activation import Activation, Array
from trimtab.propagation._checks import require_finite, require_not_negative, require_places
from trimtab.propagation.functions import ActivationLike, as_activation

Q = TypeVar("Q", float, Array)

REACH = 12.0  # standard deviations; P(|z| > 12) = 4e-33
PANELS = np.linspace(-REACH, REACH, 49)
RINGS = np.array([s * 4.0**k for s in (-1.0, 1.0) for k in range(-2, 9)])  # panels that grow away from a feature of phi
NODES, WEIGHTS = np.polynomial.legendre.leggauss(32)


def expectation(f: ActivationLike | Callable[[Array], Any], q: Q, mean: float = 0.0, kinks: Sequence[float] = ()) -> Q:
    """E f(mean + sqrt(q) z) for z ~ N(0, 1), the integral of the mean-field theory (Poole et al. 2016, eq. 3).

    Composite Gauss-Legendre quadrature over 12 standard deviations: panels of half a standard deviation, cut at the
    kinks, and finer around 0 and the kinks so that a feature of f of width about 1 is seen at any q. For the
    activations of this package the relative error is below 1e-12 for q up to 1e6 (sin: up to 1e3, it oscillates).

    At q = 0 the value is the limit q -> 0, which at a kink is the mean of the two sides.

    Args:
        f: The function, over NumPy arrays; or an activation: a name, a module, a function of tensors (`as_activation`),
            which brings its kinks along.
        q: Variance of the argument; an array gives an array.
        mean: Mean of the argument.
        kinks: Where f or one of its derivatives jumps.

    Returns:
        The expectation, for every q.

    Raises:
        PropagationError: If q is negative, nan or infinite, or the mean is not finite.
    """
    require_not_negative("the variance q", q, arrays=True)
    require_finite("the mean", mean)
    require_places("kinks", kinks)
    function: Any = f
    if isinstance(f, Activation | str | nn.Module):
        function, kinks = _of_activation(f, kinks)
    variances = np.asarray(q, dtype=np.float64)
    try:
        means = [_integral(function, float(v), mean, kinks) for v in variances.ravel()]
    except (TypeError, AttributeError):  # it takes tensors, or nothing at all, which as_activation says
        function, kinks = _of_activation(f, kinks)
        means = [_integral(function, float(v), mean, kinks) for v in variances.ravel()]
    return np.array(means).reshape(variances.shape) if isinstance(q, np.ndarray) else means[0]


def _of_activation(f: Any, kinks: Sequence[float]) -> tuple[Callable[[Array], Any], Sequence[float]]:
    phi = as_activation(f)
    return phi.value, (*phi.kinks, *kinks)


def _integral(f: Callable[[Array], Any], q: float, mean: float, kinks: Sequence[float]) -> float:
    if q == 0.0:
        return float(np.mean(f(np.nextafter(mean, [-np.inf, np.inf]))))
    scale = np.sqrt(q)
    features = np.array([0.0, *kinks])
    cuts = ((features[:, None] + np.append(RINGS, 0.0)).ravel() - mean) / scale
    edges = np.unique(np.concatenate([PANELS, np.clip(cuts, -REACH, REACH)]))
    half = 0.5 * np.diff(edges)[:, None]
    z = edges[:-1, None] + half * (1.0 + NODES)
    density = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    return float(np.sum(half * WEIGHTS * density * f(mean + scale * z)))

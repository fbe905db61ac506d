"""How many units a layer has on the flat parts of its activation, or off altogether."""

import itertools

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from trimtab.propagation._activation import Array
from trimtab.propagation._checks import require_between, require_finite, require_positive, require_whole
from trimtab.propagation.functions import ActivationLike, as_activation

REACH = 9.0  # standard deviations; P(|z| > 9) = 2e-19
EVEN = np.linspace(-REACH, REACH, 4001)
AROUND_ZERO = np.sinh(np.linspace(-12.0, 12.0, 4001))  # in units of u: dense where phi bends


def saturated_share(activation: ActivationLike, q: float, threshold: float = 0.05, mean: float = 0.0) -> float:
    """P(|phi'(u)| < threshold max |phi'|), u ~ N(mean, q): the share of units that pass next to no gradient.

    The flat parts are where Glorot & Bengio 2010 (AISTATS, sec. 3) call a unit saturated. At q = 1 and threshold 0.05:
    tanh 2.9 %, sigmoid 1.3e-5, ReLU one half.

    Args:
        activation: The nonlinearity phi: a name, a module, a function (`as_activation`).
        q: Variance of the pre-activation.
        threshold: Which part of the greatest derivative still counts as flat, above 0 and up to 1.
        mean: Mean of the pre-activation.

    Returns:
        The share.

    Raises:
        PropagationError: If q is not positive or the threshold is outside (0, 1].
    """
    phi = as_activation(activation)
    require_positive("the variance q", q)
    require_finite("the mean", mean)
    require_positive("the threshold", threshold)
    require_between("the threshold", threshold, 0.0, 1.0)
    scale, limit = float(np.sqrt(q)), threshold * phi.derivative_max

    def excess(z: float | Array) -> Array:
        return np.abs(phi.derivative(np.asarray(mean + scale * z))) - limit

    grid = np.unique(np.concatenate([EVEN, np.clip((AROUND_ZERO - mean) / scale, -REACH, REACH)]))
    above = excess(grid) >= 0.0
    changes = np.flatnonzero(above[1:] != above[:-1])
    turns = [brentq(lambda z: float(excess(z)), grid[k], grid[k + 1], xtol=1e-14) for k in changes]
    share = 0.0
    for low, high in itertools.pairwise([-REACH - 1.0, *turns, REACH + 1.0]):
        if excess(0.5 * (low + high)) < 0.0:
            share += float(ndtr(high) - ndtr(low))
    return share


def silent_share(q: float, mean: float, alike: float, samples: int) -> float:
    """E Phi(-u/s)^N over units u ~ N(mean, q alike - mean^2), s^2 = q (1 - alike): the share of rectifiers off on all of N samples.

    A unit's pre-activation is what all samples have in common, u, and what is each sample's own, of variance s^2, both Gaussian over
    the draw of the weights. For centred inputs (alike = 0) it is 2^-N; where samples have grown alike it is one half.

    Args:
        q: Second moment of the pre-activations.
        mean: Their mean over units and samples.
        alike: Correlation of two samples, E z_a z_b / q, up to 1.
        samples: How many independent samples there are, N.

    Returns:
        The share.

    Raises:
        PropagationError: If q is not positive, `alike` is no correlation or `samples` is no whole number from 1 up.
    """
    require_positive("the second moment q", q)
    require_finite("the mean", mean)
    require_between("the correlation alike", alike, -1.0, 1.0)
    require_whole("samples", samples)
    between, within = max(q * alike - mean**2, 0.0), max(q * (1.0 - alike), 0.0)
    z = np.linspace(-REACH, REACH, 4001)
    weight = np.exp(-0.5 * z**2)
    common = mean + np.sqrt(between) * z
    with np.errstate(divide="ignore"):
        off = log_ndtr(-common / np.sqrt(within)) if within > 0 else np.where(common < 0, 0.0, -np.inf)
    return float((weight * np.exp(samples * off)).sum() / weight.sum())

"""What layers do to the likeness of two inputs.

Conventions of Poole et al. 2016 (arXiv:1606.05340, eq. 5) and Schoenholz et al. 2017 (arXiv:1611.01232): two inputs give
pre-activations of one second moment q and correlation c = 1 - d. The maps come in d too, because near c = 1, where nets
live that forget, c has lost the digits that say how fast.
"""

import math
from dataclasses import dataclass

from scipy.optimize import brentq

from trimtab.propagation._activation import Activation
from trimtab.propagation._checks import PropagationError, require_between, require_not_negative, require_positive
from trimtab.propagation.functions import ActivationLike, as_activation
from trimtab.propagation.gains import chi, length_map
from trimtab.propagation.pairs import pair_expectation

NEAREST = 1e-14  # a fixed point nearer to c = 1 cannot be told from it


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Where a map returns what it was given.

    Attributes:
        value: The fixed point.
        slope: Slope of the map there.
        stable: Whether small deviations stay small: the slope is below 1 in size, or 1 and deviations do not grow.
    """

    value: float
    slope: float
    stable: bool


def covariance(activation: ActivationLike, q_a: float, q_b: float, c: float) -> float:
    """E phi(u) phi(v) for zero-mean Gaussian u, v of variances q_a, q_b and correlation c (Poole et al. 2016, eq. 5).

    Closed for the ReLU family (Cho & Saul 2009), erf (Williams 1997) and sin; by quadrature otherwise.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        q_a: Variance of u.
        q_b: Variance of v.
        c: Correlation of u and v.

    Returns:
        The expectation.
    """
    phi = as_activation(activation)
    _require_pair(q_a, q_b, c)
    if phi.closed is not None:
        return float(phi.closed.covariance(q_a, q_b, c))
    return pair_expectation(lambda u, v: phi.value(u) * phi.value(v), q_a, q_b, 1.0 - c, phi.kinks)


def slope_covariance(activation: ActivationLike, q_a: float, q_b: float, c: float) -> float:
    """E phi'(u) phi'(v) for zero-mean Gaussian u, v of variances q_a, q_b and correlation c.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        q_a: Variance of u.
        q_b: Variance of v.
        c: Correlation of u and v.

    Returns:
        The expectation: what two gradients share after the nonlinearity (Schoenholz et al. 2017, sec. 4).
    """
    phi = as_activation(activation)
    _require_pair(q_a, q_b, c)
    if phi.closed is not None:
        return float(phi.closed.slope_covariance(q_a, q_b, c))
    return pair_expectation(lambda u, v: phi.derivative(u) * phi.derivative(v), q_a, q_b, 1.0 - c, phi.kinks)


def correlation_map(activation: ActivationLike, c: float, q: float, weight_var: float, bias_var: float = 0.0) -> float:
    """C' = (weight_var E phi(u) phi(v) + bias_var)/q', the correlation one layer on (Poole et al. 2016, eq. 5).

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        c: Correlation of the pre-activations of two inputs.
        q: Their second moment, not necessarily a fixed point.
        weight_var: n_in Var W.
        bias_var: Var b.

    Returns:
        The correlation, within [-1, 1].
    """
    _require_correlation(c)
    return 1.0 - decorrelation_map(activation, 1.0 - c, q, weight_var, bias_var)


def decorrelation_map(
    activation: ActivationLike, d: float, q: float, weight_var: float, bias_var: float = 0.0
) -> float:
    """D' = weight_var E (phi(u) - phi(v))^2/(2 q'): the correlation map for d = 1 - c, with all its digits near c = 1.

    E (phi(u) - phi(v))^2/2 = E phi^2 - E phi(u) phi(v) (Poole et al. 2016, eq. 5), without the difference. For small d
    d' = chi_1 d where phi is smooth.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        d: 1 - c of the pre-activations of two inputs, from 0 to 2.
        q: Their second moment.
        weight_var: n_in Var W.
        bias_var: Var b.

    Returns:
        1 - c one layer on.

    Raises:
        PropagationError: If d is outside [0, 2], or no signal is left (q' = 0).
    """
    phi = as_activation(activation)
    require_between("d = 1 - c", d, 0.0, 2.0)
    require_not_negative("weight_var", weight_var)
    require_not_negative("bias_var", bias_var)
    after = length_map(phi, q, weight_var, bias_var)
    if not after > 0.0:
        raise PropagationError(f"no signal is left after the layer (q' = {after}): a correlation needs q' > 0")
    return min(weight_var * _spread(phi, q, d) / after, 2.0)


def chi_c(activation: ActivationLike, c: float, q: float, weight_var: float) -> float:
    """weight_var E phi'(u) phi'(v), the slope of the correlation map at c where q is a fixed point; chi_1 at c = 1.

    Schoenholz et al. 2017 (arXiv:1611.01232), eq. 5 and sec. 3.2.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        c: Correlation of the pre-activations of two inputs.
        q: Their second moment.
        weight_var: n_in Var W.

    Returns:
        The slope.
    """
    require_not_negative("weight_var", weight_var)
    return weight_var * slope_covariance(activation, q, q, c)


def correlation_fixed_points(
    activation: ActivationLike, q: float, weight_var: float, bias_var: float = 0.0
) -> tuple[FixedPoint, ...]:
    """Fixed points of the correlation map on [0, 1] at a fixed point q of the length map, ascending.

    c = 1 is always one. The map is a power series with no negative coefficient, convex on [0, 1]: another one, c* < 1,
    exists exactly where the slope chi_1 at c = 1 is above 1 (chaos), and it is stable there (Poole et al. 2016, sec. 2.2).
    Where every c is one (linear nets that keep q), 1 stands for all.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        q: A fixed point of the length map.
        weight_var: n_in Var W.
        bias_var: Var b.

    Returns:
        One or two fixed points; exactly one is stable.

    Raises:
        PropagationError: If q is not positive.
    """
    phi = as_activation(activation)
    require_positive("q", q)
    require_not_negative("bias_var", bias_var)

    def excess(log_d: float) -> float:
        d = min(math.exp(log_d), 1.0)
        return decorrelation_map(phi, d, q, weight_var, bias_var) / d - 1.0

    slope = chi(phi, q, weight_var)
    one = FixedPoint(1.0, slope, True)
    if slope <= 1.0 + 1e-13 or excess(math.log(NEAREST)) <= 0.0:
        return (one,)
    d = 1.0 if excess(0.0) >= 0.0 else math.exp(brentq(excess, math.log(NEAREST), 0.0, xtol=1e-15))
    c = 1.0 - d
    return FixedPoint(c, chi_c(phi, c, q, weight_var), True), FixedPoint(1.0, slope, False)


def _spread(phi: Activation, q: float, d: float) -> float:
    if phi.closed is not None:
        return float(phi.closed.spread(q, d))
    return pair_expectation(lambda u, v: 0.5 * (phi.value(u) - phi.value(v)) ** 2, q, q, d, phi.kinks)


def _require_correlation(c: float) -> None:
    require_between("the correlation c", c, -1.0, 1.0)


def _require_pair(q_a: float, q_b: float, c: float) -> None:
    require_not_negative("the variance q_a", q_a)
    require_not_negative("the variance q_b", q_b)
    _require_correlation(c)

"""Fixed points of the length map, the edge of chaos, and how deep a signal reaches.

Poole et al. 2016 (arXiv:1606.05340), Schoenholz et al. 2017 (arXiv:1611.01232); for smooth activations Hayou et al. 2019
(arXiv:1902.06853). A fixed point says where a net ends up, not where it is: GELU and SiLU have unstable ones that a signal
runs away from. `trajectory` follows the signal from where it starts.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from trimtab.propagation._activation import Activation, Array
from trimtab.propagation._checks import PropagationError, require_finite, require_not_negative, require_positive
from trimtab.propagation._roots import ROUNDING, log_roots
from trimtab.propagation.correlation import FixedPoint, correlation_fixed_points
from trimtab.propagation.functions import ActivationLike, as_activation
from trimtab.propagation.gains import chi, length_map_slope, mean_derivative_squared, second_moment

GRID = np.geomspace(1e-10, 1e8, 217)  # twelve a decade


@dataclass(frozen=True, slots=True)
class CriticalPoint:
    """A point on the edge of chaos, where chi_1 = 1 at a fixed point of the length map.

    Attributes:
        weight_var: n_in Var W.
        q: The fixed point; 0 where the signal dies more slowly than exponentially.
        stable: Whether small deviations of q stay small. A signal leaves an unstable point.
        any_q: Whether every q is a fixed point, as for homogeneous activations without bias; q = 1 stands for them.
    """

    weight_var: float
    q: float
    stable: bool
    any_q: bool = False


@dataclass(frozen=True, slots=True)
class DepthScales:
    """How many layers a deviation survives at a fixed point: it shrinks as exp(-depth/xi).

    Attributes:
        q: Fixed point q* of the length map.
        c: Stable fixed point c* of the correlation map.
        chi_1: Gain of a squared gradient per layer; above 1 in chaos.
        chi_q: Slope of the length map at q*.
        chi_c: Slope of the correlation map at c*.
        xi_q: -1/log chi_q, inf where deviations do not shrink.
        xi_c: -1/log chi_c, inf on the edge of chaos.
    """

    q: float
    c: float
    chi_1: float
    chi_q: float
    chi_c: float
    xi_q: float
    xi_c: float


def length_fixed_points(activation: ActivationLike, weight_var: float, bias_var: float = 0.0) -> tuple[FixedPoint, ...]:
    """Fixed points q = weight_var E phi(sqrt(q) z)^2 + bias_var of the length map, ascending (Poole et al. 2016, eq. 3).

    0 is one where bias_var = 0 and phi(0) = 0. Positive ones are searched for from 1e-10 to 1e8. Where every q is one
    (homogeneous activations at chi_1 = 1 without bias) 1 stands for all, with slope 1.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        weight_var: n_in Var W.
        bias_var: Var b.

    Returns:
        The fixed points with their slopes chi_q; none where q grows without bound from every start.
    """
    phi = as_activation(activation)
    require_not_negative("weight_var", weight_var)
    require_not_negative("bias_var", bias_var)

    def excess(q: float) -> float:
        return (weight_var * second_moment(phi, q) + bias_var) / q - 1.0

    values = (weight_var * _tables(phi)[0] + bias_var) / GRID - 1.0
    if np.all(np.abs(values) < ROUNDING):
        return (FixedPoint(1.0, 1.0, True),)
    out = []
    for q in log_roots(excess, GRID, values):
        slope = length_map_slope(phi, q, weight_var, bias_var)
        out.append(FixedPoint(q, slope, abs(slope) < 1.0))
    if bias_var == 0.0 and _vanishes_at_zero(phi):
        slope = weight_var * mean_derivative_squared(phi, 0.0)
        signs = np.sign(values[np.abs(values) > ROUNDING])
        marginal = abs(slope - 1.0) < ROUNDING and (len(signs) == 0 or signs[0] < 0)
        out.insert(0, FixedPoint(0.0, slope, slope < 1.0 - ROUNDING or bool(marginal)))
    return tuple(out)


def length_limit(activation: ActivationLike, q: float, weight_var: float, bias_var: float = 0.0) -> float:
    """Where the length map leads from q: the next fixed point on the side to which it moves (Poole et al. 2016, sec. 2.1).

    The map grows with q for every activation whose size grows away from 0, so that it passes no fixed point.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        q: Second moment of the pre-activations at the start.
        weight_var: n_in Var W.
        bias_var: Var b.

    Returns:
        The limit; 0 where the signal dies, inf where it grows without bound.
    """
    phi = as_activation(activation)
    require_not_negative("q", q)
    points = [point.value for point in length_fixed_points(phi, weight_var, bias_var)]
    after = weight_var * second_moment(phi, q) + bias_var
    if abs(after - q) <= ROUNDING * q:
        return q
    if after > q:
        return min((point for point in points if point > q), default=math.inf)
    return max((point for point in points if point < q), default=0.0)


def critical_points(activation: ActivationLike, bias_var: float = 0.0) -> tuple[CriticalPoint, ...]:
    """All points of the edge of chaos at one bias variance, by ascending q.

    chi_1 = 1 gives weight_var = 1/E phi'^2, and the fixed point then needs bias_var = q - E phi^2/E phi'^2: the roots q of
    it are searched for from 1e-10 to 1e8 (Schoenholz et al. 2017; Hayou et al. 2019, sec. 3). At bias_var = 0 with
    phi(0) = 0, q = 0 and weight_var = 1/phi'(0)^2 is one.

    Args:
        activation: The nonlinearity phi, which must not jump: a name, a module, a function.
        bias_var: Var b.

    Returns:
        The points, unstable ones among them; none where there is no edge, as for softplus.

    Raises:
        PropagationError: If the bias variance is negative or not finite, or phi jumps.
    """
    phi = as_activation(activation)
    require_not_negative("bias_var", bias_var)
    _require_continuous(phi)
    moments, slopes = _tables(phi)
    passing = slopes > 0.0
    grid = GRID[passing]
    values = 1.0 - (moments[passing] / slopes[passing] + bias_var) / grid

    def excess(q: float) -> float:
        return 1.0 - (second_moment(phi, q) / mean_derivative_squared(phi, q) + bias_var) / q

    if len(values) and np.all(np.abs(values) < ROUNDING):
        return (CriticalPoint(1.0 / mean_derivative_squared(phi, 1.0), 1.0, True, any_q=True),)
    out = []
    for q in log_roots(excess, grid, values):
        weight_var = 1.0 / mean_derivative_squared(phi, q)
        out.append(CriticalPoint(weight_var, q, abs(length_map_slope(phi, q, weight_var, bias_var)) < 1.0))
    start = mean_derivative_squared(phi, 0.0)
    if bias_var == 0.0 and _vanishes_at_zero(phi) and start > 0.0:
        first = length_fixed_points(phi, 1.0 / start)[0]
        out.insert(0, CriticalPoint(1.0 / start, 0.0, first.stable))
    return tuple(out)


def edge_of_chaos(activation: ActivationLike, bias_var: float = 0.0) -> CriticalPoint | None:
    """The critical initialization at one bias variance: weights at which gradients neither vanish nor explode.

    The stable point of the smallest q; where none is stable, an unstable one, which says so (GELU, SiLU). See
    `critical_points`. Examples at bias_var = 0.05: tanh 1.7610, the published 1.76 (Schoenholz et al. 2017).

    Args:
        activation: The nonlinearity phi, which must not jump: a name, a module, a function.
        bias_var: Var b.

    Returns:
        The point, or None where there is no edge at this bias variance (softplus at any; ReLU with a bias, whose q grows
        by bias_var per layer at weight_var 2).
    """
    points = critical_points(activation, bias_var)
    return next((point for point in points if point.stable), points[0] if points else None)


def depth_scales(
    activation: ActivationLike, weight_var: float, bias_var: float = 0.0, q: float | None = None
) -> DepthScales:
    """Depth scales xi_q and xi_c at a fixed point (Schoenholz et al. 2017, eqs. 7 and 9).

    Nets train up to about 6 xi_c layers (Schoenholz et al. 2017, sec. 5).

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        weight_var: n_in Var W.
        bias_var: Var b.
        q: The fixed point q*; None takes the only stable positive one.

    Returns:
        The scales with the fixed points and slopes that they come from.

    Raises:
        PropagationError: If there is no positive stable fixed point, more than one, or q is none.
    """
    phi = as_activation(activation)
    if q is None:
        stable = [point for point in length_fixed_points(phi, weight_var, bias_var) if point.stable and point.value > 0]
        if len(stable) != 1:
            raise PropagationError(
                f"{phi.name} has {len(stable)} stable fixed points q* > 0 at weight_var = {weight_var}, bias_var = "
                f"{bias_var}; name one as q, or follow the signal by trajectory()"
            )
        q = stable[0].value
    require_positive("q", q)
    off = weight_var * second_moment(phi, q) + bias_var - q
    if abs(off) > 1e-6 * q:
        raise PropagationError(f"q = {q} is no fixed point: the length map gives {q + off}; see length_fixed_points")
    chi_q = length_map_slope(phi, q, weight_var, bias_var)
    c = next(point for point in correlation_fixed_points(phi, q, weight_var, bias_var) if point.stable)
    return DepthScales(q, c.value, chi(phi, q, weight_var), chi_q, c.slope, depth_scale(chi_q), depth_scale(c.slope))


def depth_scale(slope: float) -> float:
    """Xi = -1/log |slope|: over how many layers a deviation falls by e (Schoenholz et al. 2017, eq. 7).

    Args:
        slope: Slope of a map at its fixed point.

    Returns:
        The depth in layers; inf from a slope of 1 up (to rounding), 0 at slope 0.
    """
    require_finite("the slope", slope)
    size = abs(slope)
    if size >= 1.0 - ROUNDING:
        return math.inf
    return -1.0 / math.log(size) if size > 0.0 else 0.0


@functools.lru_cache(maxsize=32)
def _tables(phi: Activation) -> tuple[Array, Array]:
    """Return E phi^2 and E phi'^2 on the grid, where roots are looked for first."""
    return second_moment(phi, GRID), mean_derivative_squared(phi, GRID)


def _vanishes_at_zero(phi: Activation) -> bool:
    near = phi.value(np.array([-1e-8, 0.0, 1e-8]))
    return bool(abs(near[1]) < 1e-15 and np.all(np.abs(near) < 1e-5))


def _require_continuous(phi: Activation) -> None:
    """Refuse a jump: its part of phi' is infinitely high, and so is chi_1."""
    for kink in phi.kinks:
        below, above = phi.value(np.array([kink - 1e-9, kink + 1e-9]))
        if abs(above - below) > 1e-6 * max(1.0, phi.derivative_max):
            raise PropagationError(f"{phi.name} jumps at {kink:g}: its chi_1 is infinite and it has no edge of chaos")

"""Every root of a function of one positive number, from the sign changes on a logarithmic grid."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from trimtab.propagation._activation import Array

ROUNDING = 1e-12  # a relative residual below this is zero


def log_roots(f: Callable[[float], float], grid: Array, values: Array) -> list[float]:
    """Roots of f between the ends of a grid.

    A pair of roots between two grid points is found where f has an extremum there that changes its sign. Where |f| is
    below 1e-12 it counts as zero without a sign: a stretch of zeros is no root.

    Args:
        f: A function of order one, of a positive number.
        grid: Positive numbers, ascending.
        values: f on the grid.

    Returns:
        The roots, ascending.
    """
    x, y = np.log(grid), np.where(np.abs(values) > ROUNDING, values, 0.0)
    bent = [k for k in range(1, len(x) - 1) if y[k] != 0.0 and abs(y[k]) < min(abs(y[k - 1]), abs(y[k + 1]))]
    for k in reversed(bent):
        sign = np.sign(y[k])
        if np.sign(y[k - 1]) == sign == np.sign(y[k + 1]):
            low = minimize_scalar(
                lambda t, s=sign: s * f(float(np.exp(t))), bounds=(x[k - 1], x[k + 1]), method="bounded"
            )
            if low.fun < -ROUNDING:
                x, y = np.insert(x, k + (low.x > x[k]), low.x), np.insert(y, k + (low.x > x[k]), sign * low.fun)
    x, y = x[y != 0.0], y[y != 0.0]
    changes = np.flatnonzero(np.sign(y[1:]) != np.sign(y[:-1]))
    return [float(np.exp(brentq(lambda t: f(float(np.exp(t))), x[k], x[k + 1], xtol=1e-15))) for k in changes]

"""Covariances of two units that are known without an integral."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

SERIES_BELOW = 0.3  # radians; above it the plain difference loses less than two digits
SERIES = (1 / 3, -1 / 30, 1 / 840, -1 / 45360, 1 / 3991680, -1 / 518918400)  # of (sin t - t cos t)/t^3 in t^2


@dataclass(frozen=True)
class ClosedForms:
    """Exact expectations over zero-mean Gaussian u, v of variances q_a, q_b and correlation c; over arrays.

    Attributes:
        covariance: (q_a, q_b, c) -> E phi(u) phi(v).
        slope_covariance: (q_a, q_b, c) -> E phi'(u) phi'(v).
        spread: (q, d) -> E (phi(u) - phi(v))^2/2 at equal variances q and c = 1 - d, exact for small d.
    """

    covariance: Callable[[Any, Any, Any], Any]
    slope_covariance: Callable[[Any, Any, Any], Any]
    spread: Callable[[Any, Any], Any]


def _sine_minus_chord(angle: Any) -> Any:
    """Return sin t - t cos t without its cancellation at small t."""
    near = np.minimum(angle, SERIES_BELOW)
    series = near**3 * np.polynomial.polynomial.polyval(near**2, SERIES)
    return np.where(angle < SERIES_BELOW, series, np.sin(angle) - angle * np.cos(angle))


def rectifier(slope: float) -> ClosedForms:
    """phi(u) = u above 0 and slope u below: arc-cosine kernels of degree 1 and 0 (Cho & Saul 2009, eqs. 3 to 6).

    phi is slope times the identity plus (1 - slope) times the ReLU, whose covariances with t = arccos c are
    sqrt(q_a q_b)(sin t + (pi - t) cos t)/(2 pi), and (pi - t)/(2 pi) for the derivatives.

    Args:
        slope: The slope of the negative side; 0 is ReLU, 1 the identity.

    Returns:
        The expectations.
    """
    rest = 1.0 - slope

    def covariance(q_a: Any, q_b: Any, c: Any) -> Any:
        angle = np.arccos(c)
        relu = (np.sin(angle) + (np.pi - angle) * c) / (2.0 * np.pi)
        return np.sqrt(q_a) * np.sqrt(q_b) * (slope * c + rest**2 * relu)

    def slope_covariance(q_a: Any, q_b: Any, c: Any) -> Any:
        return slope + rest**2 * (np.pi - np.arccos(c)) / (2.0 * np.pi) + 0.0 * (q_a + q_b)

    def spread(q: Any, d: Any) -> Any:
        angle = 2.0 * np.arcsin(np.sqrt(0.5 * d))
        relu = 0.5 * d - _sine_minus_chord(angle) / (2.0 * np.pi)
        return q * (slope * d + rest**2 * relu)

    return ClosedForms(covariance, slope_covariance, spread)


def error_function() -> ClosedForms:
    """phi(u) = erf u: the arcsine kernel (Williams 1997, eq. 11), as an arctangent that is exact for large q.

    E phi(u) phi(v) = 2/pi arcsin(2 C/D), E phi'(u) phi'(v) = 4/(pi sqrt(D^2 - 4 C^2)), C = c sqrt(q_a q_b) and
    D^2 = (1 + 2 q_a)(1 + 2 q_b).

    Returns:
        The expectations.
    """

    def rest(q_a: Any, q_b: Any, c: Any) -> Any:
        return np.sqrt(1.0 + 2.0 * (q_a + q_b) + 4.0 * q_a * q_b * (1.0 - c) * (1.0 + c))

    def covariance(q_a: Any, q_b: Any, c: Any) -> Any:
        return np.arctan2(2.0 * c * np.sqrt(q_a) * np.sqrt(q_b), rest(q_a, q_b, c)) * 2.0 / np.pi

    def slope_covariance(q_a: Any, q_b: Any, c: Any) -> Any:
        return 4.0 / np.pi / rest(q_a, q_b, c)

    def spread(q: Any, d: Any) -> Any:
        """Return the difference of two arcsines A - B, whose sine is (sin^2 A - sin^2 B)/(sin A cos B + cos A sin B)."""
        top, c = 2.0 * q, 1.0 - d
        here, there = np.sqrt(1.0 + 2.0 * top), rest(q, q, c)
        bottom = np.where(c > 0.0, there + c * here, 1.0)  # below c = 0 the plain difference does not cancel
        sine = np.where(c > 0.0, top * d * (2.0 - d) / bottom, top * (there - c * here) / (1.0 + top) ** 2)
        return np.arctan2(sine, (here * there + top**2 * c) / (1.0 + top) ** 2) * 2.0 / np.pi

    return ClosedForms(covariance, slope_covariance, spread)


def sine() -> ClosedForms:
    """phi(u) = sin u: E phi(u) phi(v) = exp(-(q_a + q_b)/2) sinh C with C = c sqrt(q_a q_b), cosh C for the derivatives.

    From the characteristic function of u - v and u + v.

    Returns:
        The expectations.
    """

    def parts(q_a: Any, q_b: Any, c: Any) -> tuple[Any, Any, Any]:
        product = c * np.sqrt(q_a) * np.sqrt(q_b)
        gap = np.abs(product)
        largest = np.exp(-0.5 * (np.sqrt(q_a) - np.sqrt(q_b)) ** 2 - (np.sqrt(q_a) * np.sqrt(q_b) - gap))
        return largest, gap, np.sign(product)  # exp(-mean + |C|), which does not overflow; |C|; sign C

    def covariance(q_a: Any, q_b: Any, c: Any) -> Any:
        largest, gap, sign = parts(q_a, q_b, c)
        return -0.5 * sign * largest * np.expm1(-2.0 * gap)

    def slope_covariance(q_a: Any, q_b: Any, c: Any) -> Any:
        largest, gap, _ = parts(q_a, q_b, c)
        return 0.5 * largest * (1.0 + np.exp(-2.0 * gap))

    def spread(q: Any, d: Any) -> Any:
        return -0.5 * np.expm1(-q * d) * (1.0 + np.exp(-q * (2.0 - d)))

    return ClosedForms(covariance, slope_covariance, spread)

"""Activations with every derivative, written so that no argument overflows."""

import math

import numpy as np
from scipy import special

from trimtab.propagation._activation import Activation, Array
from trimtab.propagation._closed import error_function, sine

ROOT_2_OVER_PI = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715  # Hendrycks & Gimpel 2016, the tanh approximation
TANHSHRINK_SERIES = (
    1 / 3,
    -2 / 15,
    17 / 315,
    -62 / 2835,
    1382 / 155925,
    -21844 / 6081075,
)  # of (u - tanh u)/u^3 in u^2


def _sech2(u: Array) -> Array:
    """Return 1 - tanh(u)^2 without its cancellation: 4 sigmoid(2u) sigmoid(-2u)."""
    return np.asarray(4.0 * special.expit(2.0 * u) * special.expit(-2.0 * u))


def _sigmoid(u: Array) -> Array:
    return np.asarray(special.expit(u))


def _sigmoid_slope(u: Array) -> Array:
    return np.asarray(special.expit(u) * special.expit(-u))


def _softplus(u: Array) -> Array:
    return np.logaddexp(0.0, u)


def tanh() -> Activation:
    """Return phi(u) = tanh u."""
    return Activation("tanh", np.tanh, _sech2, low=-1.0, high=1.0)


def sigmoid() -> Activation:
    """Return phi(u) = 1/(1 + exp(-u))."""
    return Activation("sigmoid", _sigmoid, _sigmoid_slope, low=0.0, high=1.0, derivative_max=0.25)


def erf() -> Activation:
    """Return phi(u) = erf u, for which the moments are closed (Williams 1997)."""
    top = 2.0 / math.sqrt(math.pi)
    return Activation(
        "erf",
        lambda u: np.asarray(special.erf(u)),
        lambda u: top * np.exp(-(u**2)),
        low=-1.0,
        high=1.0,
        derivative_max=top,
        closed=error_function(),
    )


def sin() -> Activation:
    """Return phi(u) = sin u (Sitzmann et al. 2020); a frequency belongs to the variance of u."""
    return Activation("sin", np.sin, np.cos, low=-1.0, high=1.0, closed=sine())


def softplus(beta: float = 1.0) -> Activation:
    """Return phi(u) = log(1 + exp(beta u))/beta, smooth where PyTorch goes over to u (beta u > 20)."""
    return Activation(
        "softplus",
        lambda u: _softplus(beta * u) / beta,
        lambda u: _sigmoid(beta * u),
        low=0.0,
    )


def log_sigmoid() -> Activation:
    """Return phi(u) = log sigmoid u."""
    return Activation("log_sigmoid", lambda u: -_softplus(-u), lambda u: _sigmoid(-u), high=0.0)


def silu() -> Activation:
    """Return phi(u) = u sigmoid(u)."""
    return Activation(
        "silu",
        lambda u: u * _sigmoid(u),
        lambda u: _sigmoid(u) + u * _sigmoid_slope(u),
        low=-0.27846454276107374,
        derivative_max=1.0998393201288669,
    )


def mish() -> Activation:
    """Return phi(u) = u tanh(softplus(u)) (Misra 2019)."""
    return Activation(
        "mish",
        lambda u: u * np.tanh(_softplus(u)),
        lambda u: np.tanh(_softplus(u)) + u * _sech2(_softplus(u)) * _sigmoid(u),
        low=-0.30884341301725114,
        derivative_max=1.088498161251728,
    )


def _tanhshrink(u: Array) -> Array:
    """Return u - tanh u, by its series where the difference would cancel."""
    near = np.clip(u, -0.1, 0.1)
    series = near**3 * np.polynomial.polynomial.polyval(near**2, TANHSHRINK_SERIES)
    return np.where(np.abs(u) < 0.1, series, u - np.tanh(u))


def tanhshrink() -> Activation:
    """Return phi(u) = u - tanh u."""
    return Activation("tanhshrink", _tanhshrink, lambda u: np.tanh(u) ** 2)


def gelu(approximate: str = "none") -> Activation:
    """Return phi(u) = u P(z < u), exact ("none") or by the "tanh" formula (Hendrycks & Gimpel 2016).

    Raises:
        ValueError: If the approximation is neither.
    """
    if approximate == "tanh":
        return _gelu_tanh()
    if approximate != "none":
        raise ValueError(f"gelu has approximate='none' or 'tanh', not {approximate!r}")
    return Activation(
        "gelu",
        lambda u: u * np.asarray(special.ndtr(u)),
        lambda u: np.asarray(special.ndtr(u)) + u * np.exp(-0.5 * u**2) / math.sqrt(2.0 * math.pi),
        low=-0.16997120747990369,
        derivative_max=1.128904145185155,
    )


def _gelu_tanh() -> Activation:
    def inner(u: Array) -> Array:
        return ROOT_2_OVER_PI * (u + GELU_CUBIC * u**3)

    def derivative(u: Array) -> Array:
        slope = ROOT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * u**2)
        return 0.5 * (1.0 + np.tanh(inner(u))) + 0.5 * u * _sech2(inner(u)) * slope

    return Activation(
        "gelu_tanh",
        lambda u: 0.5 * u * (1.0 + np.tanh(inner(u))),
        derivative,
        low=-0.17004075057125406,
        derivative_max=1.1289930686587717,
    )

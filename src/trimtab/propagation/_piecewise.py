"""Activations made of pieces; the derivative at a kink is the one that PyTorch takes."""

import math

import numpy as np

from trimtab.propagation._activation import Activation, Array
from trimtab.propagation._closed import rectifier

SELU_SCALE = 1.0507009873554804934193349852946
SELU_ALPHA = 1.6732632423543772848170429916717


def _inside(u: Array, low: float, high: float) -> Array:
    return ((u > low) & (u < high)).astype(np.float64)


def identity() -> Activation:
    """Return phi(u) = u."""
    return Activation("identity", lambda u: u * 1.0, np.ones_like, closed=rectifier(1.0))


def relu() -> Activation:
    """Return phi(u) = max(0, u)."""
    return Activation(
        "relu",
        lambda u: np.maximum(u, 0.0),
        lambda u: (u > 0).astype(np.float64),
        (0.0,),
        low=0.0,
        closed=rectifier(0.0),
    )


def _leaky(name: str, slope: float) -> Activation:
    return Activation(
        name,
        lambda u: np.where(u > 0, u, slope * u),
        lambda u: np.where(u > 0, 1.0, slope),
        (0.0,),
        low=0.0 if slope <= 0 else -math.inf,
        derivative_max=max(1.0, abs(slope)),
        closed=rectifier(slope),
    )


def leaky_relu(negative_slope: float = 0.01) -> Activation:
    """Return phi(u) = u above 0 and negative_slope * u below."""
    return _leaky("leaky_relu", negative_slope)


def prelu(negative_slope: float = 0.25) -> Activation:
    """Return the leaky ReLU of a learned slope; 0.25 is where PyTorch starts it."""
    return _leaky("prelu", negative_slope)


def _exponential(name: str, alpha: float, scale: float) -> Activation:
    return Activation(
        name,
        lambda u: scale * np.where(u > 0, u, alpha * np.expm1(np.minimum(u, 0.0))),
        lambda u: scale * np.where(u > 0, 1.0, alpha * np.exp(np.minimum(u, 0.0))),
        (0.0,),
        low=min(-scale * alpha, 0.0),
        derivative_max=scale * max(1.0, abs(alpha)),
    )


def elu(alpha: float = 1.0) -> Activation:
    """Return phi(u) = u above 0 and alpha (exp(u) - 1) below (Clevert et al. 2016)."""
    return _exponential("elu", alpha, 1.0)


def selu() -> Activation:
    """Return the scaled ELU whose fixed point is mean 0 and variance 1 (Klambauer et al. 2017)."""
    return _exponential("selu", SELU_ALPHA, SELU_SCALE)


def hard_tanh(min_val: float = -1.0, max_val: float = 1.0) -> Activation:
    """Return phi(u) = u, clipped to [min_val, max_val]."""
    return Activation(
        "hard_tanh",
        lambda u: np.clip(u, min_val, max_val),
        lambda u: _inside(u, min_val, max_val),
        (min_val, max_val),
        low=min_val,
        high=max_val,
    )


def relu6() -> Activation:
    """Return phi(u) = u, clipped to [0, 6]."""
    return Activation(
        "relu6", lambda u: np.clip(u, 0.0, 6.0), lambda u: _inside(u, 0.0, 6.0), (0.0, 6.0), low=0.0, high=6.0
    )


def hard_sigmoid() -> Activation:
    """Return phi(u) = (u + 3)/6, clipped to [0, 1]."""
    return Activation(
        "hard_sigmoid",
        lambda u: np.clip(u / 6.0 + 0.5, 0.0, 1.0),
        lambda u: _inside(u, -3.0, 3.0) / 6.0,
        (-3.0, 3.0),
        low=0.0,
        high=1.0,
        derivative_max=1.0 / 6.0,
    )


def hard_swish() -> Activation:
    """Return phi(u) = u hard_sigmoid(u)."""
    return Activation(
        "hard_swish",
        lambda u: u * np.clip(u / 6.0 + 0.5, 0.0, 1.0),
        lambda u: np.where(u >= 3.0, 1.0, np.where(u <= -3.0, 0.0, u / 3.0 + 0.5)),
        (-3.0, 3.0),
        low=-0.375,
        derivative_max=1.5,
    )


def softshrink(lambd: float = 0.5) -> Activation:
    """Return phi(u) = u moved towards 0 by lambd, 0 where it would cross."""
    return Activation(
        "softshrink",
        lambda u: np.sign(u) * np.maximum(np.abs(u) - lambd, 0.0),
        lambda u: (np.abs(u) > lambd).astype(np.float64),
        (-lambd, lambd),
    )


def hardshrink(lambd: float = 0.5) -> Activation:
    """Return phi(u) = u outside [-lambd, lambd], 0 inside; the jump is no part of the derivative, as in autograd."""
    return Activation(
        "hardshrink",
        lambda u: np.where(np.abs(u) > lambd, u, 0.0),
        lambda u: (np.abs(u) > lambd).astype(np.float64),
        (-lambd, lambd),
    )


def softsign() -> Activation:
    """Return phi(u) = u/(1 + |u|); its second derivative jumps at 0."""
    return Activation(
        "softsign",
        lambda u: u / (1.0 + np.abs(u)),
        lambda u: (1.0 + np.abs(u)) ** -2.0,
        (0.0,),
        low=-1.0,
        high=1.0,
    )

"""How far a net of finite width may stray from the mean-field prediction by chance.

All variances are those of natural logarithms over the draw of independent weights, to first order in 1/width. They do
not shrink with the batch, whose samples share the weights. They are for Gaussian pre-activations; orthogonal weights
scatter less.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trimtab.propagation._activation import Activation, Array
from trimtab.propagation._checks import (
    PropagationError,
    require_finite,
    require_not_negative,
    require_positive,
    require_sequence,
)
from trimtab.propagation.functions import ActivationLike, as_activation
from trimtab.propagation.gains import length_map, length_map_slope, mean_derivative_squared, second_moment
from trimtab.propagation.gaussian import expectation


def forward_log_variance_step(
    activation: ActivationLike, q: float, weight_var: float, bias_var: float, width: float, log_variance: float
) -> float:
    """T' = (d log q'/d log q)^2 T + weight_var^2 Var(phi^2)/(q'^2 width): from the scatter of one layer to the next.

    T is the variance of the log of a layer's expected second moment, given the layers below; what a layer of n units
    shows scatters by T + 2/n. First-order propagation of the length map (Poole et al. 2016, eq. 3) with the sampling
    noise of its mean over `width` units.

    Args:
        activation: The nonlinearity phi: a name, a module, a function (`as_activation`).
        q: Second moment of the layer's pre-activations.
        weight_var: n_in Var W of the next layer.
        bias_var: Var b of the next layer.
        width: How many units the layer has.
        log_variance: T of the layer.

    Returns:
        T of the next layer.
    """
    activation = as_activation(activation)
    _require_layer(q, weight_var, bias_var)
    require_positive("the width", width)
    require_not_negative("the log variance", log_variance)
    slope, noise, _ = _forward(activation, q, weight_var, bias_var)
    return slope**2 * log_variance + noise / width


def forward_log_variance(
    activation: ActivationLike, q: float, weight_var: float, bias_var: float, widths: Sequence[float]
) -> Array:
    """Var log q_hat of every layer's measured second moment, for a stack of equal layers on a fixed input.

    q_hat is the mean square of the pre-activations over a layer's units. Closed cases: linear 2 L/n, He-ReLU
    (5 (L - 1) + 2)/n (Hanin & Nica 2018, arXiv:1812.05994, for the growth 5/n).

    Args:
        activation: The nonlinearity phi: a name, a module, a function (`as_activation`).
        q: Second moment of the first layer's pre-activations.
        weight_var: n_in Var W of the layers.
        bias_var: Var b of the layers.
        widths: Units of each layer.

    Returns:
        One variance for each layer.
    """
    activation = as_activation(activation)
    _require_layer(q, weight_var, bias_var)
    total, out = 0.0, []
    for width in require_sequence("widths", widths, "widths"):
        require_positive("the width", width)
        out.append(total + 2.0 / width)
        slope, noise, q = _forward(activation, q, weight_var, bias_var)
        total = slope**2 * total + noise / width
    return np.array(out)


def backward_log_variance(activation: ActivationLike, width: float, q: float = 1.0) -> float:
    """(3 E phi'^4/(E phi'^2)^2 - 1)/width: what one layer adds to Var log of a gradient's squared norm.

    A gradient passes Gaussian weights and then phi': its squared norm is a sum over `width` units of phi'^2 g^2 with
    g Gaussian, E g^4 = 3 (E g^2)^2, and independent of phi'. 5/width for ReLU (Hanin & Nica 2018, arXiv:1812.05994),
    2/width for linear layers. Exact to first order where E phi'^2 does not depend on q; for other nonlinearities the
    scatter of q adds to it over the layers, which `gradient_log_variance` follows.

    Args:
        activation: The nonlinearity phi: a name, a module, a function (`as_activation`).
        width: How many units the layer has.
        q: Second moment of its pre-activations.

    Returns:
        The variance per layer.
    """
    activation = as_activation(activation)
    require_positive("the width", width)
    return _backward_noise(activation, q) / width


def gradient_log_variance(
    activation: ActivationLike, q: float, weight_var: float, bias_var: float, widths: Sequence[float]
) -> float:
    """Var log of a gradient's squared norm over a stack of equal layers: the first of `gradient_log_variances`.

    Args:
        activation: The nonlinearity phi: a name, a module, a function (`as_activation`).
        q: Second moment of the first layer's pre-activations.
        weight_var: n_in Var W of the layers.
        bias_var: Var b of the layers.
        widths: Units of each layer that the gradient passes.

    Returns:
        The variance of the log of the total gain.
    """
    return float(gradient_log_variances(activation, q, weight_var, bias_var, widths)[0])


def gradient_log_variances(
    activation: ActivationLike, q: float, weight_var: float, bias_var: float, widths: Sequence[float]
) -> Array:
    """Var log of the squared gradient at each layer over the last one's, with the scatter of q that the layers share.

    Where E phi'^2 depends on q, a layer of larger q than expected passes another gradient, and so do the layers after
    it. To first order, with a = d log q'/d log q, b = d log E phi'^2/d log q and the deviation x of log q, a layer makes
    x' = a x + f and changes the log of the gradient by b x + v, where Var v is `backward_log_variance`, Var f the noise
    of the forward step and Cov(f, v) = weight_var (E phi^2 phi'^2/E phi'^2 - E phi^2)/(q' n). What lies above layer l
    responds to x_l by B_l = b_l + a_l B_(l + 1), so that its noise is S_l = S_(l + 1) + Var v + 2 B_(l + 1) Cov(f, v) +
    B_(l + 1)^2 Var f, and the whole S_l + B_l^2 Var x_l. For ReLU and linear layers b = 0 and S = (L - l) Var v.

    Args:
        activation: The nonlinearity phi: a name, a module, a function (`as_activation`).
        q: Second moment of the first layer's pre-activations.
        weight_var: n_in Var W of the layers.
        bias_var: Var b of the layers.
        widths: Units of each layer but the last.

    Returns:
        One variance for each layer, 0 for the last one.
    """
    activation = as_activation(activation)
    _require_layer(q, weight_var, bias_var)
    widths = require_sequence("widths", widths, "widths")
    layers, lengths = [], [0.0]
    for width in widths:
        require_positive("the width", width)
        layer = _layer(activation, q, weight_var, bias_var)
        layers.append(layer)
        lengths.append(layer.slope**2 * lengths[-1] + layer.forward / width)
        q = layer.after
    out, response, noise = [0.0], 0.0, 0.0
    for layer, width, length in zip(reversed(layers), reversed(widths), reversed(lengths[:-1]), strict=True):
        noise += (layer.backward + 2.0 * response * layer.covariance + response**2 * layer.forward) / width
        response = layer.turn + layer.slope * response
        out.append(noise + response**2 * length)
    return np.array(out[::-1])


def band(log_gain: float, log_variance: float, sigmas: float = 3.0) -> tuple[float, float]:
    """Where the log of a measured gain may lie when the net is as predicted.

    The prediction is the log of a mean; the mean of a lognormal's log is lower by half its variance (Hanin & Nica
    2018, arXiv:1812.05994: the log is about N(-v/2, v)).

    Args:
        log_gain: Natural log of the predicted gain of a second moment.
        log_variance: Variance of the log.
        sigmas: Half width, in standard deviations.

    Returns:
        Lowest and highest natural log of the gain.
    """
    require_finite("the log gain", log_gain)
    require_not_negative("the log variance", log_variance)
    require_not_negative("the number of sigmas", sigmas)
    centre, reach = log_gain - 0.5 * log_variance, sigmas * log_variance**0.5
    return centre - reach, centre + reach


def _require_layer(q: float, weight_var: float, bias_var: float) -> None:
    require_positive("q", q)
    require_not_negative("weight_var", weight_var)
    require_not_negative("bias_var", bias_var)


class _Layer(NamedTuple):
    """What one layer does to the logs of q and of the gradient; variances and covariance are those of width 1."""

    after: float
    slope: float
    turn: float
    forward: float
    backward: float
    covariance: float


@functools.lru_cache(maxsize=256)  # a net that has come to rest has one layer many times
def _layer(activation: Activation, q: float, weight_var: float, bias_var: float) -> _Layer:
    value, derivative = activation.value, activation.derivative
    both = expectation(lambda u: (value(u) * derivative(u)) ** 2, q, 0.0, activation.kinks)
    passed, (slope, forward, after) = (
        mean_derivative_squared(activation, q),
        _forward(activation, q, weight_var, bias_var),
    )
    return _Layer(
        after,
        slope,
        _derivative_slope(activation, q),
        forward,
        _backward_noise(activation, q),
        weight_var / after * (both / passed - second_moment(activation, q)),
    )


@functools.lru_cache(maxsize=256)
def _forward(activation: Activation, q: float, weight_var: float, bias_var: float) -> tuple[float, float, float]:
    """Return d log q'/d log q, the variance that a layer of width 1 would add to log q', and q'."""
    after, square = length_map(activation, q, weight_var, bias_var), second_moment(activation, q)
    slope = length_map_slope(activation, q, weight_var, bias_var)
    if not square > 0.0:  # nothing but the bias is left
        return slope, 0.0, after
    spread = expectation(lambda u: (activation.value(u) ** 2 / square - 1.0) ** 2, q, 0.0, activation.kinks)
    return slope, (weight_var * square / after) ** 2 * spread, after


def _backward_noise(activation: Activation, q: float) -> float:
    passed = mean_derivative_squared(activation, q)
    if not passed > 0.0:
        raise PropagationError(f"{activation.name} passes no gradient at q = {q}: its log is not defined")
    fourth = expectation(lambda u: activation.derivative(u) ** 4, q, 0.0, activation.kinks)
    return 3.0 * fourth / passed**2 - 1.0


def _derivative_slope(activation: Activation, q: float) -> float:
    """Return d log E phi'^2/d log q = E[phi'^2 (z^2 - 1)]/(2 E phi'^2), which needs no second derivative."""
    require_positive("q", q)
    tilted = expectation(lambda u: activation.derivative(u) ** 2 * (u**2 / q - 1.0), q, 0.0, activation.kinks)
    return 0.5 * tilted / mean_derivative_squared(activation, q)

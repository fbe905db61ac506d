"""What one nonlinearity does to the second moments of signal and gradient, in the limit of great width.

Conventions of Poole et al. 2016 (arXiv:1606.05340) and Schoenholz et al. 2017 (arXiv:1611.01232): a pre-activation u
is N(mean, q); a layer of width n has weights of variance weight_var/n and biases of variance bias_var. A gain is a
factor on a second moment, never on a standard deviation.
"""

from typing import TypeVar

import numpy as np

from trimtab.propagation._activation import Activation, Array
from trimtab.propagation._checks import PropagationError, require_finite, require_positive
from trimtab.propagation.gaussian import expectation

Q = TypeVar("Q", float, Array)


def first_moment(activation: Activation, q: Q, mean: float = 0.0) -> Q:
    """E phi(u), u ~ N(mean, q).

    Args:
        activation: The nonlinearity phi.
        q: Variance of the pre-activation.
        mean: Mean of the pre-activation.

    Returns:
        The mean of the output, for every q.
    """
    return expectation(activation.value, q, mean, activation.kinks)


def second_moment(activation: Activation, q: Q, mean: float = 0.0) -> Q:
    """E phi(u)^2, u ~ N(mean, q) (Poole et al. 2016, eq. 3).

    Args:
        activation: The nonlinearity phi.
        q: Variance of the pre-activation.
        mean: Mean of the pre-activation.

    Returns:
        The second moment of the output, for every q.
    """
    return expectation(lambda u: activation.value(u) ** 2, q, mean, activation.kinks)


def mean_derivative_squared(activation: Activation, q: Q, mean: float = 0.0) -> Q:
    """E phi'(u)^2, u ~ N(mean, q) (the factor in chi_1 of Schoenholz et al. 2017).

    What the nonlinearity does to the second moment of a gradient.

    Args:
        activation: The nonlinearity phi.
        q: Variance of the pre-activation.
        mean: Mean of the pre-activation.

    Returns:
        The mean squared derivative, for every q.
    """
    return expectation(lambda u: activation.derivative(u) ** 2, q, mean, activation.kinks)


def chi(activation: Activation, q: Q, weight_var: float) -> Q:
    """chi_1 = weight_var E phi'(sqrt(q) z)^2, the gain of a gradient over one layer (Schoenholz et al. 2017).

    Args:
        activation: The nonlinearity phi.
        q: Second moment of the pre-activations.
        weight_var: n_in Var W.

    Returns:
        The gain, for every q.
    """
    return weight_var * mean_derivative_squared(activation, q)


def length_map(activation: Activation, q: Q, weight_var: float, bias_var: float = 0.0) -> Q:
    """The length map q' = weight_var E phi(sqrt(q) z)^2 + bias_var (Poole et al. 2016, eq. 3).

    Args:
        activation: The nonlinearity phi.
        q: Second moment of the pre-activations.
        weight_var: n_in Var W.
        bias_var: Var b.

    Returns:
        The second moment of the next layer's pre-activations, for every q.
    """
    return weight_var * second_moment(activation, q) + bias_var


def length_map_slope(activation: Activation, q: float, weight_var: float, bias_var: float = 0.0) -> float:
    """The logarithmic slope of the length map, d log q'/d log q = weight_var E[phi phi' u]/q'.

    It is q chi_q/q' with the chi_q of Schoenholz et al. 2017 (arXiv:1611.01232), written without phi''.

    Args:
        activation: The nonlinearity phi, which must have no jump.
        q: Second moment of the pre-activations.
        weight_var: n_in Var W.
        bias_var: Var b.

    Returns:
        How many per cent q' grows when q grows by one.

    Raises:
        PropagationError: If q' is zero.
    """
    grown = expectation(lambda u: activation.value(u) * activation.derivative(u) * u, q, 0.0, activation.kinks)
    after = length_map(activation, q, weight_var, bias_var)
    if not after > 0.0:
        raise PropagationError(f"the length map gives q' = {after}; a logarithmic slope needs q' > 0")
    return weight_var * grown / after


def batchnorm_rate(activation: Activation, gamma: float = 1.0, beta: float = 0.0) -> float:
    """Growth of the squared gradient per layer of a plain batch-normalised net, for large batches.

    gamma^2 E phi'(u)^2 / Var phi(u) with u ~ N(beta, gamma^2): the Jacobian of the normalisation divides by the
    variance that the next layer will have. Yang et al. 2019 (arXiv:1902.08129), Theorem 8, has the exact law at every
    batch size; for ReLU its limit is pi/(pi - 1), as here.

    Args:
        activation: The nonlinearity phi between a normalisation and the next linear layer.
        gamma: Scale of the normalisation.
        beta: Shift of the normalisation.

    Returns:
        The rate, at least 1.

    Raises:
        PropagationError: If gamma is zero or not finite, or phi does not vary.
    """
    require_finite("gamma", gamma)
    require_positive("gamma^2", gamma**2)
    q = gamma**2
    average = first_moment(activation, q, beta)
    variance = expectation(lambda u: (activation.value(u) - average) ** 2, q, beta, activation.kinks)
    if not variance > np.finfo(np.float64).tiny:
        raise PropagationError(f"{activation.name} does not vary at gamma = {gamma}, beta = {beta}: no rate is defined")
    return q * mean_derivative_squared(activation, q, beta) / variance

"""What one nonlinearity does to the second moments of signal and gradient, in the limit of great width.

Conventions of Poole et al. 2016 (arXiv:1606.05340) and Schoenholz et al. 2017 (arXiv:1611.01232): a pre-activation u
is N(mean, q); a layer of width n has weights of variance weight_var/n and biases of variance bias_var. A gain is a
factor on a second moment, never on a standard deviation.
"""

from typing import Any, TypeVar

import numpy as np

from trimtab.propagation._activation import Array
from trimtab.propagation._checks import PropagationError, require_not_negative
from trimtab.propagation.functions import ActivationLike, as_activation
from trimtab.propagation.gaussian import expectation

Q = TypeVar("Q", float, Array)


def first_moment(activation: ActivationLike, q: Q, mean: float = 0.0) -> Q:
    """E phi(u), u ~ N(mean, q).

    Args:
        activation: The nonlinearity phi: a name, a module, a function (`as_activation`).
        q: Variance of the pre-activation.
        mean: Mean of the pre-activation.

    Returns:
        The mean of the output, for every q.
    """
    phi = as_activation(activation)
    return expectation(phi.value, q, mean, phi.kinks)


def second_moment(activation: ActivationLike, q: Q, mean: float = 0.0) -> Q:
    """E phi(u)^2, u ~ N(mean, q) (Poole et al. 2016, eq. 3), closed for the ReLU family, erf and sin at mean 0.

    Args:
        activation: The nonlinearity phi: a name, a module, a function (`as_activation`).
        q: Variance of the pre-activation.
        mean: Mean of the pre-activation.

    Returns:
        The second moment of the output, for every q.
    """
    phi = as_activation(activation)
    if phi.closed is not None and mean == 0.0:
        require_not_negative("the variance q", q, arrays=True)
        return _like(q, phi.closed.covariance(q, q, 1.0))
    return expectation(lambda u: phi.value(u) ** 2, q, mean, phi.kinks)


def mean_derivative_squared(activation: ActivationLike, q: Q, mean: float = 0.0) -> Q:
    """E phi'(u)^2, u ~ N(mean, q) (the factor in chi_1 of Schoenholz et al. 2017).

    What the nonlinearity does to the second moment of a gradient.

    Args:
        activation: The nonlinearity phi: a name, a module, a function (`as_activation`).
        q: Variance of the pre-activation.
        mean: Mean of the pre-activation.

    Returns:
        The mean squared derivative, for every q.
    """
    phi = as_activation(activation)
    if phi.closed is not None and mean == 0.0:
        require_not_negative("the variance q", q, arrays=True)
        return _like(q, phi.closed.slope_covariance(q, q, 1.0))
    return expectation(lambda u: phi.derivative(u) ** 2, q, mean, phi.kinks)


def chi(activation: ActivationLike, q: Q, weight_var: float) -> Q:
    """chi_1 = weight_var E phi'(sqrt(q) z)^2, the gain of a gradient over one layer (Schoenholz et al. 2017).

    Args:
        activation: The nonlinearity phi: a name, a module, a function (`as_activation`).
        q: Second moment of the pre-activations.
        weight_var: n_in Var W.

    Returns:
        The gain, for every q.
    """
    require_not_negative("weight_var", weight_var)
    return weight_var * mean_derivative_squared(activation, q)


def length_map(activation: ActivationLike, q: Q, weight_var: float, bias_var: float = 0.0) -> Q:
    """The length map q' = weight_var E phi(sqrt(q) z)^2 + bias_var (Poole et al. 2016, eq. 3).

    Args:
        activation: The nonlinearity phi: a name, a module, a function (`as_activation`).
        q: Second moment of the pre-activations.
        weight_var: n_in Var W.
        bias_var: Var b.

    Returns:
        The second moment of the next layer's pre-activations, for every q.
    """
    require_not_negative("weight_var", weight_var)
    require_not_negative("bias_var", bias_var)
    return weight_var * second_moment(activation, q) + bias_var


def length_map_slope(activation: ActivationLike, q: float, weight_var: float, bias_var: float = 0.0) -> float:
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
    phi = as_activation(activation)
    grown = expectation(lambda u: phi.value(u) * phi.derivative(u) * u, q, 0.0, phi.kinks)
    after = length_map(phi, q, weight_var, bias_var)
    if not after > 0.0:
        raise PropagationError(f"the length map gives q' = {after}; a logarithmic slope needs q' > 0")
    return weight_var * grown / after


def _like(q: Q, value: Any) -> Q:
    """Give an array for an array and a float for a number."""
    return np.asarray(value, dtype=np.float64) if isinstance(q, np.ndarray) else float(value)

"""How fast a plain batch-normalised net lets its gradients grow (Yang et al. 2019, arXiv:1902.08129)."""

import math

import numpy as np

from trimtab.propagation._activation import Activation, Array
from trimtab.propagation._checks import PropagationError, require_finite, require_positive, require_whole
from trimtab.propagation._closed import ClosedForms
from trimtab.propagation._sphere import pair_nodes, single_nodes
from trimtab.propagation.functions import ActivationLike, as_activation
from trimtab.propagation.gains import first_moment, mean_derivative_squared
from trimtab.propagation.gaussian import expectation

HOMOGENEOUS = ("identity", "relu", "leaky_relu", "prelu")
SMALLEST = 4  # the linear rate (B - 2)/(B - 3) is infinite below


def batchnorm_rate(activation: ActivationLike, gamma: float = 1.0, beta: float = 0.0, batch: float = math.inf) -> float:
    """Growth of the squared gradient per layer of a plain batch-normalised net at initialization.

    For large batches gamma^2 E phi'(u)^2 / Var phi(u), u ~ N(beta, gamma^2): the Jacobian of the normalisation divides by
    the variance that the next layer will have. For ReLU it is pi/(pi - 1).

    For a batch of B the normalised values of a unit are uniform on a sphere of radius sqrt(B) in the B - 1 directions
    off the mean, and the covariance of the samples is at its fixed point q((1 - c) I + c 11^T): with y = gamma x + beta,
    d = phi'(y), G = I - 11^T/B the rate is gamma^2 B tr E[d G d (G - n n^T)]/((B - 1)(B - 3) Cov), Cov = E phi(y_1)^2 -
    E phi(y_1) phi(y_2) (Yang et al. 2019, Theorem 8). Closed for the ReLU family at beta = 0 (eq. 25), (B - 2)/(B - 3) for
    linear nets; by quadrature over the sphere otherwise.

    It holds without skips, with batch statistics, at a width far above B, some six layers above the input.

    Args:
        activation: The nonlinearity phi between a normalisation and the next linear layer: a name, a module, a function.
        gamma: Scale of the normalisation.
        beta: Shift of the normalisation.
        batch: B, values that are normalised together: 4 or more; inf for the large-batch law.

    Returns:
        The rate, at least 1.

    Raises:
        PropagationError: If gamma is zero or not finite, the batch is below 4, or phi does not vary.
    """
    phi = as_activation(activation)
    require_finite("gamma", gamma)
    require_finite("beta", beta)
    require_positive("gamma^2", gamma**2)
    if isinstance(batch, float) and batch == math.inf:
        return _large_batch(phi, gamma, beta)
    require_positive("batch", batch)
    if batch < SMALLEST or batch != int(batch):
        raise PropagationError(f"batch is {batch}; a whole number from {SMALLEST} up, or inf, is needed")
    return _finite_batch(phi, gamma, beta, int(batch))


def layernorm_rate(
    activation: ActivationLike, gamma: float = 1.0, beta: float = 0.0, width: float = math.inf, centred: bool = True
) -> float:
    """Growth of the squared gradient per layer of a plain net with LayerNorm or RMSNorm before phi.

    gamma^2 E phi'(u)^2 / E phi(u)^2, u ~ N(beta, gamma^2), without biases: the norm divides by the second moment over the
    features, where batch normalisation divides by the variance over samples (own derivation; the norm's Jacobian is Xiong
    et al. 2020, arXiv:2002.04745, Lemma 3). One for homogeneous activations. At finite width the projection off the mean
    and off the features leaves about 1 - 2/width of it, 1 - 1/width in RMSNorm.

    Args:
        activation: The nonlinearity phi between a normalisation and the next linear layer: a name, a module, a function.
        gamma: Scale of the normalisation.
        beta: Shift of the normalisation.
        width: Features that are normalised together.
        centred: Whether the mean is taken off (not in RMSNorm).

    Returns:
        The rate.

    Raises:
        PropagationError: If gamma is zero or not finite, the width is below 2, or phi passes no signal.
    """
    phi = as_activation(activation)
    require_finite("gamma", gamma)
    require_positive("gamma^2", gamma**2)
    if not (isinstance(width, float) and width == math.inf):
        require_whole("width", width, least=2)
    passed = expectation(lambda u: phi.value(u) ** 2, gamma**2, beta, phi.kinks)
    if not passed > np.finfo(np.float64).tiny:
        raise PropagationError(f"{phi.name} passes no signal at gamma = {gamma}, beta = {beta}: no rate is defined")
    return gamma**2 * mean_derivative_squared(phi, gamma**2, beta) / passed * (1.0 - (2.0 if centred else 1.0) / width)


def _large_batch(phi: Activation, gamma: float, beta: float) -> float:
    q = gamma**2
    average = first_moment(phi, q, beta)
    variance = expectation(lambda u: (phi.value(u) - average) ** 2, q, beta, phi.kinks)
    _require_varying(phi, variance, gamma, beta)
    return q * mean_derivative_squared(phi, q, beta) / variance


def _finite_batch(phi: Activation, gamma: float, beta: float, batch: int) -> float:
    if phi.closed is not None and beta == 0.0 and phi.name in HOMOGENEOUS:
        return _homogeneous(phi, phi.closed, batch)

    def d(y: Array) -> Array:
        return gamma * phi.derivative(beta + gamma * y)

    def value(y: Array) -> Array:
        return phi.value(beta + gamma * y)

    kinks = tuple((k - beta) / gamma for k in (*phi.kinks, 0.0))
    y, weight = single_nodes(batch, kinks, 1.0 / abs(gamma))
    one = float(weight @ d(y) ** 2), float(weight @ (d(y) * y) ** 2)
    a, b, weight = pair_nodes(batch, kinks, 1.0 / abs(gamma))
    two = float(weight @ (d(a) * d(b))), float(weight @ (d(a) * d(b) * a * b))
    covariance = 0.5 * float(weight @ (value(a) - value(b)) ** 2)
    _require_varying(phi, covariance, gamma, beta)
    return _rate(batch, one, two, covariance)


def _homogeneous(phi: Activation, closed: ClosedForms, batch: int) -> float:
    """The expectations on the sphere are those of the Gaussian plane: phi' does not see the length, phi scales with it."""
    rho = -1.0 / (batch - 1.0)
    up = float(phi.derivative(np.ones(1))[0])
    down = float(phi.derivative(-np.ones(1))[0])
    half = 0.5 * (up**2 + down**2)
    slopes, values = float(closed.slope_covariance(1.0, 1.0, rho)), float(closed.covariance(1.0, 1.0, rho))
    # d_1 d_2 y_1 y_2 = phi(y_1) phi(y_2) for a function that is homogeneous of degree one
    return _rate(batch, (half, half), (slopes, values), half - values)


def _rate(batch: int, one: tuple[float, float], two: tuple[float, float], covariance: float) -> float:
    """Return the rate from E d_1^2, E d_1^2 y_1^2; E d_1 d_2, E d_1 d_2 y_1 y_2; and Cov.

    With n = y/sqrt(B), tr[d G d (G - n n^T)] = sum d^2 (1 - 2/B) + (sum d)^2/B^2 - sum d^2 n^2 + (sum d n)^2/B.
    """
    squares = batch * one[0]
    sums = batch * one[0] + batch * (batch - 1.0) * two[0]
    aligned = one[1] + (batch - 1.0) * two[1]
    trace = squares * (1.0 - 2.0 / batch) + sums / batch**2 - one[1] + aligned / batch
    return batch * trace / ((batch - 1.0) * (batch - 3.0) * covariance)


def _require_varying(phi: Activation, variance: float, gamma: float, beta: float) -> None:
    if not variance > np.finfo(np.float64).tiny:
        raise PropagationError(f"{phi.name} does not vary at gamma = {gamma}, beta = {beta}: no rate is defined")

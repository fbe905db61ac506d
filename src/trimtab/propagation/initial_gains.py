"""Gains of the initial weights: those that keep a signal or a gradient, and what PyTorch's own ones do."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from trimtab.propagation._activation import Activation
from trimtab.propagation._checks import PropagationError, require_not_negative, require_positive
from trimtab.propagation.correlation import FixedPoint
from trimtab.propagation.functions import ActivationLike, as_activation
from trimtab.propagation.gains import chi, first_moment, length_map, mean_derivative_squared, second_moment
from trimtab.propagation.gaussian import expectation
from trimtab.propagation.phase import length_fixed_points, length_limit


def forward_gain(activation: ActivationLike, q: float = 1.0) -> float:
    """sqrt(q/E phi(sqrt(q) z)^2): the gain sigma_w that keeps the second moment q of the signal, without bias.

    He et al. 2015 (arXiv:1502.01852, eq. 10) for ReLU, sqrt(2); SELU is made for 1 at q = 1. Weights are drawn with
    Var W = gain^2/fan_in, as torch.nn.init does.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        q: Second moment of the pre-activations.

    Returns:
        The gain.

    Raises:
        PropagationError: If q is not positive, or phi passes no signal.
    """
    phi = as_activation(activation)
    require_positive("q", q)
    return math.sqrt(q / _positive(phi, "signal", q, second_moment(phi, q)))


def backward_gain(activation: ActivationLike, q: float = 1.0) -> float:
    """1/sqrt(E phi'(sqrt(q) z)^2): the gain at which chi_1 = 1 and a gradient keeps its second moment.

    Schoenholz et al. 2017 (arXiv:1611.01232). The same as the forward one only for homogeneous activations: no single gain
    keeps both for tanh, GELU or SiLU.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        q: Second moment of the pre-activations.

    Returns:
        The gain.

    Raises:
        PropagationError: If q is negative, or phi passes no gradient.
    """
    phi = as_activation(activation)
    require_not_negative("q", q)
    return 1.0 / math.sqrt(_positive(phi, "gradient", q, mean_derivative_squared(phi, q)))


def nf_gain(activation: ActivationLike) -> float:
    """1/sqrt(Var phi(z)), z ~ N(0, 1): the gamma of normalizer-free nets with scaled weight standardization.

    Brock et al. 2021 (arXiv:2101.08692, sec. 3); ReLU sqrt(2/(1 - 1/pi)). The published table was sampled and lies 0.03 to
    0.09 % higher.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.

    Returns:
        The gain.

    Raises:
        PropagationError: If phi does not vary.
    """
    phi = as_activation(activation)
    average = first_moment(phi, 1.0)
    variance = expectation(lambda u: (phi.value(u) - average) ** 2, 1.0, 0.0, phi.kinks)
    return 1.0 / math.sqrt(_positive(phi, "variance", 1.0, variance))


@dataclass(frozen=True, slots=True)
class GainReport:
    """What weights of one gain do to a deep net without biases whose input has second moment 1.

    Attributes:
        gain: sigma_w.
        next_q: Second moment after one layer, from q = 1.
        chi_at_1: chi_1 at q = 1, the gradient's gain there.
        fixed_points: The positive fixed points of the length map, ascending; 1 stands for all where every q is one.
        limit: Where q goes from 1: a fixed point, 0 (the signal dies) or inf.
        chi_at_limit: chi_1 at the limit, where that is positive and finite.
        critical: Whether chi_1 = 1 at the limit, to 1e-9.
    """

    gain: float
    next_q: float
    chi_at_1: float
    fixed_points: tuple[FixedPoint, ...]
    limit: float
    chi_at_limit: float | None
    critical: bool


def judge_gain(activation: ActivationLike, gain: float | None = None) -> GainReport:
    """Compare a gain with criticality (Poole et al. 2016, eq. 3; Schoenholz et al. 2017).

    torch.nn.init.calculate_gain is critical for linear, ReLU and leaky ReLU. Its 5/3 for tanh keeps the signal near 1
    and grows squared gradients by 21 % per layer; its 3/4 for SELU shrinks both at first; for sigmoid its 1 passes 5.6 %.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        gain: sigma_w; None asks `torch_gain`.

    Returns:
        What it does.

    Raises:
        PropagationError: If the gain is not positive, or PyTorch has none for this activation.
    """
    phi = as_activation(activation)
    if gain is None:
        gain = torch_gain(phi)
        if gain is None:
            raise PropagationError(f"torch.nn.init.calculate_gain has no gain for {phi.name}; name one as gain")
    require_positive("gain", gain)
    weight_var = gain**2
    points = tuple(point for point in length_fixed_points(phi, weight_var) if point.value > 0.0)
    limit = length_limit(phi, 1.0, weight_var)
    passed = chi(phi, limit, weight_var) if 0.0 < limit < math.inf else None
    return GainReport(
        gain,
        length_map(phi, 1.0, weight_var),
        chi(phi, 1.0, weight_var),
        points,
        limit,
        passed,
        passed is not None and abs(passed - 1.0) < 1e-9,
    )


def torch_gain(activation: ActivationLike) -> float | None:
    """The recommendation of torch.nn.init.calculate_gain for an activation.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.

    Returns:
        The gain, None where PyTorch has none (GELU, SiLU, ELU, softplus and others).
    """
    phi = as_activation(activation)
    if phi.name == "identity":
        return float(torch.nn.init.calculate_gain("linear"))
    if phi.name in {"leaky_relu", "prelu"}:
        slope = float(phi.derivative(np.array([-1.0]))[0])
        return float(torch.nn.init.calculate_gain("leaky_relu", slope))
    if phi.name in {"sigmoid", "tanh", "relu", "selu"}:
        return float(torch.nn.init.calculate_gain(phi.name))  # type: ignore[arg-type]
    return None


def _positive(phi: Activation, what: str, q: float, value: float) -> float:
    if not value > np.finfo(np.float64).tiny:
        raise PropagationError(f"{phi.name} passes no {what} at q = {q}: no gain keeps it")
    return value

"""Every activation is what PyTorch computes, and its derivative is its derivative."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from trimtab.errors import TrimtabError
from trimtab.propagation import ACTIVATION_NAMES, UnknownActivationError, activation

TORCH = {
    "identity": nn.Identity(),
    "relu": nn.ReLU(),
    "leaky_relu": nn.LeakyReLU(),
    "prelu": nn.PReLU(dtype=torch.float64),
    "elu": nn.ELU(),
    "selu": nn.SELU(),
    "hard_tanh": nn.Hardtanh(),
    "hard_sigmoid": nn.Hardsigmoid(),
    "hard_swish": nn.Hardswish(),
    "relu6": nn.ReLU6(),
    "softsign": nn.Softsign(),
    "softshrink": nn.Softshrink(),
    "hardshrink": nn.Hardshrink(),
    "gelu": nn.GELU(),
    "silu": nn.SiLU(),
    "mish": nn.Mish(),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "erf": torch.erf,
    "softplus": nn.Softplus(threshold=1000),
    "log_sigmoid": nn.LogSigmoid(),
    "tanhshrink": nn.Tanhshrink(),
    "sin": torch.sin,
}
SHAPED = [
    ("gelu", {"approximate": "tanh"}, nn.GELU(approximate="tanh")),
    ("leaky_relu", {"negative_slope": 0.3}, nn.LeakyReLU(0.3)),
    ("prelu", {"negative_slope": -0.5}, nn.PReLU(init=-0.5, dtype=torch.float64)),
    ("elu", {"alpha": 1.7}, nn.ELU(1.7)),
    ("softplus", {"beta": 4.0}, nn.Softplus(4.0, threshold=1000)),
    ("softshrink", {"lambd": 1.2}, nn.Softshrink(1.2)),
    ("hardshrink", {"lambd": 1.2}, nn.Hardshrink(1.2)),
    ("hard_tanh", {"min_val": -0.2, "max_val": 2.0}, nn.Hardtanh(-0.2, 2.0)),
]
CASES = [(name, {}, TORCH[name]) for name in ACTIVATION_NAMES] + SHAPED
IDS = [name + "".join(f"-{v}" for v in kw.values()) for name, kw, _ in CASES]
each = pytest.mark.parametrize(("name", "parameters", "module"), CASES, ids=IDS)


@each
def test_value_and_derivative_are_those_of_torch(name, parameters, module):
    phi = activation(name, **parameters)
    u = np.unique(np.concatenate([np.linspace(-8, 8, 1601) + 0.0013, phi.kinks, [-30.0, 30.0]]))
    x = torch.tensor(u, requires_grad=True)
    y = module(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    np.testing.assert_allclose(phi.value(u), y.detach().numpy(), rtol=1e-13, atol=1e-15)
    apart = ~np.isin(u, phi.kinks)
    rtol = 1e-7 if name == "hard_sigmoid" else 1e-12  # torch 2.13 takes 1/6 in single precision there
    np.testing.assert_allclose(phi.derivative(u)[apart], slope.numpy()[apart], rtol=rtol, atol=1e-14)


@each
def test_derivative_is_the_finite_difference_away_from_kinks(name, parameters, module):
    phi = activation(name, **parameters)
    u, h = np.linspace(-7.9, 7.9, 397), 1e-4
    far = np.all(np.abs(u[:, None] - np.array([*phi.kinks, np.inf])) > 3 * h, axis=1)
    slope = (8 * (phi.value(u + h) - phi.value(u - h)) - phi.value(u + 2 * h) + phi.value(u - 2 * h)) / (12 * h)
    np.testing.assert_allclose(phi.derivative(u)[far], slope[far], atol=1e-10)


@each
def test_bounds_are_the_tightest(name, parameters, module):
    phi = activation(name, **parameters)
    far, beside = (
        [s * 10.0**k for s in (-1, 1) for k in range(2, 10)],
        [k + s * 1e-9 for k in phi.kinks for s in (-1, 1)],
    )
    u = np.unique(np.concatenate([np.linspace(-60, 60, 120001), far, beside]))
    y, slope = phi.value(u), np.abs(phi.derivative(u))
    assert np.all(y >= phi.low - 1e-15)
    assert np.all(y <= phi.high + 1e-15)
    assert math.isinf(phi.low) or y.min() == pytest.approx(phi.low, abs=1e-6)
    assert math.isinf(phi.high) or y.max() == pytest.approx(phi.high, abs=1e-6)
    assert math.isfinite(phi.low) or y.min() < -15
    assert math.isfinite(phi.high) or y.max() > 1e6
    assert slope.max() <= phi.derivative_max * (1 + 1e-14)
    assert slope.max() == pytest.approx(phi.derivative_max, rel=1e-6)
    assert phi.kinks == tuple(sorted(phi.kinks))


def test_nothing_overflows_far_out():
    for name in ACTIVATION_NAMES:
        phi = activation(name)
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            out = phi.value(np.array([-1e6, 1e6])), phi.derivative(np.array([-1e6, 1e6]))
        assert np.all(np.isfinite(out))


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(UnknownActivationError, match=r"'swish'.*relu.*silu") as caught:
        activation("swish")
    assert isinstance(caught.value, TrimtabError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("name", "parameters"), [("relu", {"alpha": 1.0}), ("gelu", {"approximate": "erf"})])
def test_parameters_that_it_does_not_take_are_refused(name, parameters):
    with pytest.raises(UnknownActivationError, match=name):
        activation(name, **parameters)

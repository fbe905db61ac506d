"""Expectations are exact where the integral is known, and obey the laws of an expectation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.propagation import ACTIVATION_NAMES, PropagationError, activation, expectation, second_moment

VARIANCES = st.floats(1e-6, 1e3)
few = settings(max_examples=25, deadline=None, derandomize=True)


@pytest.mark.parametrize("q", [1e-12, 0.3, 1.0, 7.0, 1e4])
@pytest.mark.parametrize("mean", [0.0, -0.4, 3.0])
def test_powers(q, mean):
    assert expectation(np.ones_like, q, mean) == pytest.approx(1.0, rel=1e-13)
    assert expectation(lambda u: u, q, mean) == pytest.approx(mean, rel=1e-12, abs=1e-13)
    assert expectation(lambda u: u**2, q, mean) == pytest.approx(q + mean**2, rel=1e-12)
    assert expectation(lambda u: u**4, q, mean) == pytest.approx(3 * q**2 + 6 * q * mean**2 + mean**4, rel=1e-12)


@pytest.mark.parametrize("q", [1e-3, 1.0, 50.0, 900.0])
def test_sine_up_to_the_frequency_that_is_promised(q):
    assert second_moment(activation("sin"), q) == pytest.approx(-0.5 * math.expm1(-2 * q), rel=1e-12)


@pytest.mark.parametrize("q", [1e-6, 0.25, 1.0, 30.0, 1e6])
def test_erf_arcsine_law(q):
    """Williams 1997: E erf(u)^2 = 2/pi arcsin(2q/(1 + 2q))."""
    assert second_moment(activation("erf"), q) == pytest.approx(2 / math.pi * math.asin(2 * q / (1 + 2 * q)), rel=1e-11)


def test_an_array_of_variances_gives_an_array():
    q = np.array([[0.0, 0.5], [1.0, 2.0]])
    out = expectation(lambda u: u**2, q, 1.0)
    assert out.shape == q.shape
    np.testing.assert_allclose(out, q + 1.0, rtol=1e-12)
    assert isinstance(expectation(lambda u: u**2, 1), float)


@pytest.mark.parametrize("f", ["relu", torch.relu, torch.nn.ReLU(), activation("relu"), lambda x: x.clamp(min=0.0)])
def test_activations_bring_their_kinks(f):
    assert expectation(f, 2.0, 0.3) == pytest.approx(
        expectation(lambda u: np.maximum(u, 0), 2.0, 0.3, (0.0,)), rel=1e-12
    )


def test_what_is_no_function_is_refused():
    with pytest.raises(PropagationError, match="mixes"):
        expectation(torch.nn.Softmax(-1), 1.0)
    with pytest.raises(PropagationError, match="int"):
        expectation(3, 1.0)


def test_no_variance_is_the_limit_of_a_small_one():
    step = activation("relu").derivative
    assert expectation(step, 0.0, 0.0, (0.0,)) == 0.5
    assert expectation(step, 0.0, 2.0, (0.0,)) == 1.0
    assert expectation(np.cos, 0.0, 1.0) == pytest.approx(math.cos(1.0), rel=1e-15)


@pytest.mark.parametrize("q", [-1e-9, math.nan, math.inf, np.array([1.0, -2.0])])
def test_what_is_no_variance_is_refused(q):
    with pytest.raises(PropagationError, match="the variance q is"):
        expectation(np.cos, q)


def test_what_is_no_mean_is_refused():
    with pytest.raises(PropagationError, match="the mean is nan"):
        expectation(np.cos, 1.0, math.nan)


@few
@given(VARIANCES, st.floats(-3, 3), st.floats(-5, 5), st.floats(-5, 5))
def test_expectation_is_linear(q, mean, a, b):
    f, g = np.tanh, np.abs
    both = expectation(lambda u: a * f(u) + b * g(u), q, mean, (0.0,))
    parts = a * expectation(f, q, mean, (0.0,)) + b * expectation(g, q, mean, (0.0,))
    assert both == pytest.approx(parts, rel=1e-11, abs=1e-11)


@few
@given(st.sampled_from(["identity", "relu", "leaky_relu", "prelu"]), VARIANCES, st.floats(1e-3, 1e3))
def test_homogeneous_activations_scale(name, q, c):
    phi = activation(name)
    assert second_moment(phi, c * q) == pytest.approx(c * second_moment(phi, q), rel=1e-12)


@few
@given(st.sampled_from(ACTIVATION_NAMES), VARIANCES, st.floats(-2, 2))
def test_jensen_and_bounds(name, q, mean):
    phi = activation(name)
    first = expectation(phi.value, q, mean, phi.kinks)
    assert phi.low - 1e-12 <= first <= phi.high + 1e-12
    assert first**2 <= second_moment(phi, q, mean) * (1 + 1e-11)

"""Two inputs: closed forms equal the quadrature, maps obey their laws, digits survive near c = 1."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.propagation import (
    PropagationError,
    activation,
    chi,
    chi_c,
    correlation_fixed_points,
    correlation_map,
    covariance,
    decorrelation_map,
    length_fixed_points,
    length_map,
    mean_derivative_squared,
    pair_expectation,
    second_moment,
    slope_covariance,
)

few = settings(max_examples=15, deadline=None, derandomize=True)
NAMES = ["relu", "tanh", "gelu", "erf", "selu", "sigmoid", "hard_tanh", "sin"]
PAIRS = [(1.0, 1.0), (0.3, 2.0), (1e-3, 1e-3), (100.0, 100.0)]
DISTANCES = [0.0, 1e-10, 1e-6, 1e-3, 0.1, 0.5, 1.0, 1.5, 1.99, 2.0]


@pytest.mark.parametrize("name", ["identity", "relu", "leaky_relu", "prelu", "erf", "sin"])
@pytest.mark.parametrize(("q_a", "q_b"), PAIRS)
def test_closed_forms_are_the_quadrature(name, q_a, q_b):
    """Arc-cosine (Cho & Saul 2009), arcsine (Williams 1997) and sine kernels, to 1e-12 of the largest value at c = 1."""
    phi = activation(name)
    for d in DISTANCES:
        both = pair_expectation(lambda u, v: phi.value(u) * phi.value(v), q_a, q_b, d, phi.kinks)
        size = math.sqrt(second_moment(phi, q_a) * second_moment(phi, q_b))
        assert covariance(phi, q_a, q_b, 1 - d) == pytest.approx(both, abs=1e-12 * size)
        slopes = pair_expectation(lambda u, v: phi.derivative(u) * phi.derivative(v), q_a, q_b, d, phi.kinks)
        size = math.sqrt(mean_derivative_squared(phi, q_a) * mean_derivative_squared(phi, q_b))
        assert slope_covariance(phi, q_a, q_b, 1 - d) == pytest.approx(slopes, abs=1e-12 * size)
        if q_a == q_b:
            spread = pair_expectation(lambda u, v: 0.5 * (phi.value(u) - phi.value(v)) ** 2, q_a, q_b, d, phi.kinks)
            assert phi.closed.spread(q_a, d) == pytest.approx(spread, rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("c", [-1.0, -0.7, 0.0, 0.4, 0.9, 1.0])
@pytest.mark.parametrize("q", [1e-6, 1.0, 1e6])
def test_closed_forms_as_the_papers_print_them(q, c):
    angle = math.acos(c)
    arc_cosine = q / (2 * math.pi) * (math.sin(angle) + (math.pi - angle) * c)
    assert covariance("relu", q, q, c) == pytest.approx(arc_cosine, rel=1e-12, abs=1e-12 * q)
    assert slope_covariance("relu", q, q, c) == pytest.approx((math.pi - angle) / (2 * math.pi), abs=1e-12)
    arcsine = 2 / math.pi * math.asin(2 * q * c / (1 + 2 * q))
    assert covariance("erf", q, q, c) == pytest.approx(arcsine, rel=1e-12)


@pytest.mark.parametrize("name", ["tanh", "gelu", "hard_tanh", "softplus", "elu"])
def test_full_correlation_is_the_moment_of_one_unit(name):
    for q in (1e-4, 1.0, 30.0):
        assert covariance(name, q, q, 1.0) == pytest.approx(second_moment(name, q), rel=1e-12)
        assert slope_covariance(name, q, q, 1.0) == pytest.approx(mean_derivative_squared(name, q), rel=1e-12)


def test_covariance_of_a_still_unit():
    assert covariance("softplus", 0.0, 2.0, 0.3) == pytest.approx(
        math.log(2) * pair_expectation(lambda u, v: np.logaddexp(0, v), 1.0, 2.0, 1.0), rel=1e-12
    )
    assert covariance("tanh", 0.0, 2.0, 0.3) == pytest.approx(0.0, abs=1e-15)
    phi = activation("elu")
    assert pair_expectation(lambda u, v: phi.derivative(u), 0.0, 0.0, 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["gelu", "hard_tanh", "tanh"])
def test_quadrature_against_samples(name):
    rng, phi = np.random.default_rng(0), activation(name)
    u, w = rng.standard_normal((2, 2_000_000))
    v = 0.6 * u + 0.8 * w
    sampled = np.mean(phi.value(1.5 * u) * phi.value(0.7 * v))
    assert covariance(phi, 2.25, 0.49, 0.6) == pytest.approx(sampled, abs=3e-3)


@few
@given(st.sampled_from(NAMES), st.floats(1e-3, 30.0), st.floats(-1.0, 1.0), st.floats(0.1, 4.0), st.floats(0.0, 1.0))
def test_correlation_map_stays_within_its_bounds(name, q, c, weight_var, bias_var):
    after = correlation_map(name, c, q, weight_var, bias_var)
    assert -1.0 <= after <= 1.0
    assert correlation_map(name, 1.0, q, weight_var, bias_var) == 1.0


@few
@given(st.sampled_from(NAMES), st.floats(1e-3, 30.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_correlation_map_grows_and_is_convex_between_0_and_1(name, q, a, b):
    low, high = min(a, b), max(a, b)
    ends = [correlation_map(name, c, q, 1.5, 0.1) for c in (low, 0.5 * (low + high), high)]
    assert ends[0] <= ends[1] + 1e-11 <= ends[2] + 2e-11
    assert ends[1] <= 0.5 * (ends[0] + ends[2]) + 1e-11


@few
@given(st.sampled_from(["relu", "leaky_relu", "prelu", "identity"]), st.floats(1e-3, 1e3), st.floats(-1, 1))
def test_homogeneous_activations_forget_the_scale(name, q, c):
    assert correlation_map(name, c, q, 2.0) == pytest.approx(correlation_map(name, c, 1.0, 2.0), rel=1e-12, abs=1e-12)


@few
@given(st.sampled_from(["tanh", "gelu", "erf", "sin", "sigmoid", "silu"]), st.floats(0.01, 10.0), st.floats(-15, -6))
def test_near_full_correlation_the_slope_is_chi(name, q, exponent):
    """d'/d = chi_1 q/q' (1 + O(d)) where phi is smooth: to 1e-7 even at d = 1e-15, where 1 - c' has no digit left."""
    d, weight_var = 10.0**exponent, 1.3
    after = length_map(name, q, weight_var, 0.05)
    expected = chi(name, q, weight_var) * q / after
    assert decorrelation_map(name, d, q, weight_var, 0.05) / d == pytest.approx(expected, rel=1e-5)


def test_relu_collapses_slowly():
    """1 - c_l tends to (9 pi^2/2)/l^2 (He-ReLU): slow collapse is normal."""
    d = 0.5
    for _ in range(4000):
        d = decorrelation_map("relu", d, 1.0, 2.0)
    assert d * 4000**2 == pytest.approx(4.5 * math.pi**2, rel=0.02)


def test_fixed_points_of_the_correlation():
    (one,) = correlation_fixed_points("tanh", 0.08857359681420686, 0.64, 0.04)
    assert (one.value, one.stable) == (1.0, True)
    low, one = correlation_fixed_points("tanh", 2.125208447878515, 4.0, 0.0025)
    assert low.value == pytest.approx(0.009890651053083887, abs=1e-12)
    assert low.stable
    assert low.slope == pytest.approx(0.8810799955120154, rel=1e-10)
    assert not one.stable
    assert one.slope > 1.0
    odd, _ = correlation_fixed_points("erf", length_fixed_points("erf", 4.0)[-1].value, 4.0)
    assert odd.value == pytest.approx(0.0, abs=1e-12)
    (every,) = correlation_fixed_points("identity", 1.0, 1.0)
    assert every.value == 1.0


@few
@given(st.sampled_from(["tanh", "erf", "sin"]), st.floats(1.5, 9.0), st.floats(0.0, 0.3))
def test_fixed_points_satisfy_the_equation_and_stability_is_the_slope(name, weight_var, bias_var):
    q = next(p.value for p in length_fixed_points(name, weight_var, bias_var) if p.stable and p.value > 0)
    points = correlation_fixed_points(name, q, weight_var, bias_var)
    assert sum(p.stable for p in points) == 1
    for point in points:
        assert correlation_map(name, point.value, q, weight_var, bias_var) == pytest.approx(point.value, abs=1e-10)
        assert point.slope == pytest.approx(chi_c(name, point.value, q, weight_var), rel=1e-9)
        assert point.stable == (point.slope <= 1.0 + 1e-12)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: covariance("tanh", -1.0, 1.0, 0.0), "q_a is -1"),
        (lambda: covariance("tanh", 1.0, math.nan, 0.0), "q_b is nan"),
        (lambda: covariance("tanh", 1.0, 1.0, 1.1), "correlation c is 1.1"),
        (lambda: correlation_map("tanh", math.nan, 1.0, 1.0), "correlation c is nan"),
        (lambda: decorrelation_map("tanh", 3.0, 1.0, 1.0), "d = 1 - c is 3"),
        (lambda: decorrelation_map("tanh", 0.5, 0.0, 1.0), "no signal is left"),
        (lambda: correlation_fixed_points("tanh", 0.0, 1.0), "q is 0"),
        (lambda: pair_expectation(lambda u, v: u, 1.0, 1.0, -0.1), "d = 1 - c is -0.1"),
    ],
)
def test_what_is_no_correlation_is_refused(call, why):
    with pytest.raises(PropagationError, match=why):
        call()

"""Fixed points, depth scales and the edge of chaos, against every reference value."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.propagation import (
    PropagationError,
    activation,
    chi,
    critical_points,
    depth_scale,
    depth_scales,
    edge_of_chaos,
    length_fixed_points,
    length_map,
    length_map_slope,
    mean_derivative_squared,
    phase_diagram,
    second_moment,
)

few = settings(max_examples=20, deadline=None, derandomize=True)
HOMOGENEOUS = ["identity", "relu", "leaky_relu_0.01"]
CURVED = ["tanh", "erf", "sigmoid", "gelu", "silu", "elu", "selu", "hard_tanh", "softplus"]
THINNED = {"tanh": 6, "selu": 6, "hard_tanh": 6, "gelu": 3, "silu": 3, "elu": 3, "softplus": 3}  # in the fast tier


def named(name):
    return activation("leaky_relu" if name == "leaky_relu_0.01" else name)


def near(value, rel=1e-9):
    return pytest.approx(value, rel=rel, abs=1e-300)


def check_row(name, row):
    phi, weight_var, bias_var = named(name), row["sigma_w"] ** 2, row["sigma_b"] ** 2
    points = length_fixed_points(phi, weight_var, bias_var)
    positive = [point for point in points if point.value > 0.0]
    if name in HOMOGENEOUS:
        assert chi(phi, 1.0, weight_var) == near(row["chi_1"])
        if row["q_star"]:
            assert positive[0].value == near(row["q_star"])
    else:
        expected = row["q_fixed_points"]
        if (name, row["sigma_w"], row["sigma_b"]) == ("selu", 1.0, 0.0):
            # The reference lists none: its search stepped onto the root. SELU is made for q = 1 at gain 1.
            assert positive[0].value == pytest.approx(1.0, rel=1e-12)
            expected = [{"q": 1.0, "slope": positive[0].slope, "stable": True}]
        # The reference looks no further than q = 1e4; SiLU at sigma_w = sqrt(2) has an unstable point at 1.1e6.
        positive = [point for point in positive if point.value <= 1e4 or len(positive) == len(expected)]
        assert len(positive) == len(expected)
        for point, reference in zip(positive, expected, strict=True):
            # A slope within 1e-6 of 1 multiplies the rounding of q by 1/(1 - slope) (GELU at sigma_w = sqrt(2)).
            rounding = 1e-15 / abs(1.0 - point.slope)
            assert point.value == near(reference["q"], max(1e-9, 10 * rounding))
            assert point.slope == near(reference["slope"])
            assert point.stable == reference["stable"]
        if "q0_is_fixed_point_with_slope" in row:
            assert points[0].value == 0.0
            assert points[0].slope == near(row["q0_is_fixed_point_with_slope"])
    if not row.get("q_star") or "xi_c" not in row:
        return
    scales = depth_scales(phi, weight_var, bias_var, q=row["q_star"])
    assert scales.c == pytest.approx(row["c_star"], rel=1e-9, abs=1e-12)
    for key in ("chi_1", "chi_q", "chi_c", "xi_q", "xi_c"):
        if row.get(key) is not None:
            assert getattr(scales, key) == near(row[key]), key


@pytest.mark.parametrize("name", [*HOMOGENEOUS, *CURVED])
def test_grid_of_fixed_points_and_depth_scales(reference, name):
    rows = reference("meanfield_grid")["grid"][name]
    assert len(rows) == 50
    for row in rows[:: THINNED.get(name, 1)]:
        check_row(name, row)


@pytest.mark.slow
@pytest.mark.parametrize("name", THINNED)
def test_whole_grid(reference, name):
    for row in reference("meanfield_grid")["grid"][name]:
        check_row(name, row)


@pytest.mark.parametrize("name", CURVED)
def test_edge_of_chaos(reference, name):
    entry, phi = reference("edge_of_chaos")["edge_of_chaos"][name], named(name)
    for sigma_b, expected in entry["sigma_b"].items():
        bias_var = float(sigma_b) ** 2
        found = [point for point in critical_points(phi, bias_var) if point.q > 0.0]
        assert len(found) == len(expected)
        for point, row in zip(found, expected, strict=True):
            assert point.q == near(row["q"])
            assert point.weight_var == near(row["sigma_w2"])
            assert math.sqrt(point.weight_var) == near(row["sigma_w"])
            assert length_map_slope(phi, point.q, point.weight_var, bias_var) == near(row["chi_q"])
            assert point.stable == row["stable_q"]
    for row in entry["curve"]:
        passed = mean_derivative_squared(phi, row["q"])
        assert passed**-0.5 == near(row["sigma_w"])
        # sigma_b^2 is a difference of numbers of the size of q; sigmoid and softplus make it one of much larger ones
        size = max(row["q"], second_moment(phi, row["q"]) / passed)
        assert row["q"] - second_moment(phi, row["q"]) / passed == pytest.approx(row["sigma_b2"], abs=1e-14 * size)
    if "sigma_b_0_limit" in entry:
        point = edge_of_chaos(phi, 0.0)
        assert (point.q, point.stable) == (0.0, True)
        assert math.sqrt(point.weight_var) == near(entry["sigma_b_0_limit"]["sigma_w"])


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_homogeneous_edge_is_one_point(reference, name):
    expected = reference("edge_of_chaos")["edge_of_chaos"][name]["sigma_b_0"]
    point = edge_of_chaos(named(name), 0.0)
    assert point.any_q
    assert point.weight_var == near(expected["sigma_w2"], 1e-12)
    assert edge_of_chaos(named(name), 0.01) is None


def test_edges_that_are_not_in_the_reference():
    assert edge_of_chaos("tanh", 0.05).weight_var == pytest.approx(1.76, abs=0.002)  # as published
    assert edge_of_chaos("softplus", 0.3) is None
    unstable = edge_of_chaos("gelu", 0.0)
    assert (unstable.q, unstable.stable) == (0.0, False)
    assert unstable.weight_var == pytest.approx(4.0, rel=1e-12)
    selu = edge_of_chaos("selu", 0.0)
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    assert selu.weight_var == pytest.approx(2 / (scale**2 * (1 + alpha**2)), rel=1e-12)
    assert edge_of_chaos("sin", 0.0).weight_var == pytest.approx(1.0, rel=1e-12)


@few
@given(st.sampled_from(["tanh", "erf", "gelu", "silu", "elu", "selu", "hard_tanh", "sigmoid"]), st.floats(0.02, 1.0))
def test_edge_satisfies_both_equations(name, bias_var):
    for point in critical_points(name, bias_var):
        assert chi(name, point.q, point.weight_var) == pytest.approx(1.0, rel=1e-10)
        assert length_map(name, point.q, point.weight_var, bias_var) == pytest.approx(point.q, rel=1e-10)
        assert point.stable == (length_map_slope(name, point.q, point.weight_var, bias_var) < 1.0)


@few
@given(
    st.sampled_from(["tanh", "erf", "gelu", "silu", "elu", "selu", "sigmoid", "softplus", "relu"]),
    st.floats(0.1, 6.0),
    st.floats(0.0, 1.0),
)
def test_fixed_points_satisfy_the_equation_and_alternate(name, weight_var, bias_var):
    points = length_fixed_points(name, weight_var, bias_var)
    for point in points:
        assert length_map(name, point.value, weight_var, bias_var) == pytest.approx(point.value, rel=1e-9, abs=1e-12)
    for point, after in itertools.pairwise(points):
        assert point.stable != after.stable
    for point in points:
        if point.value > 0.0 and abs(point.slope - 1.0) > 1e-3:
            q = 1.001 * point.value
            for _ in range(3):
                moved = length_map(name, q, weight_var, bias_var)
                assert (abs(moved - point.value) < abs(q - point.value)) == point.stable
                q = moved


@few
@given(st.sampled_from(["identity", "relu", "leaky_relu", "prelu"]), st.floats(0.05, 0.9), st.floats(0.001, 1.0))
def test_homogeneous_fixed_point_is_a_geometric_series(name, gain, bias_var):
    weight_var = gain / mean_derivative_squared(name, 1.0)
    (point,) = length_fixed_points(name, weight_var, bias_var)
    assert point.value == pytest.approx(bias_var / (1.0 - gain), rel=1e-10)
    assert point.slope == pytest.approx(gain, rel=1e-10)


def test_fixed_points_at_zero():
    (zero,) = length_fixed_points("tanh", 1.0)
    assert (zero.value, zero.slope, zero.stable) == (0.0, pytest.approx(1.0), True)  # decays as 1/(2 l)
    zero, unstable = length_fixed_points("gelu", (5 / 3) ** 2)
    assert zero.stable
    assert not unstable.stable
    assert unstable.value == near(0.3773391623031034)
    (every,) = length_fixed_points("relu", 2.0)
    assert (every.value, every.slope) == (1.0, 1.0)
    assert length_fixed_points("softplus", 2.0) == ()


def test_depth_scale_of_a_slope():
    assert depth_scale(math.exp(-1 / 7)) == pytest.approx(7.0, rel=1e-12)
    assert depth_scale(-math.exp(-1 / 7)) == pytest.approx(7.0, rel=1e-12)
    assert (depth_scale(0.0), depth_scale(1.0), depth_scale(1.3)) == (0.0, math.inf, math.inf)
    edge = edge_of_chaos("tanh", 0.04)
    assert depth_scales("tanh", edge.weight_var, 0.04).xi_c > 1e9


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: edge_of_chaos("tanh", -0.1), "bias_var is -0.1"),
        (lambda: edge_of_chaos("hardshrink", 0.1), "jumps at -0.5"),
        (lambda: length_fixed_points("tanh", math.nan), "weight_var is nan"),
        (lambda: depth_scales("tanh", 0.5), r"0 stable fixed points"),
        (lambda: depth_scales("relu", 2.5, 0.1), r"0 stable fixed points"),
        (lambda: depth_scales("tanh", 2.0, 0.1, q=0.3), "no fixed point"),
        (lambda: depth_scales("tanh", 2.0, 0.1, q=-1.0), "q is -1"),
        (lambda: phase_diagram("tanh", weight_var=(2.0, 1.0)), "weight_var is"),
        (lambda: phase_diagram("tanh", points=1), "points is 1"),
    ],
)
def test_what_has_no_phase_is_refused(call, why):
    with pytest.raises(PropagationError, match=why):
        call()


@pytest.mark.parametrize("name", ["tanh", "gelu", "relu"])
def test_phase_diagram(name, tmp_path):
    figure = phase_diagram(name, path=tmp_path / "phase.png", points=25)
    assert (tmp_path / "phase.png").read_bytes().startswith(b"\x89PNG")
    axes = figure.axes[0]
    assert name in axes.get_title()
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "gradients vanish" in words
    assert ("gradients explode" in words) == (name != "relu")  # GELU: the strip up to weight_var 2, beyond its edge
    assert ("signal grows without bound" in words) == (name != "tanh")
    assert ("edge of chaos, unstable" in words) == (name == "gelu")
    if name == "tanh":
        edge = next(line for line in axes.lines if line.get_label() == "edge of chaos")
        x, y = np.asarray(edge.get_xdata()), np.asarray(edge.get_ydata())
        assert np.interp(0.04, y[np.isfinite(y)], x[np.isfinite(y)]) == pytest.approx(1.7008, abs=0.01)


def test_a_user_s_own_activation_has_phases():
    swish = lambda x: x * (1.702 * x).sigmoid()  # noqa: E731
    point = edge_of_chaos(swish, 1.0)
    assert chi(swish, point.q, point.weight_var) == pytest.approx(1.0, rel=1e-9)
    plain = dataclasses.replace(activation("relu"), closed=None)
    assert edge_of_chaos(plain).weight_var == pytest.approx(2.0, rel=1e-12)

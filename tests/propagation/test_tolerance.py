"""The scatter of finite nets follows the laws that the bands are made of."""

import math

import numpy as np
import pytest

from trimtab.propagation import (
    PropagationError,
    activation,
    backward_log_variance,
    band,
    expectation,
    forward_log_variance,
    forward_log_variance_step,
    gradient_log_variance,
    length_map,
    saturated_share,
    softmax_loss_at_init,
)

WEIGHT_VAR = {"1.000": 1.0, "1.414": 2.0, "1.304": 1.3041458401**2, "1.500": 2.25}


def fixed_point(phi, weight_var, bias_var):
    q = 1.0
    for _ in range(60):
        q = length_map(phi, q, weight_var, bias_var)
    return q


def test_closed_forms():
    n, depth = 40, 7
    linear, relu = activation("identity"), activation("relu")
    assert backward_log_variance(relu, n) == pytest.approx(5 / n, rel=1e-12)
    assert backward_log_variance(linear, n, 3.0) == pytest.approx(2 / n, rel=1e-12)
    layers = np.arange(1, depth + 1)
    np.testing.assert_allclose(forward_log_variance(linear, 1.0, 1.0, 0.0, [n] * depth), 2 * layers / n, rtol=1e-12)
    np.testing.assert_allclose(
        forward_log_variance(relu, 1.0, 2.0, 0.0, [n] * depth), (5 * (layers - 1) + 2) / n, rtol=1e-12
    )
    assert gradient_log_variance(relu, 1.0, 2.0, 0.0, [n] * depth) == pytest.approx(5 * depth / n, rel=1e-12)


def test_widths_add_up():
    linear = activation("identity")
    np.testing.assert_allclose(
        forward_log_variance(linear, 1.0, 1.0, 0.0, [10, 20, 40]), [0.2, 0.2 + 0.1, 0.2 + 0.1 + 0.05], rtol=1e-12
    )
    assert gradient_log_variance(linear, 1.0, 1.0, 0.0, [10, 20, 40]) == pytest.approx(0.35, rel=1e-12)


def test_reference_nets(reference):
    for name, row in reference("finite_width")["rows"].items():
        _, _, kind, sw, sb, n, depth = name.split()
        weight_var, bias_var, width = WEIGHT_VAR[sw[3:]], float(sb[3:]) ** 2, int(n[2:])
        phi = activation(kind)
        q = fixed_point(phi, weight_var, bias_var)
        spread = forward_log_variance(phi, q, weight_var, bias_var, [width] * int(depth[2:]))[-1]
        assert spread == pytest.approx(row["pred"], rel=1e-4), name
        assert abs(row["var_log_q_measured"] - spread) < 4 * row["se"], name
        gradient = gradient_log_variance(phi, q, weight_var, bias_var, [width] * int(depth[2:]))
        assert gradient == pytest.approx(row["var_log_jvp_measured"], rel=0.25), name
        centre = sum(band(0.0, spread)) / 2
        assert row["mean_log_q_minus_pred"] == pytest.approx(centre, abs=5 * math.sqrt(spread / 150) + 0.05), name


@pytest.mark.parametrize(("weight_var", "bias_var"), [(2.25, 0.0), (1.7008, 0.04)])
def test_gradients_of_tanh_nets_scatter_as_the_coupled_law_says(weight_var, bias_var):
    """300 nets of width 60 and depth 12, a random gradient sent back; the law without coupling is visibly too low."""
    rng, n, depth, nets = np.random.default_rng(0), 60, 12, 300
    phi = activation("tanh")
    q = fixed_point(phi, weight_var, bias_var)
    u = math.sqrt(q) * rng.standard_normal((nets, n, 1))
    weights, slopes = [], []
    for _ in range(depth):
        slopes.append(phi.derivative(u))
        weights.append(rng.standard_normal((nets, n, n)) * math.sqrt(weight_var / n))
        u = weights[-1] @ phi.value(u) + math.sqrt(bias_var) * rng.standard_normal((nets, n, 1))
    g = rng.standard_normal((nets, n, 1))
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    for weight, slope in zip(weights[::-1], slopes[::-1], strict=True):
        g = slope * (weight.transpose(0, 2, 1) @ g)
    measured = np.var(np.log(np.sum(g**2, axis=(1, 2))))
    law = gradient_log_variance(phi, q, weight_var, bias_var, [n] * depth)
    assert measured == pytest.approx(law, rel=4 * math.sqrt(2 / nets))
    assert law > 1.15 * depth * backward_log_variance(phi, n, q)


def test_a_tanh_layer_alone_is_the_general_formula():
    """One draw of weights and units at a time: Var log of sum phi'^2 g^2 for independent Gaussian u and g."""
    rng, n, phi = np.random.default_rng(1), 200, activation("tanh")
    u, g = rng.standard_normal((2, 4000, n)) * math.sqrt(1.7), rng.standard_normal((4000, n))
    measured = np.var(np.log(np.mean((phi.derivative(u[0]) * g) ** 2, axis=1)))
    assert measured == pytest.approx(backward_log_variance(phi, n, 1.7), rel=0.1)


def test_band():
    low, high = band(1.0, 0.04)
    assert (low, high) == pytest.approx((0.98 - 0.6, 0.98 + 0.6))
    assert band(1.0, 0.0) == (1.0, 1.0)
    assert band(1.0, 0.04, 1.0) == pytest.approx((0.78, 1.18))


@pytest.mark.parametrize("width", [0.0, -3.0, math.nan])
def test_what_is_no_width_is_refused(width):
    relu = activation("relu")
    with pytest.raises(PropagationError, match="width"):
        backward_log_variance(relu, width)
    with pytest.raises(PropagationError, match="width"):
        forward_log_variance(relu, 1.0, 2.0, 0.0, [width])
    with pytest.raises(PropagationError, match="width"):
        gradient_log_variance(relu, 1.0, 2.0, 0.0, [width])
    with pytest.raises(PropagationError, match="width"):
        forward_log_variance_step(relu, 1.0, 2.0, 0.0, width, 0.0)


def test_a_dead_activation_has_no_log():
    with pytest.raises(PropagationError, match="passes no gradient"):
        backward_log_variance(activation("hardshrink", lambd=100.0), 10)


def test_saturated_share_of_healthy_layers():
    normal = lambda z: math.erfc(z / math.sqrt(2))  # noqa: E731
    assert saturated_share(activation("tanh"), 1.0) == pytest.approx(normal(math.atanh(math.sqrt(0.95))), rel=1e-9)
    assert saturated_share(activation("tanh"), 1.0) == pytest.approx(0.029, abs=0.001)
    assert saturated_share(activation("sigmoid"), 1.0) == pytest.approx(1.3e-5, rel=0.05)
    assert saturated_share(activation("sigmoid"), 25.0) == pytest.approx(normal(4.3568 / 5), rel=1e-3)
    assert saturated_share(activation("relu"), 7.0) == pytest.approx(0.5, rel=1e-12)
    assert saturated_share(activation("hard_tanh"), 4.0) == pytest.approx(normal(0.5), rel=1e-9)
    assert saturated_share(activation("hard_tanh"), 1e-6) == 0.0
    assert saturated_share(activation("identity"), 1.0) == 0.0
    assert saturated_share(activation("relu"), 1.0, mean=-20.0) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "elu", "hard_swish", "tanhshrink", "sin"])
def test_saturated_share_is_the_expectation_of_its_indicator(name):
    phi = activation(name)
    flat = lambda u: np.abs(phi.derivative(u)) < 0.05 * phi.derivative_max  # noqa: E731
    assert saturated_share(phi, 4.0, mean=0.3) == pytest.approx(expectation(flat, 4.0, 0.3, phi.kinks), abs=2e-3)


@pytest.mark.parametrize(("q", "threshold"), [(0.0, 0.05), (-1.0, 0.05), (1.0, 0.0), (1.0, 1.5), (1.0, math.nan)])
def test_saturation_refuses_what_it_cannot_use(q, threshold):
    with pytest.raises(PropagationError):
        saturated_share(activation("tanh"), q, threshold)


def test_softmax_loss_at_init(reference):
    rows = reference("small_laws")["rows"]
    for classes in (10, 1000):
        for s in (0.5, 1.0, 2.0):
            measured, _, _, predicted = rows[f"init loss K={classes} s={s}"]
            loss = softmax_loss_at_init(classes, s**2)
            assert loss == pytest.approx(predicted, rel=1e-12)
            assert s > 1 or loss == pytest.approx(measured, rel=0.01)
    for wrong in ((1, 1.0), (10, -1.0), (10, math.nan)):
        with pytest.raises(PropagationError):
            softmax_loss_at_init(*wrong)

"""Gains agree with the reference moments, with closed forms and with nets of width 1000."""

import math

import pytest
import torch

from trimtab.propagation import (
    PropagationError,
    activation,
    batchnorm_rate,
    chi,
    expectation,
    first_moment,
    forward_log_variance,
    gradient_log_variance,
    length_map,
    length_map_slope,
    mean_derivative_squared,
    second_moment,
    torch_default_gain,
)

NAMES = [
    "identity",
    "relu",
    "leaky_relu_0.01",
    "tanh",
    "erf",
    "sigmoid",
    "gelu",
    "silu",
    "elu",
    "selu",
    "hard_tanh",
    "softplus",
]


def named(name):
    return activation("leaky_relu" if name == "leaky_relu_0.01" else name)


@pytest.mark.parametrize("name", NAMES)
def test_reference_moments(reference, name):
    phi, moments = named(name), reference("moments")["moments"]
    assert set(moments) == set(NAMES)
    for text, expected in moments[name].items():
        q = float(text)
        first, second, slope = first_moment(phi, q), second_moment(phi, q), mean_derivative_squared(phi, q)
        bn = batchnorm_rate(phi, math.sqrt(q))
        found = {
            "E_phi": first,
            "E_phi2": second,
            "var_phi": second - first**2,
            "E_dphi": expectation(phi.derivative, q, 0.0, phi.kinks),
            "E_dphi2": slope,
            "dEphi2_dq": length_map_slope(phi, q, 1.0) * second / q,
            "bn_rate_large_batch": bn / q,
            "gain_forward": math.sqrt(q / second),
            "gain_backward": slope**-0.5,
            "nf_gamma": (second - first**2) ** -0.5,
        }
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("q", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("slope", [0.0, 0.01, 0.25, -1.0])
def test_relu_family_is_closed(q, slope):
    """E phi^2 = q (1 + a^2)/2 and E phi'^2 = (1 + a^2)/2 (He et al. 2015)."""
    phi = activation("leaky_relu", negative_slope=slope)
    assert second_moment(phi, q) == pytest.approx(q * (1 + slope**2) / 2, rel=1e-12)
    assert mean_derivative_squared(phi, q) == pytest.approx((1 + slope**2) / 2, rel=1e-12)
    assert chi(phi, q, 2 / (1 + slope**2)) == pytest.approx(1.0, rel=1e-12)
    assert length_map(phi, q, 2 / (1 + slope**2), 0.1) == pytest.approx(q + 0.1, rel=1e-12)


def test_batchnorm_rate_survives_a_small_gamma_and_refuses_none():
    assert batchnorm_rate(activation("sigmoid"), 1e-6) == pytest.approx(1.0, rel=1e-9)
    with pytest.raises(PropagationError, match="gamma"):
        batchnorm_rate(activation("tanh"), 0.0)
    with pytest.raises(PropagationError, match="does not vary"):
        batchnorm_rate(activation("relu"), 1.0, -50.0)


def test_slope_needs_a_signal():
    with pytest.raises(PropagationError, match="q' > 0"):
        length_map_slope(activation("tanh"), 0.0, 1.0)


def test_torch_default_gain_of_relu():
    gain = torch_default_gain(activation("relu"), 1000, 0.5)
    assert gain.forward == pytest.approx(1 / 6 + 1 / (3 * 1000 * 0.5), rel=1e-12)
    assert gain.backward == pytest.approx(1 / 6, rel=1e-12)


def test_default_init_relu_reference(reference):
    measured, predicted = reference("small_laws")["rows"]["default-init ReLU q per layer measured/pred"]
    q = predicted[0]
    for k, expected in enumerate(predicted):
        assert q == pytest.approx(expected, rel=1e-9)
        spread = forward_log_variance(activation("relu"), 1.0, 1 / 3, 0.0, [1000] * 5)[k] ** 0.5
        assert abs(math.log(measured[k] / q)) < 3 * spread
        q *= torch_default_gain(activation("relu"), 1000, q).forward


@pytest.mark.parametrize("seed", range(5))
def test_default_init_relu_stack_of_width_1000(seed):
    """Forward and backward through five Linear+ReLU layers as PyTorch makes them, within the finite-width law."""
    torch.manual_seed(seed)
    n, depth, phi = 1000, 5, activation("relu")
    layers = [torch.nn.Linear(n, n) for _ in range(depth)]
    h, seen = torch.randn(1, n), []
    start = float((h**2).mean())
    for layer in layers:
        h = layer(h)
        h.retain_grad()
        seen.append(h)
        h = torch.relu(h)
    seen[-1].backward(torch.randn(1, n))
    q, spread = start / 3 + 1 / (3 * n), forward_log_variance(phi, start / 3, 1 / 3, 1 / (3 * n), [n] * depth)
    for pre, variance in zip(seen, spread, strict=True):
        assert abs(math.log(float((pre.detach() ** 2).mean()) / q)) < 4 * variance**0.5
        q *= torch_default_gain(phi, n, q).forward
    gain = float((seen[0].grad ** 2).mean() / (seen[-1].grad ** 2).mean())
    allowed = 4 * gradient_log_variance(phi, start / 3, 1 / 3, 0.0, [n] * (depth - 1)) ** 0.5
    assert abs(math.log(gain) - (depth - 1) * math.log(1 / 6)) < allowed


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_what_is_no_variance_of_weights_is_refused(wrong):
    with pytest.raises(PropagationError, match="weight_var is"):
        chi("tanh", 1.0, wrong)
    with pytest.raises(PropagationError, match="weight_var is"):
        length_map("tanh", 1.0, wrong)
    with pytest.raises(PropagationError, match="bias_var is"):
        length_map("tanh", 1.0, 1.0, wrong)

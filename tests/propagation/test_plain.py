"""A plain net by theory alone: against nets that are drawn, closed forms, and what is printed."""

import itertools
import math

import numpy as np
import pytest
import torch

from trimtab.propagation import (
    PropagationError,
    activation,
    backward_log_variance,
    edge_of_chaos,
    expectation,
    gradient_log_variance,
    gradient_log_variances,
    length_limit,
    length_map,
    mean_derivative_squared,
    plain_net,
    second_moment,
    trajectory,
)

NAMES = {"tanh": torch.tanh, "relu": torch.relu, "gelu": torch.nn.functional.gelu}


def drawn(name, weight_var, bias_var, depth, width, nets, seed=0):
    """q and c of two unlike inputs, and the squared gradient over the last layer's, of each net and layer."""
    generator = torch.Generator().manual_seed(seed)
    phi, out = NAMES[name], []
    for _ in range(nets):
        x = torch.randn(2, width, generator=generator, dtype=torch.float64)
        a, b = x[0] / x[0].norm(), x[1] - (x[1] @ x[0]) * x[0] / (x[0] @ x[0])
        h, layers = torch.stack([a, b / b.norm()]) * width**0.5, []
        h.requires_grad_()
        for layer in range(depth):
            w = torch.randn(width, width, generator=generator, dtype=torch.float64) * (weight_var / width) ** 0.5
            h = (phi(h) if layer else h) @ w.T + bias_var**0.5 * torch.randn(
                width, generator=generator, dtype=torch.float64
            )
            layers.append(h)
        signs = torch.randint(0, 2, (width,), generator=generator).double() * 2 - 1
        gradients = [g[0] for g in torch.autograd.grad((h[0] * signs).sum(), layers)]
        with torch.no_grad():
            q = [float(h[0].square().mean()) for h in layers]
            c = [float(h[0] @ h[1] / width) for h in layers]
            g = [math.log(float(g.square().sum() / gradients[-1].square().sum())) for g in gradients]
        out.append((q, c, g))
    return np.array(out)


@pytest.mark.parametrize(
    ("name", "weight_var", "bias_var"),
    [("tanh", 1.5, 0.05), ("relu", 2.0, 0.0), ("tanh", 3.0, 0.1), ("gelu", 2.0, 0.1)],
)
def test_against_nets_that_are_drawn(name, weight_var, bias_var):
    nets, width, depth = 60, 150, 10
    net, found = (
        plain_net(name, weight_var, bias_var, depth=depth, width=width),
        drawn(name, weight_var, bias_var, depth, width, nets),
    )
    q, covariance, gradient = found[:, 0], found[:, 1], found[:, 2]
    error = q.std(0, ddof=1) / nets**0.5
    assert np.all(np.abs(q.mean(0) - net.course.q) < 4 * error + 0.02 * net.course.q)
    error = covariance.std(0, ddof=1) / nets**0.5
    assert np.all(np.abs(covariance.mean(0) - net.course.c * net.course.q) < 4 * error + 0.02 * net.course.q)
    held = [
        np.mean((q >= net.q_low) & (q <= net.q_high)),
        np.mean((gradient >= net.log_gradient_low - 1e-9) & (gradient <= net.log_gradient_high + 1e-9)),
    ]
    assert min(held) > 0.95
    spread = (net.log_gradient_high - net.log_gradient_low)[:-1] / 6
    assert np.all(np.abs(np.log(gradient.std(0, ddof=1)[:-1] / spread)) < 0.45)  # calibrated, not just wide


@pytest.mark.parametrize("name", ["tanh", "gelu", "selu"])
def test_variances_of_gradients_are_those_of_the_linear_recursion(name):
    """S + 2 b C + b^2 T layer by layer from the bottom, the way it was derived, for the first layer."""
    phi = activation(name)
    q, weight_var, bias_var, width = 0.8, 1.4, 0.05, 200.0

    def step(q):  # by differences, instead of the formulas
        h = 1e-4
        after = length_map(name, q, weight_var, bias_var)
        slope = (
            length_map(name, q * (1 + h), weight_var, bias_var) - length_map(name, q * (1 - h), weight_var, bias_var)
        ) / (2 * h * after)
        passed, square = mean_derivative_squared(name, q), second_moment(name, q)
        turn = (mean_derivative_squared(name, q * (1 + h)) - mean_derivative_squared(name, q * (1 - h))) / (
            2 * h * passed
        )
        forward = (weight_var / after) ** 2 * (expectation(lambda u: phi.value(u) ** 4, q, 0.0, phi.kinks) - square**2)
        both = expectation(lambda u: (phi.value(u) * phi.derivative(u)) ** 2, q, 0.0, phi.kinks)
        return (
            after,
            slope,
            turn,
            forward,
            backward_log_variance(name, 1.0, q),
            weight_var / after * (both / passed - square),
        )

    spread = shared = lengths = 0.0
    for _ in range(12):
        q, slope, turn, forward, backward, covariance = step(q)
        spread += turn**2 * lengths + 2 * turn * shared + backward / width
        shared = slope * (shared + turn * lengths) + covariance / width
        lengths = slope**2 * lengths + forward / width
    found = gradient_log_variances(name, 0.8, weight_var, bias_var, [width] * 12)
    assert found.shape == (13,)
    assert found[0] == pytest.approx(spread, rel=1e-5)
    assert found[0] == gradient_log_variance(name, 0.8, weight_var, bias_var, [width] * 12)
    assert found[-1] == 0.0


def test_variances_of_relu_gradients_add_up():
    found = gradient_log_variances("relu", 1.0, 2.0, 0.0, [100] * 9)
    assert found == pytest.approx([5 * left / 100 for left in range(9, -1, -1)], rel=1e-9)


def test_the_first_layer_is_linear_and_the_rest_is_the_trajectory():
    net = plain_net("tanh", 1.5, 0.05, depth=20, input_q=2.0, input_c=0.5)
    course = trajectory("tanh", 3.05, 1.5, 0.05, depth=20, c=1.55 / 3.05)
    assert net.course.q == pytest.approx(course.q)
    assert net.course.c == pytest.approx(course.c)
    assert net.course.log_gradient == pytest.approx(course.log_gradient)


@pytest.mark.parametrize(
    ("name", "weight_var", "bias_var", "phase", "limit"),
    [
        ("tanh", 1.5, 0.05, "ordered", 0.41803720053347),
        ("tanh", 1.7609546396, 0.05, "edge", 0.5700478816),
        ("tanh", 4.0, 0.05, "chaotic", 2.19549392803448),
        ("relu", 2.0, 0.0, "edge", 2.0),
        ("relu", 1.0, 0.0, "ordered", 0.0),
        ("relu", 2.5, 0.1, "chaotic", math.inf),
        ("gelu", 2.0, 0.0, "ordered", 0.0),
    ],
)
def test_phases(name, weight_var, bias_var, phase, limit):
    net = plain_net(name, weight_var, bias_var, depth=8)
    assert net.phase == phase
    assert net.limit == pytest.approx(limit, rel=1e-6)
    assert (net.scales is None) == (limit in {0.0, math.inf})
    assert net.critical == edge_of_chaos(name, bias_var)


@pytest.mark.parametrize("name", ["tanh", "gelu", "selu", "softplus"])
@pytest.mark.parametrize("start", [0.05, 1.0, 30.0])
def test_the_limit_is_where_iteration_goes(name, start):
    q, limit = start, length_limit(name, start, 1.3, 0.1)
    for _ in range(400):
        q = length_map(name, q, 1.3, 0.1)
        if q > 1e8:
            break
    assert q > 1e8 if math.isinf(limit) else q == pytest.approx(limit, rel=1e-6)


def test_the_table():
    text = str(plain_net("tanh", 1.5, 0.05, depth=50))
    lines = text.splitlines()
    assert "ordered: gradients vanish" in lines[0]
    assert "1.761" in next(line for line in lines if line.startswith("  edge"))
    assert "ξ_c = 15.8 layers" in text
    rows = [line.split() for line in lines if line[:5].strip().isdigit()]
    assert [rows[0][0], rows[-1][0]] == ["1", "50"]
    assert len(rows) == 11
    for before, after in itertools.pairwise(rows):
        assert len(after[-1]) >= len(before[-1])  # the gradient falls towards the input, and so does the bar


@pytest.mark.parametrize(
    ("name", "weight_var", "bias_var", "depth"),
    [
        ("silu", 3.0, 0.1, 20),
        ("relu", 2.0, 0.0, 100),
        ("gelu", 2.0, 0.0, 60),
        ("tanh", 4.0, 0.05, 70),
        ("hard_tanh", 1.2, 0.3, 1),
    ],
)
def test_no_line_is_wider_than_a_terminal(name, weight_var, bias_var, depth):
    text = str(plain_net(name, weight_var, bias_var, depth=depth))
    assert max(map(len, text.splitlines())) <= 80
    assert "nan" not in text


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: plain_net("tanh", 0.0, depth=3), "weight_var is 0"),
        (lambda: plain_net("tanh", 1.0, -0.1, depth=3), "bias_var is -0.1"),
        (lambda: plain_net("tanh", 1.0, depth=0), "depth is 0"),
        (lambda: plain_net("tanh", 1.0, depth=2.5), "depth is 2.5"),
        (lambda: plain_net("tanh", 1.0, depth=3, width=1), "width is 1"),
        (lambda: plain_net("tanh", 1.0, depth=3, input_q=0.0), "input_q is 0"),
        (lambda: plain_net("tanh", 1.0, depth=3, input_c=2.0), "input_c is 2"),
        (lambda: plain_net("hardshrink", 1.0, depth=3), "jumps"),
        (lambda: plain_net("relu", 1e-30, depth=30), "no signal is left at layer 11"),
        (lambda: plain_net("relu", 1e30, depth=30), "overflows at layer 11"),
    ],
)
def test_what_is_no_net_is_refused(call, why):
    with pytest.raises(PropagationError, match=why):
        call()

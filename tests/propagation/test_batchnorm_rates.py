"""How fast normalised nets let gradients grow: the paper's numbers, the measured ones, and nets made here."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from trimtab.propagation import PropagationError, activation, batchnorm_rate, layernorm_rate


def named(name):
    return activation("leaky_relu" if name.startswith("leaky") else name)


def open_form(name):
    """The same activation, without what is known of it in closed form."""
    return dataclasses.replace(activation(name), closed=None)


def test_relu_is_eq_25_of_yang(reference):
    table = reference("yang_relu_rate")
    for batch, rate in table["relu_rate_by_B"].items():
        assert batchnorm_rate("relu", batch=int(batch)) == pytest.approx(rate, rel=1e-12)
    assert batchnorm_rate("relu") == pytest.approx(table["relu_limit"], rel=1e-12)


@pytest.mark.parametrize("batch", [4, 5, 6, 8, 16, 64, 512, 10000])
def test_quadrature_over_the_sphere_is_the_closed_law(batch):
    assert batchnorm_rate("identity", batch=batch) == pytest.approx((batch - 2) / (batch - 3), rel=1e-12)
    assert batchnorm_rate(open_form("identity"), batch=batch) == pytest.approx((batch - 2) / (batch - 3), rel=1e-10)
    assert batchnorm_rate(open_form("relu"), batch=batch) == pytest.approx(
        batchnorm_rate("relu", batch=batch), rel=1e-10
    )
    for gamma in (0.25, -3.0):
        assert batchnorm_rate("leaky_relu", gamma, batch=batch) == pytest.approx(
            batchnorm_rate(open_form("leaky_relu"), gamma, batch=batch), rel=1e-10
        )


@pytest.mark.parametrize("name", ["tanh", "gelu", "hard_tanh"])
def test_large_batches_reach_the_large_batch_law(name):
    for gamma, beta in ((1.0, 0.0), (0.5, 0.3)):
        excess = [
            batchnorm_rate(name, gamma, beta, batch) / batchnorm_rate(name, gamma, beta) - 1 for batch in (100, 1000)
        ]
        assert excess[0] / excess[1] == pytest.approx(10.0, rel=0.1)  # the difference falls as 1/B


def test_reference_rates(reference):
    rows = reference("bn_gradient_rate")["rows"]
    assert len(rows) == 30
    for row in rows:
        phi, gamma, batch = named(row["act"]), row["gamma"], row["B"]
        assert batchnorm_rate(phi, gamma) == pytest.approx(row["rate_pred_large_batch"], rel=1e-9)
        if row.get("rate_pred_finite") is not None:
            assert batchnorm_rate(phi, gamma, batch=batch) == pytest.approx(row["rate_pred_finite"], rel=1e-9)
        # SiLU at gamma 1 measures 4.2 % higher where the width is four times the batch. That is the finite width: at 16 times
        # it is 0.5 % (width 1000, batch 64), at 4 times 2.4 % (250, 64); the test of nets below has 31 times.
        allowed = 0.045 if (row["act"], gamma) == ("silu", 1.0) else 0.03
        assert np.mean(row["rate_measured"]) == pytest.approx(batchnorm_rate(phi, gamma, batch=batch), rel=allowed)


def rate_of_a_net(name, norm, rows, width, depth, seed):
    """Mean growth per layer of the squared gradient over the middle of a plain net in float64."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    phi = {
        "relu": torch.relu,
        "tanh": torch.tanh,
        "gelu": functional.gelu,
        "silu": functional.silu,
        "hard_tanh": functional.hardtanh,
    }[name]
    h, seen = draw(rows, width).requires_grad_(True), []
    for _ in range(depth):
        seen.append(h)
        h.retain_grad()
        y = (
            functional.batch_norm(h, None, None, training=True, eps=1e-12)
            if norm == "batch"
            else functional.layer_norm(h, (width,), eps=1e-12)
        )
        h = phi(y) @ (draw(width, width) / math.sqrt(width))
    h.backward(draw(rows, width))
    squares = [float((x.grad**2).sum()) for x in seen]
    first, last = depth // 3, depth - 2
    return (squares[first] / squares[last]) ** (1.0 / (last - first))


@pytest.mark.parametrize(("name", "batch"), [("tanh", 8), ("gelu", 16), ("silu", 16), ("hard_tanh", 6)])
def test_finite_batches_of_other_activations_against_nets(name, batch):
    measured = np.mean([rate_of_a_net(name, "batch", batch, 500, 18, seed) for seed in range(4)])
    assert measured == pytest.approx(batchnorm_rate(name, batch=batch), rel=0.03)


@pytest.mark.parametrize(("name", "exact"), [("relu", 1.0), ("tanh", 0.4644029024 / 0.3942944904)])
def test_layernorm_rate_against_nets(name, exact):
    assert layernorm_rate(name) == pytest.approx(exact, rel=1e-9)
    measured = np.mean([rate_of_a_net(name, "layer", 64, 300, 18, seed) for seed in range(4)])
    assert measured == pytest.approx(layernorm_rate(name, width=300), rel=0.03)


def test_layernorm_rate_of_a_finite_width():
    assert layernorm_rate("relu", width=100) == pytest.approx(0.98, rel=1e-12)
    assert layernorm_rate("relu", width=100, centred=False) == pytest.approx(0.99, rel=1e-12)
    assert layernorm_rate("leaky_relu", gamma=3.0) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: batchnorm_rate("relu", batch=3), "batch is 3"),
        (lambda: batchnorm_rate("relu", batch=4.5), "batch is 4.5"),
        (lambda: batchnorm_rate("relu", batch=math.nan), "batch is nan"),
        (lambda: batchnorm_rate("relu", batch=-math.inf), "batch is -inf"),
        (lambda: batchnorm_rate("relu", 0.0), "gamma"),
        (lambda: batchnorm_rate("relu", 1.0, math.inf), "beta is inf"),
        (lambda: batchnorm_rate("relu", 1.0, -50.0, 16), "does not vary"),
        (lambda: layernorm_rate("relu", 0.0), "gamma"),
        (lambda: layernorm_rate("relu", width=1), "width is 1"),
        (lambda: layernorm_rate("relu", 1.0, -50.0), "passes no signal"),
    ],
)
def test_what_has_no_rate_is_refused(call, why):
    with pytest.raises(PropagationError, match=why):
        call()

"""Rules one by one, against the mean over many draws of the weights."""

import math

import numpy as np
import pytest
import torch
from prediction_draws import Said, over_draws
from torch import nn
from torch.nn import functional

from trimtab.prediction import predict
from trimtab.prediction.axes import contract, named, reshaped
from trimtab.prediction.fields import applied, field_of, passed, state_of
from trimtab.prediction.state import State, independent, measure
from trimtab.propagation import activation, mean_derivative_squared, second_moment


def test_measure_finds_the_components():
    n, c = 400, 300
    of_sample, of_unit = ((z - z.mean()) / z.std() for z in (torch.randn(n, 1), torch.randn(1, c)))
    x = 0.5 + of_sample * 0.7 + of_unit * 0.4 + torch.randn(n, c)
    kappa = measure(x).kappa
    assert kappa[1, 1] == pytest.approx(0.25 + 0.49 + 0.16 + 1, rel=0.05)
    assert kappa[1, 0] == pytest.approx(0.25 + 0.49, rel=0.05)
    assert kappa[0, 1] == pytest.approx(0.25 + 0.16, rel=0.05)
    assert kappa[0, 0] == pytest.approx(0.25, rel=0.05)


def test_contract_is_the_mean_over_weights():
    x = torch.randn(50, 1, 40) + torch.randn(1, 6, 40) + 0.3
    a = measure(x)
    w = independent((40, 70), 1 / 40)
    found = contract(a, named(a, "ntk"), w, named(w, "km"), [["n0"], ["t0"], ["m0"]])
    draws = [measure(x @ (torch.randn(40, 70) / math.sqrt(40))).kappa for _ in range(30)]
    assert np.mean(draws, 0)[..., 1] == pytest.approx(found.kappa[..., 1], rel=0.1, abs=0.03)


def test_views_keep_the_statistics():
    x = torch.randn(6, 8, 1) + torch.randn(6, 1, 12)
    state = measure(x)
    assert reshaped(reshaped(state, (48, 12)), (6, 8, 12)).kappa == pytest.approx(state.kappa)
    parts = reshaped(state, (6, 8, 3, 4))
    assert parts.dims == ((6,), (8,), (3,), (4,))
    assert parts.second_moment == pytest.approx(state.second_moment)
    back = reshaped(parts, (6, 8, 12))
    assert back.kappa == pytest.approx(state.kappa)


@pytest.mark.parametrize("name", ["relu", "tanh", "gelu", "silu", "elu", "softplus"])
@pytest.mark.parametrize("q", [0.1, 1.0, 9.0])
def test_fields_are_the_quadrature_of_propagation(name, q):
    function = getattr(torch, name, None) or getattr(functional, name)
    field, _ = applied([field_of(1, State(((8,), (8,)), np.array([[0.0, 0.0], [0.3 * q, q]])))], function)
    phi = activation(name)
    assert state_of(field).second_moment == pytest.approx(second_moment(phi, q), rel=1e-6)
    assert passed(field).second_moment == pytest.approx(mean_derivative_squared(phi, q), rel=1e-6)


def test_the_correlation_map_of_relu_is_the_arc_cosine_kernel():
    rho = np.array([[0.0, 0.2], [0.6, 1.0]])
    field, _ = applied([field_of(1, State(((8,), (8,)), rho))], torch.relu)
    closed = (np.sqrt(1 - rho**2) + (math.pi - np.arccos(rho)) * rho) / (2 * math.pi)
    assert state_of(field).kappa == pytest.approx(closed, rel=2e-3)


POOLS = {
    "max": nn.MaxPool2d(2),
    "mean": nn.AvgPool2d(2),
    "adaptive": nn.AdaptiveAvgPool2d(4),
    "global": nn.AdaptiveAvgPool2d(1),
}
CONVOLUTIONS = {
    "stride": {"stride": 2, "padding": 1},
    "groups": {"groups": 4, "padding": 1},
    "depthwise": {"groups": 16, "padding": 1},
    "dilation": {"dilation": 2},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    settings = CONVOLUTIONS[name]
    forward, backward = over_draws(
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, **settings), nn.ReLU()),
        torch.randn(8, 3, 8, 8),
        8,
    )
    assert np.abs(forward).max() < 0.08
    assert np.abs(backward).max() < 0.08


@pytest.mark.parametrize("make", [nn.ConvTranspose2d, nn.ConvTranspose1d, nn.Conv1d, nn.Conv3d])
def test_other_dimensions_and_transposed(make):
    spatial = int(make.__name__[-2])
    batch = torch.randn(4, 6, *(6,) * spatial)
    forward, backward = over_draws(lambda: nn.Sequential(make(6, 12, 3, 2, 1), nn.Tanh(), make(12, 12, 3)), batch, 10)
    assert np.abs(forward).max() < 0.1
    assert np.abs(backward).max() < 0.1


@pytest.mark.parametrize("name", POOLS)
def test_pooling(name):
    def make():
        return nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(), POOLS[name], nn.Flatten(), nn.LazyLinear(10))

    def made():
        model = make()
        model(torch.randn(2, 3, 8, 8))
        return model

    forward, backward = over_draws(made, torch.randn(16, 3, 8, 8), 8)
    assert np.abs(forward[:-1]).max() < 0.06
    assert np.abs(backward).max() < 0.06


NORMS = {
    "batch": lambda: nn.BatchNorm2d(24),
    "group": lambda: nn.GroupNorm(4, 24),
    "instance": lambda: nn.InstanceNorm2d(24),
    "layer": lambda: nn.GroupNorm(1, 24),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms(name):
    forward, backward = over_draws(
        lambda: nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1), NORMS[name](), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), NORMS[name]()
        ),
        torch.randn(8, 3, 8, 8),
        8,
    )
    assert np.abs(forward).max() < 0.06
    assert np.abs(backward).max() < 0.1


FUNCTIONS = {
    "swish by hand": lambda u: u * torch.sigmoid(u),
    "twice": lambda u: u + u,
    "joined": lambda u: torch.cat([u, torch.tanh(u)], 0),
    "chunks": lambda u: torch.cat(u.chunk(4, -1)[::-1], -1),
    "stacked": lambda u: torch.stack([u, -u], 1)[:, 1],
    "softmax": lambda u: 64 * u.softmax(-1),
    "transposed": lambda u: u.t().contiguous().t(),
    "rms": nn.RMSNorm(64),
    "layer norm": nn.LayerNorm(64),
    "dropout": nn.Dropout(0.3),
    "prelu": nn.PReLU(),
    "in place": lambda u: (u * 1.0).tanh_() * 2.0,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_between_layers(name):
    forward, backward = over_draws(
        lambda: Said(FUNCTIONS[name], nn.Linear(64, 64), nn.Linear(64, 64)), 2 * torch.randn(64, 64), 8
    )
    most = 0.16 if name == "softmax" else 0.08  # Gaussian scores as spread as log n are the edge of its law
    assert np.abs(forward).max() < most
    assert np.abs(backward).max() < most


def test_weights_of_any_kind():
    for make in (nn.init.orthogonal_, lambda w: nn.init.uniform_(w, 0.0, 0.1), nn.init.ones_):
        model = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(64, 64), nn.Tanh())])
        for module in model[::2]:
            make(module.weight)
            module.weight.data *= 0.3
        found = predict(model, torch.randn(32, 64))
        assert all(abs(s.forward_error) < 0.2 for s in found), found


def test_padding_masks_leave_their_share_out():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend, self.head = nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(32, 3)

        def forward(self, x, mask):
            return self.head(self.attend(x, x, x, key_padding_mask=mask)[0])

    mask = torch.zeros(8, 12, dtype=torch.bool)
    mask[:, 4:] = True
    found = predict(Attends(), (torch.randn(8, 12, 32), mask))
    assert found.coverage == 1.0, dict(found.uncovered)
    assert abs(found["attend.0"].forward_error) < 0.1

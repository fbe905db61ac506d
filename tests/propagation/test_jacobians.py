"""Singular values by products agree with the dense Jacobian, and with what random matrix theory says of deep nets."""

import copy
import math

import pytest
import torch
from scipy.special import digamma
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from trimtab.errors import NormalizationError
from trimtab.norms import Residual
from trimtab.propagation import PropagationError, jacobian


def dense(function, x):
    """The Jacobian of the whole batch, as a matrix."""
    with sdpa_kernel(SDPBackend.MATH):
        matrix = torch.func.jacrev(function)(x)
    return matrix.reshape(function(x).numel(), x.numel()).detach()


def agrees(found, matrix):
    values = torch.linalg.svdvals(matrix)
    assert (found.rows, found.columns) == tuple(matrix.shape)
    assert found.largest == pytest.approx(float(values[0]), rel=1e-9)
    assert found.smallest == pytest.approx(float(values[-1]), rel=1e-6, abs=1e-12)
    assert abs(found.mean_squared - float(values.square().mean())) < 4.5 * found.mean_squared_error + 1e-12


def chain(depth, width, draw, activation=None):
    layers = []
    for _ in range(depth):
        layer = nn.Linear(width, width, bias=False).double()
        draw(layer.weight)
        layers += [layer] if activation is None else [layer, activation()]
    return nn.Sequential(*layers)


def gaussian(variance):
    return lambda weight: nn.init.normal_(weight, std=math.sqrt(variance / weight.shape[1]))


def test_an_mlp_agrees_with_the_dense_jacobian():
    net = nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 12), nn.GELU(), nn.Linear(12, 5)).double()
    x = torch.randn(3, 7, dtype=torch.float64)
    found = jacobian(net, x, probes=64)
    first = net[0](x)
    agrees(found.end_to_end, dense(net, x))
    agrees(found["0"].spectrum, dense(net[0], x))
    agrees(found["2"].spectrum, dense(net[1:3], first))
    agrees(found["4"].spectrum, dense(net[3:], net[1:3](first)))
    cosine = nn.functional.cosine_similarity(x[[0, 0, 1]], x[[1, 2, 2]]).mean()
    assert found.input_correlation == pytest.approx(float(cosine))
    one = dense(lambda row: net(row[None]), x[0]), dense(lambda row: net(row[None]), x[1])
    two = jacobian(net, x[:2], probes=200)
    signs = torch.randint(0, 2, (4000, 5)).double() * 2 - 1
    expected = nn.functional.cosine_similarity(signs @ one[0], signs @ one[1], dim=1).mean()
    assert two.gradient_correlation == pytest.approx(float(expected), abs=5 * two.gradient_correlation_error)


@pytest.mark.parametrize("training", [True, False])
def test_a_convolutional_net_with_batch_norm_agrees_in_the_mode_it_is_in(training):
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3, stride=2)
    )
    net = net.double().train(training)
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    net(x)
    found = jacobian(net, x, probes=64)
    plain = copy.deepcopy(net)
    plain[1].track_running_stats = not training
    if training:
        plain[1].running_mean = plain[1].running_var = None
    agrees(found.end_to_end, dense(plain, x))


def test_orthogonal_linear_chains_are_isometries():
    net = chain(20, 64, nn.init.orthogonal_)
    found = jacobian(net, torch.randn(2, 64, dtype=torch.float64))
    for spectrum in (found.end_to_end, *(layer.spectrum for layer in found.layers)):
        assert spectrum.smallest == pytest.approx(1.0, abs=1e-12)
        assert spectrum.largest == pytest.approx(1.0, abs=1e-12)
        assert spectrum.mean_squared == pytest.approx(1.0, abs=1e-12)
    assert found.lyapunov == pytest.approx(0.0, abs=1e-12)
    assert found.output_correlation == pytest.approx(found.input_correlation, abs=1e-12)


def test_gaussian_linear_chains_are_not():
    """20 layers of width 200: squared singular values up to 35.2 in one measured draw, law (L+1)^(L+1)/L^L = 55.7."""
    depth, width = 20, 200
    net = chain(depth, width, gaussian(1.0))
    found = jacobian(net, torch.randn(1, width, dtype=torch.float64), layers=["19"], steps=60)
    assert 20.0 < found.end_to_end.largest**2 < (depth + 1) ** (depth + 1) / depth**depth
    assert found.end_to_end.largest_error < 1e-6
    assert found.end_to_end.smallest**2 < 1e-4
    assert found.end_to_end.smallest_error > 0.01 * found.end_to_end.smallest  # and it says that it is a bound
    assert "<" in str(found).splitlines()[2]
    exact = jacobian(net, torch.randn(1, width, dtype=torch.float64), layers=["19"], steps=width)
    assert exact.end_to_end.smallest**2 < 1e-12  # 2e-18, at roundoff


def test_the_lyapunov_growth_of_a_gaussian_chain():
    """E log growth = (psi(n/2) + log(2/n))/2: a Gaussian matrix shrinks a vector, though not its mean square."""
    width, depth = 10, 60
    growths = [jacobian(chain(depth, width, gaussian(1.0)), torch.randn(1, width).double(), steps=1) for _ in range(4)]
    mean = sum(g.lyapunov for g in growths) / 4
    error = math.sqrt(sum(g.lyapunov_error**2 for g in growths)) / 4
    expected = 0.5 * (float(digamma(width / 2)) + math.log(2 / width))
    assert error < 0.02
    assert mean == pytest.approx(expected, abs=3 * error)
    assert mean < -1.5 * error


def test_he_relu_keeps_the_mean_square_in_every_layer():
    net = chain(8, 300, gaussian(2.0), nn.ReLU)[:-1]
    found = jacobian(net, torch.randn(2, 300, dtype=torch.float64), steps=8)
    for layer in found.layers[1:]:
        assert layer.spectrum.mean_squared == pytest.approx(1.0, abs=4 * layer.spectrum.mean_squared_error + 0.05)
        assert layer.spectrum.largest > 2.0  # sigma_w (1 + 1/sqrt 2) = 2.41, though the gradient keeps its size
    correlations = [layer.correlation for layer in found.layers]
    assert correlations == sorted(correlations)
    shattering = [layer.gradient_correlation for layer in found.layers]
    assert shattering == sorted(shattering)
    assert shattering[-1] == pytest.approx(1.0)


def test_token_numbers_start_at_the_first_layer():
    net = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    tokens = torch.randint(0, 10, (2, 4))
    found = jacobian(net, tokens)
    assert [layer.name for layer in found.layers] == ["3"]
    agrees(found.end_to_end, dense(net[2:], net[1](net[0](tokens))))


def test_the_blocks_of_a_residual_net_and_attention():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    blocks = [Residual(nn.Linear(8, 8), "pre", nn.LayerNorm(8)) for _ in range(2)]
    net = nn.Sequential(layer, *blocks).double().eval()
    x = torch.randn(1, 3, 8, dtype=torch.float64)
    found = jacobian(net, x, layers=["0", "1", "2"])
    agrees(found.end_to_end, dense(net, x))
    agrees(found["1"].spectrum, dense(net[1], net[0](x)))


def test_what_is_measured_is_left_alone():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    x = torch.randn(5, 4)
    torch.set_rng_state(state)
    first = jacobian(net, (x, torch.zeros(5)))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert net.training
    assert not x.requires_grad
    assert str(first) == str(jacobian(net, x))


def test_one_example_has_no_correlation():
    found = jacobian(nn.Linear(3, 2), torch.randn(1, 3))
    assert math.isnan(found.output_correlation)
    assert math.isnan(found.lyapunov_error)
    assert "nan" in str(found)


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.first(x).detach())


def test_what_cannot_be_measured_is_told():
    with pytest.raises(PropagationError, match="no path leads"):
        jacobian(Detached(), torch.randn(2, 3))
    with pytest.raises(PropagationError, match="no module 'head'"):
        jacobian(nn.Linear(3, 3), torch.randn(2, 3), layers=["head"])
    with pytest.raises(PropagationError, match="no linear or convolutional"):
        jacobian(nn.ReLU(), torch.randn(2, 3))
    with pytest.raises(PropagationError, match="not finite"):
        jacobian(nn.Linear(3, 3), torch.full((2, 3), torch.nan))
    with pytest.raises(PropagationError, match="without values"):
        jacobian(nn.LazyLinear(3), torch.randn(2, 3))
    for empty, words in ((None, "batch is None"), ((), r"batch is \(\)"), (torch.ones(0, 3), "no example")):
        with pytest.raises(PropagationError, match=words):
            jacobian(nn.Linear(3, 3), empty)
    with pytest.raises(NormalizationError, match="seed is 'x'"):
        jacobian(nn.Linear(3, 3), torch.randn(2, 3), seed="x")
    with pytest.raises(NormalizationError, match="probes is 1"):
        jacobian(nn.Linear(3, 3), torch.randn(2, 3), probes=1)
    with pytest.raises(NormalizationError, match="model is a function"):
        jacobian(dense, torch.randn(2, 3))

"""Weight and spectral normalization against PyTorch's parametrizations, and their own parts."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from trimtab.norms import functional as f


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(ours, theirs, tolerance=1e-12):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dim", [0, 1, 3, None, -1])
def test_weight_norm_equals_pytorch(dim, scale):
    v = (draw(5, 4, 3, 2) * scale).requires_grad_()
    g = torch.norm_except_dim(v, 2, -1 if dim is None else dim).detach() * 0.7
    g.requires_grad_()
    dw = draw(5, 4, 3, 2, seed=1)
    w = torch._weight_norm(v, g, -1 if dim is None else dim)
    ours = f.weight_norm(v, g, dim)
    same(ours, w)
    true = torch.autograd.grad(w, (v, g), dw)
    found = torch.autograd.grad(ours, (v, g), dw)
    parts = f.weight_norm_forward(v, g, dim)
    explicit = f.weight_norm_backward(dw, parts)
    for dv, dg in (found, (explicit.dv, explicit.dg)):
        same(dv * scale, true[0] * scale)
        same(dg, true[1])
    same(parts.weight, w)
    same(parts.norm / scale, torch.norm_except_dim(v, 2, -1 if dim is None else dim) / scale)


def test_weight_norm_equals_the_parametrized_module():
    layer = parametrizations.weight_norm(nn.Linear(6, 4, dtype=torch.float64))
    g, v = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
    same(f.weight_norm(v, g), layer.weight)


def test_weight_norm_splits_the_gradient_in_two():
    """Along v, for g alone; across it, for v alone, so that gradient steps never shorten v."""
    v, g, dw = draw(5, 7), draw(5, 1, seed=1), draw(5, 7, seed=2)
    parts = f.weight_norm_forward(v, g)
    gradients = f.weight_norm_backward(dw, parts)
    same(gradients.radial + gradients.tangential, dw, 1e-15)
    same((gradients.radial * gradients.tangential).sum(1), torch.zeros(5).double(), 1e-14)
    same(gradients.dv, parts.gain * gradients.tangential, 1e-15)
    same((gradients.dv * v).sum(1), torch.zeros(5).double(), 1e-14)
    cosine = torch.nn.functional.cosine_similarity(dw, v, dim=1)
    same(gradients.projected.squeeze(1), cosine.square())
    assert ((v - 0.3 * gradients.dv).norm(dim=1) > v.norm(dim=1)).all()


def test_weight_norm_of_a_zero_gradient_projects_nothing():
    parts = f.weight_norm_forward(draw(5, 7), draw(5, 1, seed=1))
    assert not f.weight_norm_backward(torch.zeros(5, 7).double(), parts).projected.any()


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("steps", [1, 3])
def test_spectral_norm_equals_pytorch(dim, steps):
    """Weight, gradient and state over three calls in training and one in evaluation."""
    layer = nn.Conv2d(4, 6, 3, dtype=torch.float64)
    raw = layer.weight.detach().clone()
    layer = parametrizations.spectral_norm(layer, n_power_iterations=steps, dim=dim)
    parametrization = layer.parametrizations.weight[0]
    u, v = parametrization._u.clone(), parametrization._v.clone()
    for call in range(4):
        layer.train(call < 3)
        original = layer.parametrizations.weight.original
        w = layer.weight
        leaf = raw.clone().requires_grad_()
        if call == 3:
            steps = 0
        parts = f.spectral_norm_forward(leaf, u, v, steps, dim=dim)
        ours, u, v = f.spectral_norm(leaf, u, v, steps, dim=dim)
        same(ours, w)
        same(u, parametrization._u)
        same(v, parametrization._v)
        dy = draw(*w.shape, seed=call)
        (true,) = torch.autograd.grad(w, original, dy)
        same(torch.autograd.grad(ours, leaf, dy)[0], true)
        gradients = f.spectral_norm_backward(dy, parts)
        same(gradients.dweight, true)
        same(gradients.through_weight + gradients.through_sigma, gradients.dweight, 1e-15)
        same((gradients.dweight * raw).sum(), torch.zeros(()).double(), 1e-12)


def test_spectral_norm_at_convergence_is_the_singular_value_and_its_derivative():
    """Holding u and v constant is exact there: the derivative of sigma is u v^T."""
    weight = (torch.diag(torch.tensor([3.0, 1.0, 0.5])).double() @ draw(3, 8, seed=3)).requires_grad_()
    u, v = f.spectral_state(weight, n_power_iterations=500)
    dy = draw(3, 8, seed=4)
    true = weight / torch.linalg.matrix_norm(weight, ord=2)
    parts = f.spectral_norm_forward(weight, u, v, 0)
    same(parts.weight, true)
    same(parts.sigma, torch.linalg.svdvals(weight)[0])
    same(f.spectral_norm_backward(dy, parts).dweight, torch.autograd.grad(true, weight, dy)[0])
    same(parts.gain, 1.0 / parts.sigma)


def test_spectral_norm_of_an_unconverged_state_underestimates():
    weight = draw(20, 30, seed=5)
    u, v = f.spectral_state(weight, n_power_iterations=0, generator=torch.Generator().manual_seed(0))
    estimates = [float(f.spectral_norm_forward(weight, u, v, steps).sigma) for steps in (1, 5, 1000)]
    true = float(torch.linalg.matrix_norm(weight, ord=2))
    assert estimates[0] < estimates[1] < true * (1.0 - 1e-6)
    assert estimates[2] == pytest.approx(true, rel=1e-9)


def test_the_length_of_u_and_v_does_not_count():
    """Averaged or badly loaded vectors are too short: PyTorch's module makes the weight four times too large of halves."""
    weight = draw(6, 10, seed=5)
    u, v = f.spectral_state(weight)
    for steps in (0, 1):
        true = f.spectral_norm(weight, u, v, steps)
        halves = f.spectral_norm(weight, 0.5 * u, 0.5 * v, steps)
        for ours, expected in zip(halves, true, strict=True):
            same(ours, expected)
    module = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(10, 6).double()).eval()
    step = module.parametrizations.weight[0]
    with torch.no_grad():
        module.parametrizations.weight.original.copy_(weight)
        step._u.copy_(0.5 * u)
        step._v.copy_(0.5 * v)
    same(module.weight.detach(), 4.0 * f.spectral_norm(weight, u, v, 0)[0])


def test_spectral_state_does_not_change_in_place_and_follows_its_generator():
    weight = draw(4, 5)
    u, v = f.spectral_state(weight, generator=torch.Generator().manual_seed(7))
    again = f.spectral_state(weight, generator=torch.Generator().manual_seed(7))
    before = u.clone(), v.clone()
    f.spectral_norm(weight, u, v, 5)
    assert torch.equal(u, before[0])
    assert torch.equal(v, before[1])
    assert torch.equal(u, again[0])
    same(u.norm(), torch.ones(()).double())


def test_autocast_leaves_sigma_in_full_width():
    """A matrix product would be taken in bfloat16 there."""
    weight = draw(64, 64, seed=6).float()
    u, v = f.spectral_state(weight, n_power_iterations=100)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = f.spectral_norm(weight, u, v)[0]
        naive = weight / (u @ (weight @ v)).float()
    true = weight.double() / f.spectral_norm_forward(weight.double(), u.double(), v.double()).sigma
    assert (ours.double() - true).norm() < 1e-6 * true.norm()
    assert (naive.double() - true).norm() > 1e-5 * true.norm()

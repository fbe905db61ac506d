"""Batch renormalization: beside the paper's formula written out, and its limits BatchNorm and evaluation mode."""

import pytest
import torch
from torch import nn

from trimtab.errors import NormalizationError
from trimtab.norms.layers import BatchRenorm1d, BatchRenorm2d, BatchRenorm3d, batch_renorm

F64 = torch.float64
NOW = (0, 0, 0)


@pytest.fixture(params=["kernel", "operations"])
def path(request, monkeypatch):
    """PyTorch's kernels called with our statistics, also for small inputs, and its public operations."""
    monkeypatch.setattr(batch_renorm, "_LEAST", 0)
    if request.param == "operations":
        monkeypatch.setattr(batch_renorm, "eager_on_cpu", lambda *_: False)
        monkeypatch.setattr(batch_renorm, "_Renormalized", None)
    return request.param


def formula(layer, x, r_max, d_max):
    """Algorithm 1 of Ioffe 2017, with the variance in place of the standard deviation in the moving average."""
    axes, shape = [0, *range(2, x.dim())], [1, -1, *[1] * (x.dim() - 2)]
    mean, var = x.mean(axes), x.var(axes, correction=0)
    sigma_b, sigma = (var + layer.eps).sqrt(), (layer.running_var + layer.eps).sqrt()
    r = (sigma_b / sigma).detach().clamp(1 / r_max, r_max)
    d = ((mean - layer.running_mean) / sigma).detach().clamp(-d_max, d_max)
    normalized = (x - mean.view(shape)) / sigma_b.view(shape) * r.view(shape) + d.view(shape)
    y = normalized * layer.weight.view(shape) + layer.bias.view(shape)
    unbiased = x.var(axes).detach()
    m = layer.momentum
    return y, (1 - m) * layer.running_mean + m * mean.detach(), (1 - m) * layer.running_var + m * unbiased


@pytest.mark.parametrize("limits", [(1.0, 0.0), (1.5, 0.3), (3.0, 5.0)])
@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5), (2, 4, 3, 3), (2, 4, 2, 2, 2)])
def test_the_papers_formula(path, shape, limits):
    torch.manual_seed(0)
    kind = {2: BatchRenorm1d, 3: BatchRenorm1d, 4: BatchRenorm2d, 5: BatchRenorm3d}[len(shape)]
    layer = kind(4, 1e-3, 0.2, dtype=F64, r_max=limits[0], d_max=limits[1], warm_up=NOW)
    layer.num_batches_tracked.fill_(1)  # the limits are reached
    for p in layer.parameters():
        nn.init.normal_(p)
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.3, 3)
    x = (torch.randn(shape, dtype=F64) * 1.5 + 0.5).requires_grad_()
    expected, mean, var = formula(layer, x, *limits)
    y, dy = layer(x), torch.randn(shape, dtype=F64)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer.running_mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer.running_var, var, rtol=1e-12, atol=1e-12)
    wanted = [x, layer.weight, layer.bias]
    true = torch.autograd.grad(expected, wanted, dy)
    torch.testing.assert_close(torch.autograd.grad(y, wanted, dy), true, rtol=1e-11, atol=1e-11)


def test_within_the_limits_training_gives_what_evaluation_gives(path):
    torch.manual_seed(0)
    layer = BatchRenorm1d(4, dtype=F64, r_max=1e6, d_max=1e6, warm_up=NOW)
    layer.num_batches_tracked.fill_(1)
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 4, dtype=F64) + 1  # BatchNorm would give +-1, whatever x
    expected = layer.eval()(x)
    torch.testing.assert_close(layer.train()(x), expected, rtol=1e-12, atol=1e-12)


def test_before_the_warm_up_it_is_batch_norm(path):
    torch.manual_seed(0)
    layer, other = BatchRenorm1d(4), nn.BatchNorm1d(4)
    for _ in range(3):
        x = torch.randn(5, 4) * 3 + 1
        torch.testing.assert_close(layer(x), other(x))
    for a, b in zip(layer.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("step", "limits"), [(0, (1, 0)), (5000, (1, 0)), (22500, (2, 4.375)), (40000, (3, 5)), (10**6, (3, 5))]
)
def test_warm_up_of_the_paper(step, limits):
    layer = BatchRenorm1d(4)
    layer.num_batches_tracked.fill_(step)
    assert [float(v) for v in layer.limits()] == pytest.approx(limits)


def test_gradcheck_and_gradgradcheck(path, monkeypatch):
    """r and d count as constants; with their limits at 1 and 0 they are."""
    torch.manual_seed(0)
    layer = BatchRenorm1d(3, 1e-2, dtype=F64)
    x = torch.randn(4, 3, 2, dtype=F64, requires_grad=True)
    w = [torch.randn(3, dtype=F64, requires_grad=True) for _ in range(2)]
    buffers = dict(layer.named_buffers())

    def call(x, weight, bias):
        fresh = {name: tensor.clone() for name, tensor in buffers.items()}
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias, **fresh}, (x,))

    assert torch.autograd.gradcheck(call, (x, *w))
    assert torch.autograd.gradgradcheck(call, (x, *w))


def test_small_inputs_are_looked_at_twice_and_large_ones_once(monkeypatch):
    calls = []
    apply = batch_renorm._Renormalized.apply
    monkeypatch.setattr(
        batch_renorm._Renormalized, "apply", lambda *given: (calls.append(given[0].shape), apply(*given))[1]
    )
    torch.manual_seed(0)
    found = []
    for rows in (1, 64):  # the same statistics
        layer = BatchRenorm1d(8, dtype=F64)
        found.append(
            layer(torch.randn(64, 8, 8, generator=torch.Generator().manual_seed(0), dtype=F64).repeat(rows, 1, 1))
        )
    assert calls == [(64 * 64, 8, 8)]
    torch.testing.assert_close(found[1][:64], found[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parameters", ["same", "float32"])
def test_half_precision(dtype, parameters):
    torch.manual_seed(0)
    x = (torch.randn(8, 3, 20) * 3 + 5).to(dtype)
    results = []
    for kind, given in ((dtype if parameters == "same" else torch.float32, x), (F64, x.double())):
        layer = BatchRenorm1d(3, dtype=kind, warm_up=NOW)
        layer.num_batches_tracked.fill_(1)
        layer.running_mean.fill_(4)
        layer.running_var.fill_(8)
        results.append(layer(given))
    assert results[0].dtype == dtype
    assert float((results[0].double() - results[1]).detach().abs().max()) < 6 * torch.finfo(dtype).eps


def test_small_batches_are_trained_and_evaluated_alike():
    """Batches of 4: the gap between the training output and evaluation is a fraction of BatchNorm's."""
    torch.manual_seed(0)
    gaps = []
    for layer in (nn.BatchNorm1d(8, momentum=0.01), BatchRenorm1d(8, momentum=0.01, warm_up=(0, 100, 100))):
        for _ in range(1500):
            layer(torch.randn(4, 8) * 2 + 1)
        x = torch.randn(4, 8) * 2 + 1
        trained = layer(x)
        gaps.append(float((trained - layer.eval()(x)).detach().square().mean()))
    assert gaps[1] < gaps[0] / 10


def test_wrong_arguments():
    with pytest.raises(NormalizationError, match=r"r_max is 0\.5; a finite number >= 1 is needed"):
        BatchRenorm1d(3, r_max=0.5)
    with pytest.raises(NormalizationError, match="d_max is -1; a finite number >= 0 is needed"):
        BatchRenorm1d(3, d_max=-1)
    with pytest.raises(NormalizationError, match=r"warm_up is \(10, 5, 20\); three step numbers are needed"):
        BatchRenorm1d(3, warm_up=(10, 5, 20))
    with pytest.raises(NormalizationError, match=r"the input \(1, 3\) has one value a channel"):
        BatchRenorm1d(3)(torch.randn(1, 3))

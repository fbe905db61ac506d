"""Masked BatchNorm: beside PyTorch's BatchNorm on the real positions packed together, on each of its paths."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trimtab.errors import NormalizationError
from trimtab.norms.layers import MaskedBatchNorm1d, MaskedBatchNorm2d, MaskedBatchNorm3d, _masked_kernel
from trimtab.norms.layers._kernels import NO_NUMBA, compiled_kernel

LAYERS = {2: MaskedBatchNorm1d, 3: MaskedBatchNorm1d, 4: MaskedBatchNorm2d, 5: MaskedBatchNorm3d}


@pytest.fixture(params=["numba", "packed", "plain"])
def path(request, monkeypatch):
    """Each path; the others cannot be taken."""
    name = request.param
    for other in ("_compiled", "_packed", "_plain"):
        if name not in other and not (name == "numba" and other == "_compiled"):
            monkeypatch.setattr(_masked_kernel, other, None)
    monkeypatch.setattr(_masked_kernel, "_LEAST_COMPILED", 0)
    if name == "numba":
        pytest.importorskip("numba")
        monkeypatch.delenv(NO_NUMBA, raising=False)
        assert compiled_kernel("_numba_masked", torch.zeros(1)) is not None
    else:
        monkeypatch.setenv(NO_NUMBA, "1")
    if name == "plain":
        monkeypatch.setattr(_masked_kernel, "eager_on_cpu", lambda *_: False)
    return name


def packed(x, mask):
    """The real positions, (positions, channels)."""
    return x.movedim(1, -1)[mask]


def pair(layer, dtype):
    other = nn.BatchNorm1d(layer.num_features, layer.eps, layer.momentum, layer.affine, dtype=dtype)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_()
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
    other.load_state_dict(layer.state_dict())
    return other.train(layer.training)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(40, 6), (4, 6, 10), (2, 3, 1), (5, 3, 4, 7), (3, 2, 3, 4, 5)])
def test_equals_batch_norm_of_the_real_positions(path, shape, affine, momentum, training):
    torch.manual_seed(1)
    tolerance = 2e-5 if path == "numba" else 1e-12
    dtype = torch.float32 if path == "numba" else torch.float64
    x = (torch.randn(shape, dtype=dtype) * 2 + 3).requires_grad_()
    mask = torch.rand(shape[0], *shape[2:]) < 0.6
    mask[0], mask[1] = True, mask[1] if shape[0] > 2 else True
    layer = LAYERS[len(shape)](shape[1], 1e-3, momentum, affine, dtype=dtype).train(training)
    other = pair(layer, dtype)
    dy = torch.randn(shape, dtype=dtype)
    for _ in range(2):
        y, z = layer(x, mask), other(packed(x, mask))
        torch.testing.assert_close(packed(y, mask), z, rtol=tolerance, atol=tolerance)
        assert float(y.detach().movedim(1, -1)[~mask].abs().sum()) == 0.0
        found = torch.autograd.grad(y, [x, *layer.parameters()], dy)
        true = torch.autograd.grad(z, [x, *other.parameters()], packed(dy, mask))
        for a, b in zip(found, true, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=20 * tolerance)
        for a, b in zip(layer.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_pain_23_padding_in_statistics(path):
    """Zeros as padding: the mean halves where half the positions are real, and its square enters the variance."""
    torch.manual_seed(0)
    lengths = torch.tensor([10, 3, 5, 2])
    x = torch.randn(4, 6, 10) + 2
    mask = torch.arange(10) < lengths[:, None]
    x = x * mask[:, None]
    theirs, ours = nn.BatchNorm1d(6, momentum=1.0), MaskedBatchNorm1d(6, momentum=1.0)
    theirs(x)
    ours(x, mask)
    true = packed(x, mask)
    torch.testing.assert_close(theirs.running_mean, true.mean(0) / 2)
    mixed = (true.var(0, correction=0) / 2 + true.mean(0).square() / 4) * 40 / 39
    torch.testing.assert_close(theirs.running_var, mixed)
    assert float(theirs.running_var.mean()) > 1.4 * float(true.var(0).mean())
    torch.testing.assert_close(ours.running_mean, true.mean(0))
    torch.testing.assert_close(ours.running_var, true.var(0))


def test_more_padding_changes_nothing(path):
    torch.manual_seed(0)
    x, mask = torch.randn(5, 4, 9), torch.rand(5, 9) < 0.7
    one, other = MaskedBatchNorm1d(4), MaskedBatchNorm1d(4)
    y = one(x, mask)
    longer = torch.cat([x, torch.full((5, 4, 7), 1e6)], 2)
    z = other(longer, torch.cat([mask, torch.zeros(5, 7, dtype=torch.bool)], 1))
    torch.testing.assert_close(z[..., :9], y)
    assert float(z[..., 9:].detach().abs().sum()) == 0.0
    torch.testing.assert_close(other.running_var, one.running_var)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_what_stands_in_padding_reaches_nothing(path, bad, training):
    torch.manual_seed(0)
    x, mask = torch.randn(5, 4, 9), torch.rand(5, 9) < 0.7
    results = []
    for value in (0.0, bad):
        layer = MaskedBatchNorm1d(4).train(training)
        given = torch.where(mask[:, None], x, value).requires_grad_()
        y = layer(given, mask)
        dy = torch.where(mask[:, None], torch.linspace(-1, 1, y.numel()).view_as(y), value)
        y.backward(dy)
        results.append([y.detach(), given.grad, layer.weight.grad, layer.bias.grad, *layer.buffers()])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
    assert all(bool(t.isfinite().all()) for t in results[1])


def test_fewer_than_two_real_positions_leave_the_running_statistics(path, monkeypatch):
    monkeypatch.undo()  # the packed path hands these to the plain one
    x = torch.randn(3, 2, 4)
    for count in (0, 1):
        mask = torch.zeros(3, 4, dtype=torch.bool)
        mask.view(-1)[:count] = True
        layer = MaskedBatchNorm1d(2)
        nn.init.constant_(layer.bias, 0.5)
        y = layer(x, mask)
        assert float(y.detach().sum()) == pytest.approx(0.5 * 2 * count)
        assert layer.running_mean.tolist() == [0.0, 0.0]
        assert layer.running_var.tolist() == [1.0, 1.0]
        assert int(layer.num_batches_tracked) == 1


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 6), channels=st.integers(1, 5), length=st.integers(1, 40), seed=st.integers(0, 2**20))
def test_real_positions_come_out_with_mean_0_and_variance_1(n, channels, length, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, channels, length, dtype=torch.float64, generator=generator) * 3 - 2
    mask = torch.rand(n, length, generator=generator) < 0.8
    y = packed(MaskedBatchNorm1d(channels, 1e-12, affine=False, dtype=torch.float64)(x, mask), mask)
    if len(y) > 1:
        torch.testing.assert_close(y.mean(0), torch.zeros(channels, dtype=torch.float64), rtol=0, atol=1e-9)
        torch.testing.assert_close(y.var(0, correction=0), torch.ones(channels, dtype=torch.float64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
def test_large_means_cost_few_digits(offset, monkeypatch):
    """The first guess of the mean is bad on purpose: the first rows lie elsewhere."""
    pytest.importorskip("numba")
    monkeypatch.delenv(NO_NUMBA, raising=False)
    monkeypatch.setattr(_masked_kernel, "_LEAST_COMPILED", 0)
    torch.manual_seed(0)
    for shape in ((64, 3, 50), (3000, 3)):
        x = torch.randn(shape) + offset
        x[0] -= 2 * offset
        mask = torch.ones(shape[0], *shape[2:], dtype=torch.bool)
        layer = MaskedBatchNorm1d(3, momentum=1.0)
        layer(x, mask)
        true = packed(x, mask).double()
        assert float((layer.running_mean / true.mean(0) - 1).abs().max()) < 1e-6 if offset else True
        assert float((layer.running_var / true.var(0) - 1).abs().max()) < 1e-5


@pytest.mark.parametrize("shape", [(4, 3, 20), (30, 3), (2, 3, 4, 5)])
@pytest.mark.parametrize("affine", [True, False])
def test_gradcheck_and_gradgradcheck(shape, affine, path, monkeypatch):
    """The function of the compiled path, whose first backward pass is float32, is checked in its second form."""
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(shape[0], *shape[2:]) < 0.7
    mask[0] = True
    layer = LAYERS[len(shape)](3, affine=affine, track_running_stats=False, dtype=torch.float64)
    if path == "numba":
        monkeypatch.undo()
        kept = mask.to(torch.int32)
        rows = x.detach().reshape(*x.shape[:2], -1) if x.dim() > 2 else x.detach()

        def second_form(dy, values, weight):
            return _masked_kernel._differentiable(dy, values, kept, weight, 1e-3)

        dy = torch.randn_like(rows).requires_grad_()
        weight = torch.randn(3, dtype=torch.float64, requires_grad=True) if affine else None
        assert torch.autograd.gradcheck(second_form, (dy, rows.requires_grad_(), weight))
        return
    parameters = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in layer.parameters()]

    def call(x, *parameters):
        return torch.func.functional_call(layer, dict(zip(("weight", "bias"), parameters, strict=False)), (x, mask))

    assert torch.autograd.gradcheck(call, (x, *parameters))
    assert torch.autograd.gradgradcheck(call, (x, *parameters))


def test_second_derivative_of_the_compiled_path():
    pytest.importorskip("numba")
    torch.manual_seed(0)
    x, mask = torch.randn(8, 16, 700), torch.rand(8, 700) < 0.5
    assert x.numel() >= _masked_kernel._LEAST_COMPILED
    results = []
    for values in (x.clone(), x.double()):
        layer = MaskedBatchNorm1d(16, dtype=values.dtype)
        values.requires_grad_()
        y = layer(values, mask)
        (dx,) = torch.autograd.grad(y.pow(3).sum(), values, create_graph=True)
        results.append(torch.autograd.grad(dx.square().sum(), [values, layer.weight]))
    for a, b in zip(*results, strict=True):
        assert float((a.double() - b).norm() / b.norm()) < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    torch.manual_seed(0)
    x, mask = (torch.randn(6, 5, 30) * 3 + 20).to(dtype), torch.rand(6, 30) < 0.7
    for layer in (MaskedBatchNorm1d(5), MaskedBatchNorm1d(5, dtype=dtype)):
        y = layer(x, mask)
        assert y.dtype == dtype
        true = MaskedBatchNorm1d(5, dtype=torch.float64)(x.double(), mask)
        assert float((y.double() - true).detach().abs().max()) < 6 * torch.finfo(dtype).eps


def test_memory_layouts(path):
    torch.manual_seed(0)
    x, mask = torch.randn(4, 6, 10, 12), torch.rand(4, 10, 12) < 0.6
    dy = torch.randn_like(x)
    results = []
    for laid_out in (
        x.clone(),
        x.to(memory_format=torch.channels_last),
        x.transpose(2, 3).contiguous().transpose(2, 3),
        x.flip(0).flip(0)[:, :, :],
    ):
        layer = MaskedBatchNorm2d(6)
        values = laid_out.detach().requires_grad_()
        y = layer(values, mask)
        results.append((y.detach(), *torch.autograd.grad(y, [values, layer.weight], dy)))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-5)


def test_mask_with_an_axis_for_the_channels():
    x, mask = torch.randn(4, 6, 10), torch.rand(4, 10) < 0.6
    assert torch.equal(MaskedBatchNorm1d(6)(x, mask[:, None]), MaskedBatchNorm1d(6)(x, mask))


def test_wrong_masks():
    layer, x = MaskedBatchNorm1d(6), torch.randn(4, 6, 10)
    with pytest.raises(
        NormalizationError, match=r"the mask has shape \(4, 9\); \(4, 10\) is needed, one entry for each position"
    ):
        layer(x, torch.ones(4, 9, dtype=torch.bool))
    with pytest.raises(NormalizationError, match=r"the mask has shape \(4, 6, 10\)"):
        layer(x, torch.ones(4, 6, 10, dtype=torch.bool))
    with pytest.raises(NormalizationError, match=r"the mask has dtype torch.float32; torch.bool is needed"):
        layer(x, torch.ones(4, 10))


def test_wrong_inputs():
    layer = MaskedBatchNorm1d(6)
    with pytest.raises(
        NormalizationError, match=r"that is 5 channels in its second axis; MaskedBatchNorm1d\(6\) needs 6"
    ):
        layer(torch.randn(4, 5, 10))
    with pytest.raises(NormalizationError, match="MaskedBatchNorm1d: expected 2D or 3D input"):
        layer(torch.randn(4, 6, 10, 3))
    with pytest.raises(ValueError, match="eps is 0"):
        MaskedBatchNorm1d(6, eps=0)

"""Ghost BatchNorm: beside PyTorch's BatchNorm on each ghost, and on the whole batch for the running statistics."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from trimtab.errors import NormalizationError
from trimtab.norms.layers import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d

F64 = torch.float64


def ghosts_of(samples, size):
    """Indices of the samples of each ghost, as the docstring promises them."""
    count = samples // size
    small, larger = divmod(samples, count)
    border = larger * (small + 1)
    first = [range(g, border, larger) for g in range(larger)]
    rest = count - larger
    return [list(r) for r in first + [range(border + g, samples, rest) for g in range(rest)]]


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("shape", [(16, 3), (17, 3, 4), (15, 2, 3, 2), (16, 2, 2, 1, 3)])
def test_each_ghost_is_normalized_by_itself(shape, size):
    torch.manual_seed(0)
    kind = {2: GhostBatchNorm1d, 3: GhostBatchNorm1d, 4: GhostBatchNorm2d, 5: GhostBatchNorm3d}[len(shape)]
    layer = kind(shape[1], 1e-3, dtype=F64, ghost_size=size)
    for p in layer.parameters():
        nn.init.normal_(p)
    x = torch.randn(shape, dtype=F64, requires_grad=True)
    y, dy = layer(x), torch.randn(shape, dtype=F64)
    found = torch.autograd.grad(y, [x, layer.weight, layer.bias], dy)
    expected = torch.empty_like(x)
    members = ghosts_of(shape[0], size)
    assert sorted(i for ghost in members for i in ghost) == list(range(shape[0]))
    assert all(size <= len(g) for g in members)
    assert max(map(len, members)) - min(map(len, members)) <= 1
    for ghost in members:
        expected[ghost] = functional.batch_norm(x[ghost], None, None, layer.weight, layer.bias, True, 0.1, 1e-3)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    true = torch.autograd.grad(expected, [x, layer.weight, layer.bias], dy)
    torch.testing.assert_close(found, true, rtol=1e-11, atol=1e-11)


@settings(max_examples=30, deadline=None)
@given(
    samples=st.integers(2, 40),
    size=st.integers(2, 20),
    momentum=st.sampled_from([0.1, 1.0, None]),
    seed=st.integers(0, 99),
)
def test_running_statistics_are_those_of_the_whole_batch(samples, size, momentum, seed):
    generator = torch.Generator().manual_seed(seed)
    layer = GhostBatchNorm1d(3, momentum=momentum, dtype=F64, ghost_size=size)
    whole = nn.BatchNorm1d(3, momentum=momentum, dtype=F64)
    for _ in range(3):
        x = torch.randn(samples, 3, 2, dtype=F64, generator=generator) * 2 + torch.arange(samples).view(-1, 1, 1)
        layer(x)
        whole(x)
    for a, b in zip(layer.buffers(), whole.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    layer.eval()
    torch.testing.assert_close(layer(x), whole.eval()(x), rtol=1e-11, atol=1e-11)


def test_the_mean_over_ghosts_of_the_variances_would_be_wrong():
    """What an update per ghost leaves out: how the ghosts' means differ."""
    x = torch.arange(12.0, dtype=F64).repeat_interleave(2).view(2, 12).T.reshape(24, 1)  # ghosts of unlike means
    layer = GhostBatchNorm1d(1, momentum=1.0, dtype=F64, ghost_size=12)
    layer(x)
    within = torch.stack([x[g].var() for g in ghosts_of(24, 12)]).mean()
    torch.testing.assert_close(layer.running_var, x.var(0), rtol=1e-12, atol=0)
    assert abs(float(within / x.var()) - 1) > 0.01


def test_a_batch_smaller_than_two_ghosts_is_pytorchs():
    torch.manual_seed(0)
    x = torch.randn(15, 3)
    assert torch.equal(GhostBatchNorm1d(3, ghost_size=8)(x), nn.BatchNorm1d(3)(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parameters", ["same", "float32"])
def test_half_precision(dtype, parameters):
    torch.manual_seed(0)
    x = (torch.randn(16, 3, 20) * 3 + 5).to(dtype)
    layer = GhostBatchNorm1d(3, ghost_size=4, dtype=dtype if parameters == "same" else torch.float32)
    y = layer(x)
    true = GhostBatchNorm1d(3, ghost_size=4, dtype=F64)(x.double())
    assert y.dtype == dtype
    assert float((y.double() - true).detach().abs().max()) < 4 * torch.finfo(dtype).eps


def test_gradcheck_and_gradgradcheck():
    torch.manual_seed(0)
    layer = GhostBatchNorm1d(2, ghost_size=3, track_running_stats=False, dtype=F64)
    x = torch.randn(10, 2, 2, dtype=F64, requires_grad=True)
    w = [torch.randn(2, dtype=F64, requires_grad=True) for _ in range(2)]

    def call(x, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))

    assert torch.autograd.gradcheck(call, (x, *w))
    assert torch.autograd.gradgradcheck(call, (x, *w))


def test_wrong_arguments():
    with pytest.raises(NormalizationError, match="ghost_size is 0; a whole number of at least 1 is needed"):
        GhostBatchNorm1d(3, ghost_size=0)
    with pytest.raises(NormalizationError, match=r"ghosts of 1 sample give one value a channel for the input \(4, 3\)"):
        GhostBatchNorm1d(3, ghost_size=1)(torch.randn(4, 3))
    with pytest.raises(NormalizationError, match="GhostBatchNorm2d: expected 4D input"):
        GhostBatchNorm2d(3)(torch.randn(4, 3))
    with pytest.raises(NormalizationError, match="needs 3"):
        GhostBatchNorm1d(3)(torch.randn(4, 5))

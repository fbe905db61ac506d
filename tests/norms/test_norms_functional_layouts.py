"""Layouts, memory formats, masks, empty batches and half precision, against PyTorch and against cutting padding off."""

import math

import pytest
import torch
from torch.nn import functional as F

from trimtab.norms import functional as f


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def same(ours, theirs, tolerance=1e-12):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


SHAPES = {"NC": (6, 4), "NCL": (3, 4, 5), "NCHW": (2, 4, 3, 5), "NCDHW": (2, 4, 3, 2, 3)}
W, B = draw(4, seed=1).exp(), draw(4, seed=2)
PAIRS = {
    "batch": (
        lambda x, **k: f.batch_norm(x, None, None, W, B, training=True, **k),
        lambda x: F.batch_norm(x, None, None, W, B, training=True),
    ),
    "running": (
        lambda x, **k: f.batch_norm(x, B, W, W, B, **k),
        lambda x: F.batch_norm(x, B, W, W, B),
    ),
    "group": (lambda x, **k: f.group_norm(x, 2, W, B, **k), lambda x: F.group_norm(x, 2, W, B)),
    "instance": (
        lambda x, **k: f.instance_norm(x, None, None, W, B, **k),
        lambda x: F.instance_norm(x, None, None, W, B),
    ),
}
CASES = [(method, layout) for method in PAIRS for layout in SHAPES if (method, layout) != ("instance", "NC")]


@pytest.mark.parametrize(("method", "layout"), CASES)
def test_every_layout_equals_pytorch(method, layout):
    """Channels second, and channels last in shape: output and gradient."""
    ours, theirs = PAIRS[method]
    x, dy = draw(*SHAPES[layout], seed=3) * 2.0 + 1.0, draw(*SHAPES[layout], seed=4)
    leaf, twin, last = (t.clone().requires_grad_() for t in (x, x, x.movedim(1, -1)))
    y = theirs(leaf)
    same(ours(twin), y)
    (true,) = torch.autograd.grad(y, leaf, dy)
    same(torch.autograd.grad(ours(twin), twin, dy)[0], true)
    y_last = ours(last, channel_axis=-1)
    same(y_last.movedim(-1, 1), y)
    same(torch.autograd.grad(y_last, last, dy.movedim(1, -1))[0].movedim(-1, 1), true)


@pytest.mark.parametrize("method", PAIRS)
@pytest.mark.parametrize(
    ("layout", "memory"), [("NCHW", torch.channels_last), ("NCDHW", torch.channels_last_3d)], ids=["2d", "3d"]
)
def test_memory_format_is_kept(method, layout, memory):
    ours, theirs = PAIRS[method]
    x = draw(*SHAPES[layout], seed=5)
    leaf = x.clone(memory_format=memory).requires_grad_()
    y = ours(leaf)
    same(y, theirs(x))
    assert y.is_contiguous(memory_format=memory)
    (dx,) = torch.autograd.grad(y, leaf, torch.randn_like(y))
    assert dx.is_contiguous(memory_format=memory)


LENGTHS = (5, 2, 3)
MASK = torch.arange(5) < torch.tensor(LENGTHS)[:, None]


def padded(fill, seed=6):
    """Three sequences of 4 channels, padded to 5 positions."""
    return torch.where(MASK[:, None], draw(3, 4, 5, seed=seed), fill).requires_grad_()


@pytest.mark.parametrize("fill", [0.0, 1e6, math.nan], ids=str)
def test_masked_batch_norm_is_that_of_the_values_that_count(fill):
    """Also with the padding full of nan; without the mask the padding moves mean and variance."""
    x, dy = padded(fill), draw(3, 4, 5, seed=7)
    rows = x.detach().mT[MASK].requires_grad_()
    buffers = [torch.zeros(4).double(), torch.ones(4).double()]
    twins = [b.clone() for b in buffers]
    y = f.batch_norm(x, *buffers, W, B, training=True, mask=MASK)
    true = F.batch_norm(rows, *twins, W, B, training=True)
    same(y.mT[MASK], true)
    assert not y.mT[~MASK].any()
    (dx,) = torch.autograd.grad(y, x, dy)
    same(dx.mT[MASK], torch.autograd.grad(true, rows, dy.mT[MASK])[0])
    assert not dx.mT[~MASK].any()
    for ours, theirs in zip(buffers, twins, strict=True):
        same(ours, theirs)
    naive = F.batch_norm(x.detach(), None, None, W, B, training=True)
    assert not torch.allclose(naive.mT[MASK], true, atol=0.05)


def test_masked_batch_norm_of_single_values_and_with_running_statistics():
    x, mask = draw(6, 4, seed=8), torch.tensor([True, False, True, True, False, True])
    same(f.batch_norm(x, None, None, W, B, True, mask=mask)[mask], F.batch_norm(x[mask], None, None, W, B, True))
    y = f.batch_norm(x, B, W, W, B, mask=mask)
    same(y[mask], F.batch_norm(x, B, W, W, B)[mask])
    assert not y[~mask].any()


def test_mask_of_channels_last():
    x = padded(math.nan)
    ours = f.batch_norm(x.mT, None, None, W, B, True, mask=MASK, channel_axis=-1)
    same(ours.mT, f.batch_norm(x, None, None, W, B, True, mask=MASK))


@pytest.mark.parametrize("fill", [1e6, math.nan], ids=str)
@pytest.mark.parametrize("method", ["group", "instance"])
def test_masked_group_and_instance_norm_are_those_of_the_cut_sequences(method, fill):
    ours, theirs = PAIRS[method]
    x, dy = padded(fill), draw(3, 4, 5, seed=9)
    y = ours(x, mask=MASK)
    (dx,) = torch.autograd.grad(y, x, dy)
    for row, length in enumerate(LENGTHS):
        cut = x.detach()[row : row + 1, :, :length].requires_grad_()
        true = theirs(cut)
        same(y[row : row + 1, :, :length], true)
        same(dx[row : row + 1, :, :length], torch.autograd.grad(true, cut, dy[row : row + 1, :, :length])[0])
        assert not y[row, :, length:].any()
        assert not dx[row, :, length:].any()


def test_masked_layer_and_rms_norm_are_those_of_the_cut_sequences():
    """Over positions and channels together; over channels alone a mask only keeps the padding at zero."""
    x = padded(math.nan).mT  # samples, positions, channels
    for ours, theirs in ((f.layer_norm, F.layer_norm), (lambda x, s, mask: f.rms_norm(x, s, mask=mask), F.rms_norm)):
        together, alone = ours(x, (5, 4), mask=MASK), ours(x, 4, mask=MASK)
        for row, length in enumerate(LENGTHS):
            cut = x[row, :length]
            same(together[row, :length], theirs(cut, (length, 4)))
            same(alone[row, :length], theirs(cut, (4,)))
            assert not together[row, length:].any()
            assert not alone[row, length:].any()


def test_masked_parts_count_what_counts():
    parts = f.batch_norm_forward(padded(math.nan), None, None, W, B, True, mask=MASK)
    assert parts.count.tolist() == [10] * 4
    assert f.group_norm_forward(padded(math.nan), 2, mask=MASK).count.tolist() == [[10, 10], [4, 4], [6, 6]]
    assert f.batch_norm_forward(padded(0.0), None, None, training=True).count == 15
    assert f.layer_norm_forward(padded(0.0), 5).count == 5
    gradients = f.batch_norm_backward(torch.full((3, 4, 5), math.nan).where(~MASK[:, None], 1.0).double(), parts)
    assert not gradients.dx.isnan().any()
    same(gradients.dbeta, torch.full((4,), 10.0).double())
    same(gradients.projected, torch.ones(4).double())  # a constant gradient, as far as it counts


def test_a_mask_that_leaves_nothing():
    """Zero out, zero back, and no running statistic moves; a single value is its own mean."""
    nothing, one = torch.zeros(3, 5).bool(), torch.zeros(3, 5).bool().index_fill(0, torch.tensor(0), True)
    one = one & (torch.arange(5) == 2)
    for mask in (nothing, one):
        x = padded(0.0)
        buffers = [B.clone(), W.clone()]
        y = f.batch_norm(x, *buffers, W, B, training=True, mask=mask)
        assert torch.equal(buffers[0], B)
        assert torch.equal(buffers[1], W)
        same(y.mT[mask], B.expand(int(mask.sum()), 4))
        (dx,) = torch.autograd.grad(y.square().sum(), x)
        assert torch.isfinite(dx).all()
        assert not dx.any()


@pytest.mark.parametrize("shape", [(0, 4), (0, 4, 5), (3, 4, 0)], ids=str)
def test_empty_batches_give_empty_outputs_zero_gradients_and_move_nothing(shape):
    gradients = []
    for norm in (f.batch_norm, F.batch_norm):
        x, w, b = (t.clone().requires_grad_() for t in (torch.zeros(shape).double(), W, B))
        buffers = [torch.zeros(4).double(), torch.ones(4).double()]
        y = norm(x, *buffers, w, b, training=True)
        assert y.shape == shape
        assert torch.equal(buffers[0], torch.zeros(4))
        assert torch.equal(buffers[1], torch.ones(4))
        gradients.append(torch.autograd.grad(y.sum(), (x, w, b)))
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.equal(ours, theirs)
    assert f.layer_norm(torch.zeros(0, 4), 4).shape == (0, 4)
    assert f.rms_norm(torch.zeros(0, 4), 4).shape == (0, 4)
    assert f.group_norm(torch.zeros(0, 4, 3), 2).shape == (0, 4, 3)
    assert f.instance_norm(torch.zeros(0, 4, 3)).shape == (0, 4, 3)


def test_an_empty_batch_leaves_instance_norms_statistics_alone():
    """PyTorch fills them with nan."""
    buffers = [torch.zeros(4), torch.ones(4)]
    f.instance_norm(torch.zeros(0, 4, 3), *buffers)
    assert torch.equal(buffers[0], torch.zeros(4))
    assert torch.equal(buffers[1], torch.ones(4))


HALF = {
    "batch": lambda x, w, b: f.batch_norm(x, None, None, w, b, training=True),
    "running": lambda x, w, b: f.batch_norm(x, w.detach().float(), b.detach().float().exp(), w, b),
    "group": lambda x, w, b: f.group_norm(x, 2, w, b),
    "instance": lambda x, w, b: f.instance_norm(x, None, None, w, b),
    "layer": lambda x, w, b: f.layer_norm(x.mT, 4, w, b).mT,
    "rms": lambda x, w, b: f.rms_norm(x.mT, 4, w).mT,
    "weight": lambda x, w, b: f.weight_norm(x, w.reshape(1, 4, 1), dim=1),
    "spectral": lambda x, w, b: f.spectral_norm(
        x, *f.spectral_state(x, generator=torch.Generator().manual_seed(0)), n_power_iterations=3
    )[0],
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", HALF)
def test_half_precision_is_float32_rounded_once(method, dtype):
    """Output and gradients, to the last bit."""
    x, w, b = draw(4, 4, 6, seed=10, dtype=dtype), draw(4, seed=11, dtype=dtype), draw(4, seed=12, dtype=dtype)
    dy = draw(4, 4, 6, seed=13, dtype=dtype)
    found = []
    for width in (dtype, torch.float32):
        leaves = [t.to(width, copy=True).requires_grad_() for t in (x, w, b)]
        y = HALF[method](*leaves)
        assert y.dtype == width
        found.append((y, *torch.autograd.grad(y, leaves, dy.to(width), allow_unused=True)))
    for half, wide in zip(*found, strict=True):
        if wide is not None:
            assert half.dtype == dtype
            assert torch.equal(half, wide.to(dtype))


def test_half_precision_where_computing_in_it_fails():
    """Squares above 65504 are inf in float16, sums of thousands stall in bfloat16; the statistics here are float32."""
    x = draw(4096, 2, seed=14, dtype=torch.float16) + 300.0
    assert (x * x).isinf().any()
    parts = f.rms_norm_forward(x, 2)
    assert parts.variance.dtype == torch.float32
    torch.testing.assert_close(parts.variance, x.double().square().mean(1).float(), rtol=1e-5, atol=0.0)
    x = draw(4096, 2, seed=15, dtype=torch.bfloat16) + 8.0
    naive = torch.zeros(2, dtype=torch.bfloat16)
    for row in x:
        naive += row
    true = x.double().var(0, correction=0)
    assert ((naive / 4096 - 8.0).abs() > 1.0).all()
    parts = f.batch_norm_forward(x, None, None, training=True)
    torch.testing.assert_close(parts.variance.double(), true, rtol=1e-5, atol=0.0)


def test_rms_norms_default_eps_is_that_of_the_computation():
    small = torch.full((1, 3), 1e-3, dtype=torch.bfloat16)
    assert torch.equal(f.rms_norm(small, 3), F.rms_norm(small, (3,)))
    tiny = torch.full((1, 3), 1e-8, dtype=torch.float64)
    same(f.rms_norm(tiny, 3), F.rms_norm(tiny, (3,)))


def test_large_offsets_in_float32_cost_the_rounding_of_the_mean_and_no_more():
    """PyTorch's batch normalization of 1e6 + N(0, 1) on the CPU is off by 5 standard deviations."""
    x = (draw(4096, 8, seed=16) + 1e6).float()
    true = F.batch_norm(x.double(), None, None, training=True)
    ulp = 2.0**-4  # of float32 at 1e6
    assert (F.batch_norm(x, None, None, training=True).double() - true).abs().max() > 1.0
    assert (f.batch_norm(x, None, None, training=True).double() - true).abs().max() < ulp

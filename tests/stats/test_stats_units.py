"""Channels: rows against the kernel of whole tensors, and dead, constant, saturated units."""

import numpy as np
import pytest
import torch
from stats_cases import assert_rows_close, truth

from trimtab.stats import UNIT_FIELDS, channel_rows, unit_summary


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def summary(*args, **kwargs):
    return dict(zip(UNIT_FIELDS, unit_summary(*args, **kwargs).tolist(), strict=True))


@pytest.mark.parametrize(("shape", "axis"), [((50, 8), 1), ((50, 8), -1), ((8, 50), 0), ((5, 8, 4, 3), 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_channel_rows(shape, axis, dtype):
    x = normal(*shape).to(dtype)
    x[0] = torch.nan
    x.select(axis, 3).zero_()
    rows = channel_rows(x.requires_grad_(), axis)
    assert rows.dtype == torch.float64
    assert not rows.requires_grad
    for channel, row in enumerate(rows):
        assert_rows_close(row.numpy(), truth(x.detach().select(axis, channel).double()))


def test_channel_rows_of_an_offset():
    x = normal(1000, 3) + 1e6
    naive = x.square().mean(0) - x.mean(0).square()
    assert (naive - x.double().var(0)).abs().max() > 10
    for channel, row in enumerate(channel_rows(x, 1)):
        expected = truth(x[:, channel])
        assert_rows_close(row.numpy(), expected, rtol=1e-7)
        assert row[1:3].numpy() == pytest.approx(expected[1:3], rel=1e-9)


def test_channel_rows_of_nothing():
    assert channel_rows(torch.empty(0, 4), 1).tolist() == [[0.0] * 7] * 4
    assert channel_rows(torch.empty(3, 0), 1).shape == (0, 7)
    assert channel_rows(torch.full((3, 2), torch.inf), 1).tolist() == [[0, 0, 0, 0, 0, 0, 3.0]] * 2


def test_silent_and_constant_units():
    x = normal(64, 6)
    x[:, 0] = 0
    x[:, 1] = 0.1
    x[:, 2] = torch.nan
    result = summary(x, 1)
    assert (result["units"], result["silent"], result["constant"]) == (6, 1, 2)
    assert (result["edge"], result["stuck"]) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [0.1, 1e-6, 1234.567])
def test_rounding_is_told_from_signal(dtype, value):
    eps = torch.finfo(dtype).eps
    noise = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)) - 0.5
    rounding = (value * (1 + eps * noise)).to(dtype)
    assert summary(rounding, 1)["constant"] == 1
    signal = (value * (1 + 64 * eps * noise)).to(dtype)
    assert summary(signal, 1)["constant"] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_many_samples_do_not_make_a_signal_constant(dtype):
    x = normal(20_000, 1).to(dtype)
    eps = torch.finfo(dtype).eps
    naive = 20_000 * eps * x.double().var() + (20_000 * x.double().mean() * eps) ** 2
    assert dtype == torch.float32 or x.double().var() < naive  # the bound with the tensor's own eps
    assert summary(x, 1)["constant"] == 0


def test_signal_is_the_share_that_varies():
    x = normal(4000, 5, dtype=torch.float64)
    assert summary(x + 1, 1)["signal"] == pytest.approx(0.5, abs=0.02)
    assert summary(torch.full((9, 2), 3.0), 1)["signal"] == pytest.approx(0, abs=1e-12)
    assert np.isnan(summary(torch.zeros(9, 2), 1)["signal"])
    y = normal(20, 5, 6, 6, dtype=torch.float64) + torch.arange(5.0).view(1, 5, 1, 1)
    flat = y.movedim(1, 0).reshape(5, -1).numpy()
    assert summary(y, 1)["signal"] == pytest.approx(flat.var(1).sum() / (flat**2).mean(1).sum())


def test_edges_of_tanh_and_sigmoid():
    x = normal(500, 4)
    x[:, 1] *= 1e3
    result = summary(x.tanh(), 1, low=-1, high=1)
    y = x.tanh().abs()
    assert result["stuck"] == 1
    assert result["edge"] == pytest.approx((y >= 1 - 0.025).double().mean().item())
    assert summary(x.sigmoid(), 1, low=0, high=1)["stuck"] == 1
    assert summary(torch.empty(0, 4), 1, low=0, high=1)["stuck"] == 0


def test_summary_stays_on_the_device():
    result = unit_summary(torch.ones(3, 2, device="meta"), 1, low=0, high=1)
    assert result.device.type == "meta"  # a branch on a value would have raised
    assert result.shape == (len(UNIT_FIELDS),)

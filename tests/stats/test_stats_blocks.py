"""The sample of blocks: what is kept, that it is a view, and that it measures like the whole."""

import pytest
import torch
from stats_cases import assert_rows_close, truth

from trimtab.stats import is_sampled, sample_blocks
from trimtab.stats.blocks import BLOCK


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_small_tensors_are_kept_whole_without_a_copy():
    x = normal(30, 40)
    sample = sample_blocks(x)
    assert sample.shape == (1200,)
    assert sample.data_ptr() == x.data_ptr()
    assert not is_sampled(x)
    assert torch.equal(sample_blocks(x.T), x.view(-1))


@pytest.mark.parametrize("n", [10 * BLOCK + 5, 65 * BLOCK, 100 * BLOCK + 4095])
@pytest.mark.parametrize("limit", [BLOCK, 3 * BLOCK, 20 * BLOCK])
def test_sample_is_a_view_of_every_kth_block(n, limit):
    x = torch.arange(n, dtype=torch.float32)
    sample = sample_blocks(x, limit)
    if n <= limit:
        assert not is_sampled(x, limit)
        assert sample.shape == (n,)
        return
    assert is_sampled(x, limit)
    assert sample.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert sample.shape[1] == BLOCK
    assert sample.numel() <= limit + BLOCK
    assert sample.numel() >= min(limit // 4, BLOCK)
    starts = sample[:, 0]
    assert torch.all(starts % BLOCK == 0)
    step = starts.diff()
    assert torch.all(step == step[:1])
    assert torch.all(step / BLOCK % 2 == 1)
    assert torch.all(sample.diff(dim=1) == 1)


def test_even_steps_would_see_the_same_columns_of_every_row():
    x = torch.zeros(64, 4 * BLOCK)
    x[:, BLOCK:] = 1  # the first quarter of the columns differs
    flat = x.view(-1, BLOCK)
    assert flat[::4].mean() == 0  # naive
    assert sample_blocks(x, x.numel() // 4).mean() == pytest.approx(0.75, abs=0.02)


def test_updates_of_a_large_parameter(tape):
    p = torch.nn.Parameter(normal(70, BLOCK))
    before = sample_blocks(p, 10 * BLOCK).clone()
    with torch.no_grad():
        p += 1e-3 * normal(70, BLOCK, seed=1)
    after = sample_blocks(p, 10 * BLOCK)
    assert not after.requires_grad
    index = tape.measure_difference(after, before)
    assert_rows_close(tape.rows()[index], truth(after - before))
    index = tape.measure(after)
    assert_rows_close(tape.rows()[index], truth(after))

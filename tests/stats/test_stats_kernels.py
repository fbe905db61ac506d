"""Each path against numpy in float64: magnitudes, offsets, non-finite values, sizes around the block."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from stats_cases import assert_rows_close, truth

FAST = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 200, 4095, 4096, 4097, 8192, 8193, 12289, 100_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_sizes_and_dtypes(measure, n, dtype):
    x = normal(n, dtype=dtype)
    x[::5] = 0
    assert_rows_close(measure(x), truth(x.double()))


@pytest.mark.parametrize("n", [1000, 100_000])
@pytest.mark.parametrize("make", ["relu", "negative", "sorted", "sign", "half constant", "steps"])
def test_shapes_of_distribution(measure, make, n):
    x = normal(n)
    x = {
        "relu": x.relu(),
        "negative": -x.abs() - 1,
        "sorted": x.sort().values * 100,
        "sign": x.sign(),
        "half constant": torch.cat((torch.full((n,), 1000.0), x)),
        "steps": x + 1e4 * (torch.arange(n) // 4096 % 3),
    }[make]
    assert_rows_close(measure(x), truth(x), rtol=3e-5)


def test_offset_breaks_the_naive_formula_and_not_ours(measure):
    x = normal(200_000) + 1e6
    expected = truth(x)
    naive = (x.square().mean() - x.mean().square()).item()
    assert abs(naive - expected[2] / expected[0]) > 10  # of a true variance of 1
    assert_rows_close(measure(x), expected, rtol=1e-4)


def test_small_variance_on_an_offset(measure):
    x = 1000 + 1e-3 * normal(50_000)
    assert abs((x.square().mean() - x.mean().square()).item()) > 1e-2  # naive: of a true 1e-6
    assert_rows_close(measure(x), truth(x), rtol=1e-4)


def test_many_equal_values_break_one_accumulator_and_not_ours(measure):
    x = torch.full((16_000_000,), 0.1)
    exact = float(x[0]) ** 2
    naive = torch.linalg.vector_norm(x).item() ** 2 / x.numel()
    assert abs(naive / exact - 1) > 1e-2
    row = measure(x)
    assert row[1] ** 2 + row[2] / row[0] == pytest.approx(exact, rel=1e-6)
    assert row[3] == pytest.approx(float(x[0]), rel=1e-5)
    assert row[2] / row[0] < 1e-12 * exact


@pytest.mark.parametrize("n", [100, 20_000])
@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-20, 1e-12, 1e12, 1e19, 1e30, 1e37])
def test_magnitudes_whose_squares_leave_float32(measure, scale, n):
    x = (normal(n, dtype=torch.float64) * scale).float()
    if not 1e-18 < scale < 1e18:
        naive = x.var(correction=0).item() if scale < 1 else x.square().mean().item()
        assert naive in {0.0, float("inf")} or scale == 1e-20
    # Near 1e-42 the device path halves deviations that have three digits left.
    assert_rows_close(measure(x), truth(x), rtol=1e-2 if scale == 1e-42 else 1e-5)


def test_opposite_extremes(measure):
    top = torch.finfo(torch.float32).max
    x = torch.tensor([top, -top] * 5000)
    assert_rows_close(measure(x), truth(x))


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_float64_magnitudes(measure, scale):
    x = normal(20_000, dtype=torch.float64) * scale
    assert_rows_close(measure(x), truth(x), rtol=1e-10)


def test_float64_squares_that_overflow_do_not_raise(measure):
    row = measure(torch.tensor([1e200, -1e200] * 10, dtype=torch.float64))
    assert row[0] == 20
    assert row[4] == 1e200


@pytest.mark.parametrize("n", [10, 5000, 30_000, 300_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nonfinite_values_are_counted_apart(measure, n, dtype):
    x = normal(n, dtype=dtype) + 3
    x[1], x[n // 2], x[-1] = torch.nan, torch.inf, -torch.inf
    assert_rows_close(measure(x), truth(x.double()))


@pytest.mark.parametrize("n", [3, 10_000])
def test_nothing_finite(measure, n):
    assert measure(torch.full((n,), torch.nan)).tolist() == [0, 0, 0, 0, 0, 0, n]


def test_block_of_only_nonfinite_values_between_others(measure):
    x = normal(5 * 4096) + 100
    x[4096:8192] = torch.inf
    assert_rows_close(measure(x), truth(x))


def test_negative_zero_is_a_zero(measure):
    x = torch.tensor([0.0, -0.0, 1.0] * 10_000)
    assert measure(x)[5] == 20_000


def test_block_after_a_huge_one(measure):
    x = normal(4 * 4096)
    x[:4096] *= 1e30  # the running mean is of no use to the blocks that follow
    assert_rows_close(measure(x), truth(x))


@FAST
@given(x=arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32)))
def test_any_floats(measure, x):
    assert_rows_close(measure(torch.from_numpy(x)), truth(x))


@FAST
@given(seed=st.integers(0, 2**31), n=st.integers(1, 20_000))
def test_order_changes_nothing(measure, seed, n):
    x = normal(n, seed=seed) * 3 + 1
    shuffled = x[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]
    assert_rows_close(measure(shuffled), measure(x))


@FAST
@given(seed=st.integers(0, 2**31), n=st.integers(1, 20_000), power=st.integers(-60, 60))
def test_scaling_law(measure, seed, n, power):
    x = normal(n, seed=seed).relu() + 0.5
    scale = 2.0**power
    law = np.array([1, scale, scale**2, scale, scale, 1, 1])
    assert_rows_close(measure(x * scale), measure(x) * law)


def test_torch_path_samples_large_tensors_and_says_so(tape):
    x = normal(2**19 + 100)
    x[::2] = 0
    index = tape.measure(x)
    row, expected = tape.rows()[index], truth(x)
    np.testing.assert_allclose(row[[0, 1, 2, 4, 6]], expected[[0, 1, 2, 4, 6]], rtol=1e-5, atol=1e-7)
    sampled = not tape._kernels
    assert tape.sampled(index) == sampled
    np.testing.assert_allclose(row[[3, 5]], expected[[3, 5]], rtol=2e-2 if sampled else 1e-6)
    small = tape.measure(x[:1000])
    assert not tape.sampled(small)


def test_torch_path_needs_no_sample_where_the_sign_tells(tape):
    index = tape.measure(normal(2**19).abs() + 1)
    assert not tape.sampled(index)

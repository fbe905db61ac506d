"""Rows merge like the sets they stand for."""

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from stats_cases import assert_rows_close, truth

from trimtab.stats import FIELDS, Tape, empty, finish, merge, merge_rows, tape, update

FAST = settings(max_examples=50, deadline=None)
VALUES = arrays(np.float64, st.integers(0, 30), elements=st.floats(-1e6, 1e6, allow_subnormal=False))


def assert_same(a, b, scale=None):
    magnitude = max(a[4], b[4], 1e-300) if scale is None else scale
    np.testing.assert_allclose(a[[0, 4, 5, 6]], b[[0, 4, 5, 6]])
    np.testing.assert_allclose(a[[1, 3]], b[[1, 3]], rtol=1e-9, atol=1e-12 * magnitude)
    np.testing.assert_allclose(a[2], b[2], rtol=1e-9, atol=1e-12 * magnitude**2 * max(a[0], 1))


@FAST
@given(x=VALUES, cut=st.integers(0, 30))
def test_any_split_equals_one_pass(x, cut):
    assert_same(merge(truth(x[:cut]), truth(x[cut:])), truth(x))


@FAST
@given(x=VALUES, y=VALUES, z=VALUES)
def test_merge_commutes_and_associates(x, y, z):
    a, b, c = truth(x), truth(y), truth(z)
    assert_same(merge(a, b), merge(b, a))
    assert_same(merge(merge(a, b), c), merge(a, merge(b, c)), max(a[4], b[4], c[4], 1e-300))


@FAST
@given(x=VALUES)
def test_empty_is_neutral(x):
    assert_same(merge(empty(), truth(x)), truth(x))
    assert_same(merge(truth(x), empty()), truth(x))


def test_merging_survives_an_offset_that_breaks_sums_of_squares():
    x = 1e8 + np.random.default_rng(0).standard_normal(100_000)
    parts = np.array_split(x, 100)
    total = sum((part**2).sum() for part in parts) / x.size - x.mean() ** 2
    assert abs(total - x.var()) > 0.1  # naive, in float64
    row = empty()
    for part in parts:
        row = merge(row, truth(part))
    assert row[2] / row[0] == pytest.approx(x.var(), rel=1e-8)


def test_merge_broadcasts_over_leading_axes():
    rows = np.stack([truth(np.arange(n)) for n in range(1, 7)]).reshape(2, 3, 7)
    one = truth([10.0, -3.0])
    merged = merge(rows, one)
    assert merged.shape == (2, 3, 7)
    assert_same(merged[1, 2], merge(rows[1, 2], one))


def test_merge_leaves_its_arguments_alone():
    a, b = truth([1.0, 2.0]), truth([3.0])
    before = a.copy(), b.copy()
    merge(a, b)
    np.testing.assert_array_equal((a, b), before)


def test_merge_rows_equals_merging_one_by_one():
    generator = np.random.default_rng(0)
    rows = np.stack([truth(generator.normal(i, 2, size=i % 5)) for i in range(60)])
    rows[7, 6] = 3
    groups = generator.integers(0, 9, 60)
    groups[groups == 4] = 5
    merged = merge_rows(rows, groups, 10)
    for group in range(10):
        expected = empty()
        for row in rows[groups == group]:
            expected = merge(expected, row)
        assert_same(merged[group], expected)
    assert not merged[4].any()
    assert merge_rows(np.empty((0, 7)), np.empty(0, np.int64), 2).tolist() == [[0] * 7] * 2


def test_merge_rows_puts_rows_that_stand_alone_in_their_place():
    rows = np.stack([truth(np.arange(n)) for n in range(1, 5)])
    merged = merge_rows(rows, np.array([3, 0, 5, 1]), 7)
    np.testing.assert_array_equal(merged[[3, 0, 5, 1]], rows)
    assert not merged[[2, 4, 6]].any()


def test_merge_rows_survives_an_offset():
    x = 1e8 + np.random.default_rng(0).standard_normal(10_000)
    rows = np.stack([truth(part) for part in np.array_split(x, 50)])
    merged = merge_rows(rows, np.zeros(50, np.int64), 1)[0]
    assert merged[2] / merged[0] == pytest.approx(x.var(), rel=1e-8)


def test_merge_rows_is_cheap():
    rows = np.random.default_rng(0).random((500, 7))
    groups = np.arange(500) % 250
    best = math.inf
    for _ in range(50):
        start = time.process_time()
        for _ in range(10):
            merge_rows(rows, groups, 250)
        best = min(best, (time.process_time() - start) / 10)
    assert best < 300e-6  # 40 us on a quiet machine; room for a loaded one


def test_squares_beyond_float64_give_an_infinite_m2_without_a_warning():
    a, b = truth([1e200]), truth([-1e200])
    assert merge(a, b)[2] == math.inf
    assert merge_rows(np.stack((a, b)), np.zeros(2, np.int64), 1)[0, 2] == math.inf


@pytest.mark.parametrize("m2", [0.0, math.inf])
def test_merging_with_no_values_takes_the_others_m2_however_large_they_are(m2):
    row = np.array([5, 1e200, m2, 1e200, 1e200, 0, 1])
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(merge(empty(), row), row)
        np.testing.assert_array_equal(merge(row, empty()), row)
        both = merge(np.stack((row, empty(), row)), np.stack((empty(), row, empty())))
    np.testing.assert_array_equal(both, np.stack((row, row, row)))


@pytest.mark.parametrize("n", [1, 100, 10_000, 300_000])
@pytest.mark.usefixtures("tape")  # with numba and without
def test_update_of_values_whose_squares_overflow(n):
    """Naive: (1e200 - 0)² times no values before is infinity times zero."""
    assert math.isnan(1e200 * 1e200 * 0.0)
    row = update(empty(), torch.full((n,), 1e200, dtype=torch.float64))
    assert row[2] in (0.0, math.inf)
    spread = update(row, torch.tensor([-1e200] * n, dtype=torch.float64))
    assert spread[2] == math.inf
    assert spread[0] == 2 * n


def test_update_folds_tensors_in_and_is_pure():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    start = empty()
    row = start
    for part in x.split(300):
        row = update(row, part)
    assert_rows_close(row, truth(x))
    assert not start.any()
    same = update(row, torch.arange(3))
    np.testing.assert_array_equal(same, row)
    assert same is not row


def test_finish_names_everything():
    moments = finish(truth([3.0, -1.0, 0.0, math.inf]), sampled=True)
    assert (moments.count, moments.zeros, moments.nonfinite, moments.sampled) == (3, 1, 1, True)
    assert not moments.finite
    assert moments.mean == pytest.approx(2 / 3)
    assert moments.variance == pytest.approx(np.var([3, -1, 0]))
    assert moments.std == pytest.approx(np.std([3, -1, 0]))
    assert moments.second_moment == pytest.approx(10 / 3)
    assert moments.rms == pytest.approx(math.sqrt(10 / 3))
    assert moments.zero_share == pytest.approx(1 / 3)
    assert [moments.abs_mean, moments.abs_max] == pytest.approx([4 / 3, 3])


def test_finish_of_nothing_claims_nothing():
    moments = finish(empty())
    assert (moments.count, moments.m2, moments.zeros, moments.nonfinite, moments.sampled) == (0, 0, 0, 0, False)
    names = ("mean", "abs_mean", "abs_max", "variance", "std", "second_moment", "rms", "zero_share")
    assert all(math.isnan(getattr(moments, name)) for name in names)
    assert moments.finite


def test_fields_are_the_attributes():
    assert FIELDS == ("count", "mean", "m2", "abs_mean", "abs_max", "zeros", "nonfinite")
    assert list(finish(empty()).__slots__)[:7] == list(FIELDS)


def test_the_mark_of_a_sample_is_carried(monkeypatch):
    monkeypatch.setattr(tape, "compiled_kernel", lambda: None)
    large, small = torch.randn(2**21), torch.randn(10)
    probe = Tape()
    assert probe.sampled(probe.measure(large))
    row = update(empty(), large)
    assert finish(row).sampled
    assert finish(update(row, small)).sampled
    assert finish(update(row, torch.arange(3))).sampled
    assert finish(merge(update(empty(), small), row)).sampled
    assert not finish(update(empty(), small)).sampled
    assert not finish(row, sampled=False).sampled

"""When a repair counts as proved."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from trimtab.repairs.proof import LEVEL, as_numbers, gain, level, looks, no_worse


def by_seed(scores):
    return dict(enumerate(scores))


NUMBERS = st.floats(-10, 10).map(lambda x: round(x, 3))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=8), st.booleans())
def test_the_interval_is_that_of_a_paired_t_test(pairs, last):
    with_it, without = map(np.array, zip(*pairs, strict=True))
    found = gain(by_seed(with_it), by_seed(without), last)
    error = 0.04 if last else 0.005
    if np.std(with_it - without) > 1e-9:
        wanted = stats.ttest_rel(with_it, without).confidence_interval(1 - error)
        assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), rel=1e-6, abs=1e-9)
    assert found.mean == pytest.approx(float(np.mean(with_it - without)))


def test_three_looks_spend_one_error():
    assert sum(1 - level(last) for last in (False, False, True)) == pytest.approx(1 - LEVEL)
    assert looks(3) == (3, 5, 8)
    assert looks(2) == (2, 5, 8)
    assert looks(8) == (8,)
    assert looks(12) == (12,)


def test_false_proofs_are_rare():
    """Among 4000 repairs that do nothing, no more are proved at any of the looks than the level allows (one side: 2.5 %)."""
    rng, false = np.random.default_rng(0), 0
    for _ in range(4000):
        noise = rng.standard_normal(8)
        false += any(gain(by_seed(noise[:n]), by_seed(np.zeros(n)), last=n == 8).proved for n in looks(3))
    assert false / 4000 < 0.025 + 3 * math.sqrt(0.025 * 0.975 / 4000)


def test_one_pair_proves_nothing():
    assert not gain({0: 1.0}, {0: 0.0}, last=True).proved


def test_equal_gains_without_spread_are_proved_and_ties_are_not():
    assert gain(by_seed([1.0] * 3), by_seed([0.0] * 3), last=False).proved
    assert not gain(by_seed([1.0] * 3), by_seed([1.0] * 3), last=True).proved


def test_a_run_that_broke_counts_as_the_worst():
    assert as_numbers({0: 0.5, 4: None}, -3.0) == {0: 0.5, 4: -3.0}


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=2, max_size=8))
def test_raised_controls_never_make_a_gain_larger(rows):
    with_it, control, untrained = map(by_seed, zip(*rows, strict=True))
    assert gain(with_it, no_worse(control, untrained), last=True).mean <= gain(with_it, control, last=True).mean + 1e-12


def test_a_control_that_diverged_counts_as_untrained_or_as_doing_nothing():
    controls, untrained, nothing = {0: 0.5, 1: -10.0, 2: -3.0}, {0: 0.1, 1: 0.1}, {1: 0.4, 5: 1.0}
    assert no_worse(controls, untrained) == {0: 0.5, 1: 0.1, 2: -3.0}
    assert no_worse(controls, untrained, nothing) == {0: 0.5, 1: 0.4, 2: -3.0}


def test_pairs_are_made_of_the_seeds_that_both_have():
    assert gain({0: 1.0, 1: 2.0, 2: 30.0}, {1: 1.0, 0: 0.5, 7: 3.0}, last=True).mean == pytest.approx(0.75)

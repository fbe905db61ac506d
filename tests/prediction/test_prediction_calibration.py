"""Three sigma: of many random networks nearly all measurements lie inside, and not because the band is wide."""

import numpy as np
import prediction_random as nets
import pytest


@pytest.fixture(scope="module")
def few():
    return [nets.outcome(seed, small=True) for seed in range(40)]


def test_a_few_small_networks(few):
    found = nets.coverage(few)
    assert found["sites"] >= 0.95, found
    assert found["last site"] >= 0.95, found


def test_the_band_is_not_just_wide(few):
    last = np.array([o.forward[-1] for o in few])
    assert 0.4 < np.sqrt(np.mean(last**2)) < 1.5
    assert np.mean(np.abs(last) > 0.5) > 0.1


@pytest.mark.slow
def test_four_hundred_networks():
    outcomes = [nets.outcome(seed) for seed in range(400)]
    found = nets.coverage(outcomes)
    assert 0.95 <= found["sites"] <= 0.999, found
    assert 0.95 <= found["last site"] <= 0.999, found
    assert 0.95 <= found["first gradient"] <= 0.999, found

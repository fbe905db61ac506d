"""Shares of units on flat parts: against counting."""

import math

import pytest
import torch

from trimtab.propagation import PropagationError, silent_share


@pytest.mark.parametrize(
    ("q", "mean", "alike", "samples"), [(1.0, 0.0, 0.0, 3), (2.0, 0.0, 0.6, 8), (5.0, -1.5, 0.8, 16)]
)
def test_silent_units_are_counted(q, mean, alike, samples):
    torch.manual_seed(0)
    units = 200_000
    common = mean + max(q * alike - mean**2, 0.0) ** 0.5 * torch.randn(units, 1)
    off = (common + (q * (1 - alike)) ** 0.5 * torch.randn(units, samples) < 0).all(1).double().mean().item()
    share = silent_share(q, mean, alike, samples)
    assert abs(share - off) < 4 * math.sqrt(share * (1 - share) / units)


def test_the_two_ends():
    assert silent_share(1.0, 0.0, 0.0, 10) == pytest.approx(2**-10, rel=1e-9)
    assert silent_share(1.0, 0.0, 1.0, 10) == pytest.approx(0.5, abs=1e-3)
    assert silent_share(101.0, -10.0, 100.2 / 101, 64) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("wrong", [(0.0, 0.0, 0.0, 3), (1.0, 0.0, 1.5, 3), (1.0, 0.0, 0.0, 0), (1.0, math.nan, 0.0, 3)])
def test_what_is_no_share(wrong):
    with pytest.raises(PropagationError):
        silent_share(*wrong)

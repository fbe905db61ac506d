"""How much a loss depends on the rate: a parabola, whose losses under gradient descent are known."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from trimtab import Setup
from trimtab.diagnosis import RateSensitivity, rate_sensitivity, sensitivity_figure
from trimtab.errors import UsageError


class Parabola(nn.Module):
    """The loss w^2 / 2 from w = 1: descent at rate r multiplies w by 1 - r."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return 0.5 * self.w**2 * x.mean()


def parabola(steps=20):
    model = Parabola()
    batch = torch.ones(4, dtype=torch.float64)
    return Setup(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: [batch], lambda m, x: m(x), steps=steps)


def test_losses_are_those_of_the_closed_form():
    found = rate_sensitivity(parabola(), factors=(1.0, 5.0, 10.0))
    tail = np.arange(15, 20)  # the last quarter
    expected = [float(np.mean(0.5 * (1 - rate) ** (2 * tail))) for rate in (0.1, 0.5, 1.0)]
    assert found.rates == pytest.approx((0.1, 0.5, 1.0))
    assert found.losses == pytest.approx(expected, rel=1e-9, abs=1e-30)
    assert found.first == 0.5
    assert found.best == pytest.approx(1.0)
    assert found.value == pytest.approx(np.mean(expected) - min(expected))


def test_a_run_that_broke_counts_as_the_loss_at_initialization():
    found = rate_sensitivity(parabola(), factors=(10.0, 40.0))
    assert math.isinf(found.losses[1])
    assert found.value == pytest.approx(0.25)  # (0 + 0.5) / 2
    assert "broke" in str(found)
    assert "0.25" in str(found)


def test_a_loss_that_does_not_depend_on_the_rate_has_none():
    assert RateSensitivity("", (0.1, 1.0, 10.0), (0.2, 0.2, 0.2), 1.0).value == pytest.approx(0.0)


def test_the_setup_is_not_trained():
    setup, told = parabola(), []
    rate_sensitivity(setup, steps=4, factors=(1.0, 2.0), progress=lambda done, of: told.append((done, of)))
    assert setup.model.w.item() == 1.0
    assert told[-1] == (8, 8)


def test_the_figure_has_a_line_for_each_run(tmp_path):
    runs = [
        RateSensitivity("with $x$", (0.1, 1.0), (0.5, 0.1), 1.0),
        RateSensitivity("without", (0.1, 1.0), (0.5, math.inf), 1.0),
    ]
    figure = sensitivity_figure(runs, tmp_path / "rates.png")
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == [r"with \$x\$: 0.2", "without: 0.25"]
    assert (tmp_path / "rates.png").stat().st_size > 1000


def test_wrong_arguments_are_named():
    with pytest.raises(UsageError, match="factors must be positive numbers"):
        rate_sensitivity(parabola(), factors=(1.0, -1.0))
    with pytest.raises(ValueError, match="at least one run"):
        sensitivity_figure([])

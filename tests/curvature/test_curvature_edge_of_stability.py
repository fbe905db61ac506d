"""Full-batch training lets the sharpness rise to what the optimizer bears, and holds it there (Cohen et al. 2021 and 2022)."""

import pytest
import torch
from curvature_digits import digits
from torch import nn

from trimtab import Setup
from trimtab.curvature import sharpness


def squared(model, batch):
    return (model(batch[0]) - batch[1]).square().sum(1).mean() / 2


def ratios(make, steps, seed, samples=20):
    """Sharpness over limit, every so many steps of a tanh net on 200 digits."""
    x, y = digits()
    batch = (x[:200], nn.functional.one_hot(y[:200], 10).float())
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10))
    setup = Setup(model, make(model.parameters()), lambda: [batch], squared)
    found = []
    for i, _ in enumerate(setup.train(steps)):
        if i % (steps // samples) == 0:
            result = sharpness(setup)
            assert result.converged
            found.append(result.ratio)
    return found


def sgd(rate, **options):
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, **options)


def adam(rate):
    return lambda parameters: torch.optim.Adam(parameters, lr=rate)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("make", "steps"),
    [
        pytest.param(sgd(0.5), 1500, id="gradient descent 0.5"),
        pytest.param(sgd(0.35), 2000, id="gradient descent 0.35"),
        pytest.param(sgd(0.25), 2500, id="gradient descent 0.25"),
        pytest.param(sgd(0.7, momentum=0.9), 2000, id="heavy ball 0.9"),
        pytest.param(sgd(0.5, momentum=0.5), 2000, id="heavy ball 0.5"),
        pytest.param(sgd(0.25, momentum=0.9, nesterov=True), 2000, id="Nesterov"),
        pytest.param(adam(5e-3), 2000, id="Adam, preconditioned"),
    ],
)
def test_sharpness_rises_to_its_limit_and_stays(make, steps, seed):
    found = ratios(make, steps, seed)
    print("sharpness over limit", [round(r, 3) for r in found])
    assert min(found[:3]) < 0.7, "it begins below; Adam's very first step, with nothing averaged, need not"
    late = found[len(found) // 2 :]
    assert all(0.8 < r < 1.2 for r in late), late


@pytest.mark.slow
def test_a_rate_whose_limit_training_never_reaches_stays_below_it():
    """So that the test above can fail: at a tenth of the rate, the loss is learnt before the sharpness gets there."""
    found = ratios(sgd(0.05), 1500, 0, samples=5)
    assert max(found) < 0.5, found

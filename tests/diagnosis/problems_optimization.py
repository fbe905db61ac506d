"""Problems of the optimization: inputs that are badly conditioned, critics without a bound, rates that start too high."""

import torch
from problems import healthy, passes, problem
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from trimtab import Setup


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def standardized(x):
    return (x - x.mean(0)) / x.std(0)


def whitened(x):
    _, values, basis = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    return (x - x.mean(0)) @ (basis.T / values * len(x) ** 0.5)


def regression(model, x, y, optimizer, steps, size=64):
    return Setup(
        model, optimizer, passes(x.float(), y.float()[:, None], size), lambda m, b: F.mse_loss(m(b[0]), b[1]), steps
    )


@problem("ill-conditioned", "data", "Linear")
def sensors_that_nearly_agree(broken):
    """Eight sensors of one quantity; what is wanted lies in how they differ."""
    x = torch.randn(400, 1, generator=seeded()).double() + 0.02 * torch.randn(400, 8, generator=seeded(1)).double()
    y = 30 * (x[:, 0] - x[:, 1]) + 30 * (x[:, 2] - x[:, 3])
    model = nn.Linear(8, 1)
    x = standardized(x) if broken else whitened(x)
    return regression(model, x, y, SGD(model.parameters(), lr=0.05), 300)


@problem("ill-conditioned", "data", "0")
def powers_into_a_net(broken):
    """A narrow net with momentum on powers of one number, where most of the answer is in how high powers differ."""
    t = torch.rand(384, generator=seeded(), dtype=torch.float64) * 2 - 1
    x = torch.stack([t**k for k in range(1, 13)], 1)
    y = torch.sin(9 * t)
    model = nn.Sequential(nn.Linear(12, 4), nn.Linear(4, 1))
    x = standardized(x) if broken else whitened(x)
    return regression(model, x, y, SGD(model.parameters(), lr=0.01, momentum=0.8), 300)


@problem("ill-conditioned", "data", "linear")
def logistic_on_near_copies(broken):
    """Two columns that are nearly the same; the class is in the sign of their difference."""
    g = seeded(2)
    a = torch.randn(512, 1, generator=g).double()
    d = torch.randn(512, 1, generator=g).double()
    x = torch.cat([a + 0.01 * d, a - 0.01 * d, torch.randn(512, 3, generator=g).double()], 1)
    y = (d[:, 0] + 0.1 * torch.randn(512, generator=g).double() > 0).long()
    model = nn.Sequential()
    model.linear = nn.Linear(5, 2)
    x = (standardized(x) if broken else whitened(x)).float()
    optimizer = SGD(model.parameters(), lr=0.5)
    return Setup(model, optimizer, passes(x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]), 300)


@problem("ill-conditioned", "data", "0")
def adam_on_powers(broken):
    """Adam scales each weight, and takes no correlation away."""
    t = torch.rand(512, generator=seeded(3), dtype=torch.float64)
    x = torch.stack([t**k for k in range(1, 10)], 1)
    y = torch.cos(12 * t)
    model = nn.Sequential(nn.Linear(9, 1))
    x = standardized(x) if broken else whitened(x)
    return regression(model, x, y, Adam(model.parameters(), lr=0.01), 400)


@healthy
def correlated_inputs_without_consequence():
    """Correlated all the same, but the answer lies along the steep directions."""
    x = torch.randn(400, 1, generator=seeded()).double() + 0.02 * torch.randn(400, 8, generator=seeded(1)).double()
    y = x.mean(1) + 0.3 * torch.randn(400, generator=seeded(2)).double()
    model = nn.Linear(8, 1)
    return regression(model, standardized(x), y, SGD(model.parameters(), lr=0.05), 300)


@healthy
def a_wide_net_on_powers():
    """Hidden units see more than the powers: it learns."""
    t = torch.rand(384, generator=seeded(), dtype=torch.float64) * 2 - 1
    x = standardized(torch.stack([t**k for k in range(1, 7)], 1))
    y = torch.sin(4 * t)
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))
    return regression(model, x, y, Adam(model.parameters(), lr=0.01), 300)

"""Small runs with a fault that a change from outside can mend."""

import torch
from torch import nn
from torch.nn import functional as F

from trimtab import Setup


def blobs(seed=0, count=256, classes=4):
    """Points around the corners of a square, and which corner."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    corners = torch.tensor([[2.0, 2.0], [2.0, -2.0], [-2.0, 2.0], [-2.0, -2.0]])
    return corners[labels] + torch.randn(count, 2, generator=generator), labels


def make_setup(seed, *, lr=0.1, steps=100, evaluate=True, net=None, optimizer=torch.optim.SGD, step=None, **settings):
    """A classifier of points that a plain step at rate 0.1 trains well."""
    torch.manual_seed(seed)
    model = net() if net is not None else nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = blobs(seed)
    held = blobs(seed + 1000)

    def score(m):
        with torch.no_grad():
            return float((m(held[0]).argmax(1) == held[1]).float().mean())

    return Setup(
        model,
        optimizer(model.parameters(), lr=lr, **settings),
        lambda: [(x[i : i + 64], y[i : i + 64]) for i in range(0, 256, 64)],
        lambda m, batch: F.cross_entropy(m(batch[0]), batch[1]),
        steps=steps,
        evaluate=score if evaluate else None,
        step=step,
    )


def too_slow(seed):
    """A rate a thousand times too small."""
    return make_setup(seed, lr=1e-4)


def healthy(seed):
    """Nothing is wrong with it."""
    return make_setup(seed)

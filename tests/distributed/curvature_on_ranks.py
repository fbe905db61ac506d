"""A net and uneven batches for curvature on two ranks, and what the ranks must agree on."""

import torch
from torch import nn

SIZES = (24, 7)


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def made():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3)).double()
    batches = [(torch.randn(n, 6, dtype=torch.float64), torch.randint(3, (n,))) for n in SIZES]
    return model, batches


def same(whole, first, second, tolerance):
    """Both ranks have the numbers of one process with all batches, and the very same ones."""
    for name, value in whole.items():
        assert torch.equal(first[name], second[name]), "the ranks must go the same way"
        assert float((first[name] - value).norm()) <= tolerance * float(value.norm()), name

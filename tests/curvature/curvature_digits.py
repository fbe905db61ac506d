"""The data and the nets of the claims: standardized digits, deep ReLU nets by He's rule with a normalization or without."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from trimtab import Setup

NORMS = {"none": None, "batch norm": nn.BatchNorm1d, "layer norm": nn.LayerNorm}


def digits():
    """1297 samples to train on, of 64 standardized features."""
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:1297]
    x, y = x[order], y[order]
    return (x - x.mean(0)) / x.std(0).clamp(min=1e-6), y


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def deep(norm, depth, seed, width=64, activation=nn.ReLU):
    """`depth` weight matrices; hidden ones followed by the normalization and the activation."""
    torch.manual_seed(seed)
    layers, fan_in = [], 64
    for _ in range(depth - 1):
        linear = nn.Linear(fan_in, width)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        layers += [linear, *([NORMS[norm](width)] if NORMS[norm] else []), activation()]
        fan_in = width
    return nn.Sequential(*layers, nn.Linear(width, 10))


def in_batches(x, y, seed, size=128):
    """A fresh shuffled pass each call."""
    generator = torch.Generator().manual_seed(seed)

    def one_pass():
        return [
            (x[rows], y[rows]) for rows in torch.randperm(len(x), generator=generator).split(size) if len(rows) == size
        ]

    return one_pass


def deep_setup(norm, depth, seed, rate, momentum=0.0):
    """SGD on batches of 128."""
    model = deep(norm, depth, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    return Setup(model, optimizer, in_batches(*digits(), seed), cross_entropy)

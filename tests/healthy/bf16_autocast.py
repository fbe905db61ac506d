"""Matrix products in bfloat16, weights in float32."""

import torch
from healthy_parts import accuracy, cross_entropy, digits, he, mlp, passes
from torch import nn

from trimtab import Setup

LEARNS = 0.9


def loss(model, batch):
    with torch.autocast("cpu", torch.bfloat16):
        return cross_entropy(model, batch)


def make():
    x, y = digits()
    net = nn.Sequential(he(mlp(64, 96, 96)), nn.LayerNorm(96), nn.ReLU(), nn.Linear(96, 10))
    return Setup(net, torch.optim.AdamW(net.parameters(), 2e-3), passes(x, y), loss, 150, accuracy(x, y))

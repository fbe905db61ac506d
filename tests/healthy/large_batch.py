"""512 samples a batch, the rate scaled with it, under a warm-up."""

import torch
from healthy_parts import accuracy, cross_entropy, digits, he, mlp, passes, warmed_up

from trimtab import Setup

LEARNS = 0.9


def make():
    x, y = digits()
    net = he(mlp(64, 96, 96, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.2, momentum=0.9)
    schedule = warmed_up(optimizer, 20)
    return Setup(net, optimizer, passes(x, y, size=512), cross_entropy, 120, accuracy(x, y), scheduler=schedule)

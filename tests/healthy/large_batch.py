"""512 samples a batch, the rate scaled with it, under a warm-up."""

import torch
from healthy_data import accuracy, cross_entropy, digits, he, mlp, passes

from trimtab import Setup

LEARNS = 0.9


def make():
    x, y = digits()
    net = he(mlp(64, 96, 96, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    return Setup(net, optimizer, passes(x, y, size=512), cross_entropy, 120, accuracy(x, y), scheduler=schedule)

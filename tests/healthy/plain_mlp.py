"""Three ReLU layers drawn as He draws them, SGD with momentum."""

import torch
from healthy_parts import accuracy, cross_entropy, digits, he, mlp, passes

from trimtab import Setup

LEARNS = 0.9


def make():
    x, y = digits()
    net = he(mlp(64, 64, 64, 10))
    return Setup(
        net, torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), passes(x, y), cross_entropy, 150, accuracy(x, y)
    )

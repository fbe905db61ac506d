"""An average of the weights is kept beside them and evaluated."""

import torch
from healthy_parts import accuracy, cross_entropy, digits, he, mlp, passes
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trimtab import Setup

LEARNS = 0.9


def make():
    x, y = digits()
    net = he(mlp(64, 64, 64, 10))
    averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.95))

    def step(setup, batch):
        setup.optimizer.zero_grad()
        loss = setup.loss(setup.model, batch)
        loss.backward()
        setup.optimizer.step()
        averaged.update_parameters(setup.model)
        return loss

    right = accuracy(x, y)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return Setup(net, optimizer, passes(x, y), cross_entropy, 150, lambda model: right(averaged), step=step)

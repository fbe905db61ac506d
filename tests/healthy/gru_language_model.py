"""A GRU that tells the next symbol at every step, clipped as everybody clips it."""

import torch
from healthy_data import accuracy, cross_entropy, passes, text
from torch import nn

from trimtab import Setup

LEARNS = 0.5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(12, 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, 12)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


def step(setup, batch):
    setup.optimizer.zero_grad()
    loss = setup.loss(setup.model, batch)
    loss.backward()
    nn.utils.clip_grad_norm_(setup.model.parameters(), 1.0)
    setup.optimizer.step()
    return loss


def make():
    x = text()
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    return Setup(
        net, optimizer, passes(x[:, :-1], x[:, 1:]), cross_entropy, 250, accuracy(x[:, :-1], x[:, 1:]), step=step
    )

"""A gate sends each sample to two of six experts, which some samples never see."""

import torch
from healthy_parts import accuracy, digits, he, mlp, passes
from torch import nn
from torch.nn import functional as F

from trimtab import Setup

LEARNS = 0.9


class Experts(nn.Module):
    def __init__(self, width, experts=6):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(he(mlp(width, 32, width)) for _ in range(experts))

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).topk(2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, place = (chosen == i).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, weight[rows, place, None] * expert(x[rows]))
        return x + out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.experts, self.head = nn.Linear(64, 48), Experts(48), nn.Linear(48, 10)

    def forward(self, x):
        return self.head(torch.relu(self.experts(self.embed(x))))


def make():
    x, y = digits()
    net = Net()

    def loss(model, batch):
        share = model.experts.gate(model.embed(batch[0])).softmax(-1).mean(0)
        return F.cross_entropy(model(batch[0]), batch[1]) + 0.1 * len(share) * share.square().sum()

    return Setup(net, torch.optim.Adam(net.parameters(), 2e-3), passes(x, y), loss, 200, accuracy(x, y))

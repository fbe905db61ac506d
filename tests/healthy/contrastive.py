"""Two noisy views of each image are to be told from all others of the batch."""

import torch
from healthy_parts import digits, he, mlp, passes
from torch.nn import functional as F

from trimtab import Setup

LEARNS = 0.85


def loss(model, batch):
    views = [F.normalize(model(batch[0] + 0.3 * torch.randn_like(batch[0])), dim=1) for _ in range(2)]
    return F.cross_entropy(views[0] @ views[1].T / 0.1, torch.arange(len(batch[0])))


def make():
    x, y = digits()
    net = he(mlp(64, 96, 32))

    @torch.no_grad()
    def evaluate(model):
        z = F.normalize(model(x), dim=1)
        near = (z[:300] @ z[300:].T).argmax(1)
        return float((y[300:][near] == y[:300]).float().mean())

    return Setup(net, torch.optim.Adam(net.parameters(), 2e-3), passes(x), loss, 150, evaluate)

"""Down and up again with a skip between, asked to take noise off images."""

import torch
from healthy_parts import digits, passes
from torch import nn
from torch.nn import functional as F

from trimtab import Setup

LEARNS = 0.7


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.out = nn.Sequential(nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1))

    def forward(self, x):
        skip = self.down(x)
        return self.out(torch.cat([skip, self.up(self.deep(skip))], 1))


def make():
    x, _ = digits(image=True)
    noisy = x + 0.7 * torch.randn_like(x)
    net = UNet()

    @torch.no_grad()
    def evaluate(model):
        return 1 - float(F.mse_loss(model(noisy[:500]), x[:500]) / x.var())

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return Setup(net, optimizer, passes(noisy, x), lambda m, b: F.mse_loss(m(b[0]), b[1]), 200, evaluate)

"""Residual blocks with BatchNorm, a strided projection, global pooling, SGD with decay and a cosine schedule."""

import torch
from healthy_parts import accuracy, cross_entropy, digits, passes
from torch import nn

from trimtab import Setup

LEARNS = 0.9


class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(a, b, 3, stride, 1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(inplace=True),
            nn.Conv2d(b, b, 3, 1, 1, bias=False),
            nn.BatchNorm2d(b),
        )
        self.skip = (
            nn.Identity() if a == b else nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))
        )

    def forward(self, x):
        return torch.relu(self.skip(x) + self.body(x))


def make():
    x, y = digits(image=True)
    blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1)]
    net = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), *blocks)
    net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)])
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
    return Setup(net, optimizer, passes(x, y), cross_entropy, 150, accuracy(x, y), scheduler=schedule)

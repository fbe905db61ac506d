"""The same with a norm behind each sum, as in 2017, under a warm-up."""

import torch
from healthy_data import accuracy, cross_entropy, passes, text
from torch import nn

from trimtab import Setup

LEARNS = 0.5


class Net(nn.Module):
    def __init__(self, depth=3, width=48):
        super().__init__()
        self.embed, self.place = nn.Embedding(12, width), nn.Parameter(0.1 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True, norm_first=False)
        self.body = nn.TransformerEncoder(layer, depth, None, enable_nested_tensor=False)
        self.head = nn.Linear(width, 12)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.body(self.embed(x) + self.place[: x.shape[1]], mask, is_causal=True))


def make():
    x = text()
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 40))
    return Setup(
        net,
        optimizer,
        passes(x[:, :-1], x[:, 1:]),
        cross_entropy,
        250,
        accuracy(x[:, :-1], x[:, 1:]),
        scheduler=schedule,
    )

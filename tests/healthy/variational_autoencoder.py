"""The same with noise in the middle and its divergence in the loss."""

import torch
from healthy_parts import digits, mlp, passes
from torch import nn
from torch.nn import functional as F

from trimtab import Setup

LEARNS = 0.4


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = mlp(64, 48, 16), mlp(8, 48, 64)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else mean
        return self.decoder(z), mean, log_variance


def loss(model, batch):
    out, mean, log_variance = model(batch[0])
    divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(-1).mean()
    return F.mse_loss(out, batch[0], reduction="none").sum(-1).mean() + divergence


def make():
    x, _ = digits()
    net = Vae()

    @torch.no_grad()
    def evaluate(model):
        return 1 - float(F.mse_loss(model(x[:500])[0], x[:500]) / x.var())

    return Setup(net, torch.optim.Adam(net.parameters(), 3e-3), passes(x), loss, 300, evaluate)

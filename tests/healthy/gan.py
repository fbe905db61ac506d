"""Two nets against each other on points of a ring, the non-saturating loss, an optimizer each."""

import math

import torch
from healthy_parts import he, mlp, passes
from torch import nn
from torch.nn import functional as F

from trimtab import Setup

LEARNS = 0.5


def ring(samples=2048):
    angle = 2 * math.pi * torch.rand(samples, 1)
    return torch.cat([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(samples, 2)


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.critic = he(mlp(4, 64, 64, 2)), mlp(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))


def step(setup, batch):
    of_generator, of_critic = setup.optimizers
    generator, critic = setup.model.generator, setup.model.critic
    fake = generator(torch.randn(64, 4))
    of_critic.zero_grad()
    apart = F.softplus(-critic(batch[0])).mean() + F.softplus(critic(fake.detach())).mean()
    apart.backward()
    of_critic.step()
    of_generator.zero_grad()
    fooled = F.softplus(-critic(fake)).mean()
    fooled.backward()
    of_generator.step()
    return apart


def make():
    net = Gan()
    optimizers = [torch.optim.Adam(part.parameters(), 1e-3, betas=(0.5, 0.9)) for part in (net.generator, net.critic)]

    @torch.no_grad()
    def evaluate(model):
        return 1 - float((model.generator(torch.randn(500, 4)).norm(dim=1) - 1).abs().mean())

    return Setup(net, optimizers, passes(ring()), lambda m, b: m.critic(b[0]).mean(), 300, evaluate, step=step)

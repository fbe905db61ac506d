"""A critic without a last activation, held by a penalty on its gradient."""

import math

import torch
from healthy_parts import he, mlp, passes
from torch import nn

from trimtab import Setup

LEARNS = 0.4  # a point in the middle of the ring has 0


def ring(samples=2048):
    angle = 2 * math.pi * torch.rand(samples, 1)
    return torch.cat([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(samples, 2)


class Wgan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator, self.critic = he(mlp(4, 64, 64, 2)), mlp(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))


def penalty(critic, real, fake):
    between = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return 10 * (slope.norm(dim=1) - 1).square().mean()


def step(setup, batch):
    of_generator, of_critic = setup.optimizers
    generator, critic = setup.model.generator, setup.model.critic
    for _ in range(3):
        fake = generator(torch.randn(64, 4)).detach()
        of_critic.zero_grad()
        apart = critic(fake).mean() - critic(batch[0]).mean() + penalty(critic, batch[0], fake)
        apart.backward()
        of_critic.step()
    of_generator.zero_grad()
    (-critic(generator(torch.randn(64, 4))).mean()).backward()
    of_generator.step()
    return apart


def make():
    net = Wgan()
    optimizers = [  # the critic is to be ahead of what it judges
        torch.optim.Adam(part.parameters(), rate, betas=(0.0, 0.9))
        for part, rate in ((net.generator, 2e-4), (net.critic, 3e-3))
    ]

    @torch.no_grad()
    def evaluate(model):
        return 1 - float((model.generator(torch.randn(500, 4)).norm(dim=1) - 1).abs().mean())

    return Setup(net, optimizers, passes(ring()), lambda m, b: m.critic(b[0]).mean(), 250, evaluate, step=step)

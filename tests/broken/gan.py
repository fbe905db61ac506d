"""A GAN on a line of points, whose gradients nobody clears."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.999))
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-2, betas=(0.5, 0.999))
ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
for _ in range(100):
    t = torch.randn(64, 1)
    real = torch.cat([t, 0.5 * t + 2], 1)
    fake = generator(torch.randn(64, 4))
    d_loss = F.binary_cross_entropy_with_logits(discriminator(real), ones)
    d_loss = d_loss + F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
    d_loss.backward()
    d_optimizer.step()
    g_loss = F.binary_cross_entropy_with_logits(discriminator(fake), ones)
    g_loss.backward()
    g_optimizer.step()
    print(d_loss.item())
    print(g_loss.item())

"""Problems of the optimization: inputs that are badly conditioned, critics without a bound, rates that start too high."""

import torch
from problems import digits, healthy, healthy_and_slow, passes, problem
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from trimtab import Setup


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def standardized(x):
    return (x - x.mean(0)) / x.std(0)


def whitened(x):
    _, values, basis = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    return (x - x.mean(0)) @ (basis.T / values * len(x) ** 0.5)


def regression(model, x, y, optimizer, steps, size=64):
    return Setup(
        model, optimizer, passes(x.float(), y.float()[:, None], size), lambda m, b: F.mse_loss(m(b[0]), b[1]), steps
    )


@problem("ill-conditioned", "data", "Linear")
def sensors_that_nearly_agree(broken):
    """Eight sensors of one quantity; what is wanted lies in how they differ."""
    x = torch.randn(400, 1, generator=seeded()).double() + 0.02 * torch.randn(400, 8, generator=seeded(1)).double()
    y = 30 * (x[:, 0] - x[:, 1]) + 30 * (x[:, 2] - x[:, 3])
    model = nn.Linear(8, 1)
    x = standardized(x) if broken else whitened(x)
    return regression(model, x, y, SGD(model.parameters(), lr=0.05), 300)


@problem("ill-conditioned", "data", "0")
def powers_into_a_net(broken):
    """A narrow net with momentum on powers of one number, where most of the answer is in how high powers differ."""
    t = torch.rand(384, generator=seeded(), dtype=torch.float64) * 2 - 1
    x = torch.stack([t**k for k in range(1, 13)], 1)
    y = torch.sin(9 * t)
    model = nn.Sequential(nn.Linear(12, 4), nn.Linear(4, 1))
    x = standardized(x) if broken else whitened(x)
    return regression(model, x, y, SGD(model.parameters(), lr=0.01, momentum=0.8), 300)


@problem("ill-conditioned", "data", "linear")
def logistic_on_near_copies(broken):
    """Two columns that are nearly the same; the class is in the sign of their difference."""
    g = seeded(2)
    a = torch.randn(512, 1, generator=g).double()
    d = torch.randn(512, 1, generator=g).double()
    x = torch.cat([a + 0.01 * d, a - 0.01 * d, torch.randn(512, 3, generator=g).double()], 1)
    y = (d[:, 0] + 0.1 * torch.randn(512, generator=g).double() > 0).long()
    model = nn.Sequential()
    model.linear = nn.Linear(5, 2)
    x = (standardized(x) if broken else whitened(x)).float()
    optimizer = SGD(model.parameters(), lr=0.5)
    return Setup(model, optimizer, passes(x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]), 300)


@problem("ill-conditioned", "data", "0")
def adam_on_powers(broken):
    """Adam scales each weight, and takes no correlation away."""
    t = torch.rand(512, generator=seeded(3), dtype=torch.float64)
    x = torch.stack([t**k for k in range(1, 10)], 1)
    y = torch.cos(12 * t)
    model = nn.Sequential(nn.Linear(9, 1))
    x = standardized(x) if broken else whitened(x)
    return regression(model, x, y, Adam(model.parameters(), lr=0.01), 400)


@healthy
def correlated_inputs_without_consequence():
    """Correlated all the same, but the answer lies along the steep directions."""
    x = torch.randn(400, 1, generator=seeded()).double() + 0.02 * torch.randn(400, 8, generator=seeded(1)).double()
    y = x.mean(1) + 0.3 * torch.randn(400, generator=seeded(2)).double()
    model = nn.Linear(8, 1)
    return regression(model, standardized(x), y, SGD(model.parameters(), lr=0.05), 300)


@healthy
def a_wide_net_on_powers():
    """Hidden units see more than the powers: it learns."""
    t = torch.rand(384, generator=seeded(), dtype=torch.float64) * 2 - 1
    x = standardized(torch.stack([t**k for k in range(1, 7)], 1))
    y = torch.sin(4 * t)
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))
    return regression(model, x, y, Adam(model.parameters(), lr=0.01), 300)


# Critics ---------------------------------------------------------------------------------------------------------------


class Gan(nn.Module):
    """A generator and a critic of points in a plane."""

    def __init__(self, width=32, act=lambda: nn.LeakyReLU(0.2), wrap=lambda layer: layer):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
        self.critic = nn.Sequential(
            wrap(nn.Linear(2, width)), act(), wrap(nn.Linear(width, width)), act(), wrap(nn.Linear(width, 1))
        )


def points(n=2048):
    z = torch.randn(n, 4, generator=seeded())
    real = torch.randn(n, 2, generator=seeded(1)) * 0.5 + torch.tensor([2.0, -2.0])
    return passes(z, real)


def penalty(critic, real, fake):
    share = torch.rand(len(real), 1)
    between = (share * real + (1 - share) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return 10 * (slope.norm(dim=1) - 1).square().mean()


def adversarial(model, optimizers, turns=3, extra=None, after=None, score=None, steps=200):
    """Critic's turns, then the generator's; `score` gives the critic's loss of what it says of fake and real."""
    score = score or (lambda fake, real: fake.mean() - real.mean())

    def step(setup, batch):
        z, real = batch
        of_g, of_c = setup.optimizers
        for _ in range(turns):
            of_c.zero_grad()
            fake = setup.model.generator(z).detach()
            loss = score(setup.model.critic(fake), setup.model.critic(real))
            if extra is not None:
                loss = loss + extra(setup.model.critic, real, fake)
            loss.backward()
            of_c.step()
            if after is not None:
                after(setup.model.critic)
        of_g.zero_grad()
        setup.loss(setup.model, batch).backward()
        of_g.step()
        return loss

    return Setup(model, optimizers, points(), lambda m, b: -m.critic(m.generator(b[0])).mean(), steps, step=step)


def adams(model, lr=1e-3):
    return [Adam(part.parameters(), lr=lr, betas=(0.5, 0.9)) for part in (model.generator, model.critic)]


CRITIC = ("critic.0", "critic.2", "critic.4")


@problem(
    "lipschitz-blowup",
    *CRITIC,
    also=("learning-rate-too-high", "nonfinite-loss", "exploding-gradient", "dead-units"),
    slow=True,
)
def critic_without_a_penalty(broken):
    model = Gan()
    return adversarial(model, adams(model, 3e-3), extra=None if broken else penalty)


@problem(
    "lipschitz-blowup",
    *CRITIC,
    also=("learning-rate-too-high", "nonfinite-loss", "exploding-gradient", "dead-units"),
    slow=True,
)
def critic_with_relu_without_clipping(broken):
    model = Gan(width=48, act=nn.ReLU)

    def clip(critic):
        for p in critic.parameters():
            p.data.clamp_(-0.1, 0.1)

    optimizers = [torch.optim.RMSprop(part.parameters(), lr=2e-3) for part in (model.generator, model.critic)]
    return adversarial(model, optimizers, after=None if broken else clip)


@problem(
    "lipschitz-blowup",
    *CRITIC,
    also=("learning-rate-too-high", "nonfinite-loss", "exploding-gradient", "dead-units"),
    slow=True,
)
def critic_without_spectral_norm(broken):
    model = Gan() if broken else Gan(wrap=nn.utils.parametrizations.spectral_norm)
    return adversarial(model, adams(model, 2e-3), turns=5)


@problem(
    "lipschitz-blowup", "0", "2", also=("learning-rate-too-high", "nonfinite-loss", "exploding-gradient", "dead-units")
)
def energy_without_an_end(broken):
    """An energy that is lowered at data and raised elsewhere; its twin holds the energies near zero."""
    model = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 1))

    def loss(m, batch):
        noise, data = m(4 * batch[0][:, :2]), m(batch[1])
        gap = data.mean() - noise.mean()
        return gap if broken else gap + 0.5 * (data.square().mean() + noise.square().mean())

    return Setup(model, Adam(model.parameters(), lr=0.01), points(), loss, 300)


@healthy_and_slow
def critic_with_a_hinge():
    model = Gan()
    return adversarial(model, adams(model), score=lambda fake, real: F.relu(1 + fake).mean() + F.relu(1 - real).mean())


@healthy_and_slow
def critic_of_logits():
    model = Gan()
    return adversarial(
        model, adams(model), turns=1, score=lambda fake, real: F.softplus(fake).mean() + F.softplus(-real).mean()
    )


# Losses that jump, and losses that start too high ------------------------------------------------------------------------


@problem("loss-at-init-off", "4", "loss", also=("learning-rate-too-low", "dead-units"))
def head_drawn_too_large(broken):
    """Logits of size fifteen, and a rate that takes the whole run to make them small."""
    x, y = digits()
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    if broken:
        with torch.no_grad():
            model[4].weight.mul_(120)
    optimizer = SGD(model.parameters(), lr=0.02)
    return Setup(model, optimizer, passes(x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]), 60 if broken else 300)


@healthy
def detector_drawn_too_large_that_learns():
    """A yes or no per output, of which the net is sure before it has seen anything, and which it soon corrects."""
    x, y = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    with torch.no_grad():
        model[2].weight.mul_(40)
    answers = F.one_hot(y, 10).float()
    optimizer = Adam(model.parameters(), lr=1e-3)
    return Setup(
        model, optimizer, passes(x, answers), lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), b[1]), 100
    )


@healthy
def a_loss_that_jumps_at_a_warm_restart():
    """The schedule starts anew from a high rate, and the loss with it."""
    x, y = digits()
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = SGD(model.parameters(), lr=0.3, momentum=0.9)
    restarts = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 100)
    return Setup(model, optimizer, passes(x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]), 300, scheduler=restarts)


@healthy
def noisy_losses_of_single_samples():
    """Batches of two: the loss jumps at every step, and comes down all the same."""
    x, y = digits()
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = SGD(model.parameters(), lr=0.01)
    return Setup(model, optimizer, passes(x, y, 2), lambda m, b: F.cross_entropy(m(b[0]), b[1]), 800)

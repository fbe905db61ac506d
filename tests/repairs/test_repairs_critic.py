"""Changes that bound a critic's slope."""

import pytest
import torch
from torch import nn

from trimtab import Setup
from trimtab.errors import RepairError
from trimtab.repairs.change import Change


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Linear(2, 3)
        self.critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def step(setup, batch):
    of_generator, of_critic = setup.optimizer
    critic, fake = setup.model.critic, setup.model.generator(batch[:, :2]).detach()
    of_critic.zero_grad()
    loss = critic(fake).mean() - critic(batch).mean()
    loss.backward()
    of_critic.step()
    of_generator.zero_grad()
    (-critic(setup.model.generator(batch[:, :2])).mean()).backward()
    of_generator.step()
    return loss


def gan(lr=1.0):
    torch.manual_seed(0)
    model = Gan()
    optimizers = [
        torch.optim.SGD(model.generator.parameters(), lr=0.1),
        torch.optim.SGD(model.critic.parameters(), lr=lr),
    ]
    data = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    return Setup(model, optimizers, lambda: [data], lambda m, x: m.critic(x).mean(), steps=5, step=step)


def test_weights_are_clipped_and_the_generators_are_not():
    setup = Change("clip-weights", {"where": "critic", "bound": 0.05}).apply(gan())
    for _ in setup.train():
        pass
    assert max(float(p.detach().abs().max()) for p in setup.model.critic.parameters()) == pytest.approx(0.05)
    assert float(setup.model.generator.weight.detach().abs().max()) > 0.05


def test_the_gradient_of_the_penalty_is_added():
    """A linear critic w x has slope |w| everywhere: the penalty's gradient is 2 weight (|w| - 1) w / |w|."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"critic": nn.Linear(3, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data = torch.randn(8, 3)

    def one(setup, batch):
        setup.optimizer.zero_grad()
        critic = setup.model["critic"]
        loss = critic(batch).mean() - critic(2 * batch).mean()
        loss.backward()
        setup.optimizer.step()
        return loss

    setup = Setup(model, optimizer, lambda: [data], lambda m, x: m["critic"](x).mean(), step=one)
    weight = model["critic"].weight.detach().clone()
    Change("penalize-gradient", {"where": "critic", "weight": 10.0}).apply(setup)
    next(iter(setup.train(1)))
    own = -data.mean(0, keepdim=True)
    expected = own + 20 * (weight.norm() - 1) * weight / weight.norm()
    torch.testing.assert_close(weight - model["critic"].weight.detach(), expected)


def test_spectral_normalization_bounds_each_layer_and_is_trained():
    setup = Change("normalize-spectrum", {"where": "critic"}).apply(gan(lr=10.0))
    for _ in setup.train(20):
        pass
    norms = [
        float(torch.linalg.matrix_norm(m.weight.detach(), 2)) for m in setup.model.critic if isinstance(m, nn.Linear)
    ]
    assert max(norms) < 1.5
    held = {id(p) for o in setup.optimizers for g in o.param_groups for p in g["params"]}
    assert held == {id(p) for p in setup.model.parameters()}


def test_what_is_not_there_is_refused():
    with pytest.raises(RepairError, match="no module nowhere"):
        Change("clip-weights", {"where": "nowhere", "bound": 0.1}).apply(gan())
    with pytest.raises(RepairError, match="no linear layer"):
        Change("normalize-spectrum", {"where": "critic.1"}).apply(gan())

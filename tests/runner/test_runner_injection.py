"""Changes made to a script from outside: what it holds at its first training pass, and what can be changed of that."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab.errors import RepairError
from trimtab.repairs.change import Change
from trimtab.runner.injection import FirstPass, InjectionError, ScriptSetup


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x, scale=1.0):
        return self.last(torch.relu(self.first(x))) * scale


class Owner(nn.Module):
    """Never called itself, as a Lightning module."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def loss(self, x):
        return self.net(x).square().mean()


X = torch.arange(12.0).view(3, 4)


@pytest.fixture
def found():
    held = []
    first = FirstPass(held.append)
    first.start()
    yield held
    first.stop()


def held_of(script):
    held = []
    first = FirstPass(held.append)
    first.start()
    try:
        script()
    finally:
        first.stop()
    return held[0]


def test_it_waits_for_a_model_that_an_optimizer_has(found):
    call = nn.Module.__call__
    teacher, model = Net(), Net()
    with torch.no_grad():
        model(X)
    teacher(X)
    model(X)
    assert not found
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    teacher(X)
    with torch.no_grad():
        model(X)
    assert not found
    model(X, scale=2.0)
    (held,) = found
    assert held.root is held.model is model
    assert held.optimizers == [optimizer]
    assert torch.equal(held.args[0], X)
    assert held.kwargs == {"scale": 2.0}
    assert (held.label, held.prefix, held.optimizer_labels) == ("model", "", ["optimizer"])
    assert nn.Module.__call__ is not call  # nothing is left behind
    model(X)
    assert len(found) == 1


def test_a_part_of_a_larger_module_is_named_as_the_record_names_it(found):
    lit = Owner()
    optimizer = torch.optim.SGD(lit.parameters(), lr=0.1)
    lit.loss(X)
    (held,) = found
    assert held.model is lit.net
    assert (held.label, held.prefix) == ("lit", "net")
    assert held.optimizer_labels == ["optimizer"]
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_several_models_stand_under_one_roof(found):
    generator, critic = Net(), nn.Linear(2, 1)
    g_optimizer, c_optimizer = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (generator, critic))
    critic(generator(X))
    (held,) = found
    assert sorted(held.labels) == ["critic", "generator"]
    assert held.model.critic is critic
    assert held.optimizers == [g_optimizer, c_optimizer]
    assert held.optimizer_labels == ["g_optimizer", "c_optimizer"]
    with pytest.raises(InjectionError, match="the model itself"):
        held.model.critic = nn.Linear(2, 1)
    with pytest.raises(InjectionError, match="several models"):
        held.model.register_forward_pre_hook(print)


def test_what_is_in_the_scripts_own_hands_cannot_be_replaced(found):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X)
    setup = found[0].setup(10)
    assert isinstance(setup, ScriptSetup)
    assert setup.optimizer is optimizer
    for name, value in {"model": Net(), "loss": print, "step": print, "batches": list}.items():
        with pytest.raises(InjectionError, match="script"):
            setattr(setup, name, value)
    (batch,) = setup.batches()
    loss = setup.loss(model, batch)
    torch.testing.assert_close(loss, model(X).square().mean())
    with pytest.raises(InjectionError, match="gradient of the loss"):
        loss.backward()


def test_a_change_leaves_the_scripts_random_numbers_alone(found):
    model = Net()
    torch.optim.SGD(model.parameters(), lr=0.1)
    model(X)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    found[0].inject([Change("scale-rate", {"factor": 10.0})], 10, 0)
    assert torch.equal(torch.rand(3), expected)
    assert found[0].optimizers[0].param_groups[0]["lr"] == pytest.approx(1.0)


def rates(steps, schedule, *changes):
    """Learning rates that a script's optimizer uses, the change injected at its first pass."""
    used = []

    def script():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = None if schedule is None else schedule(optimizer)
        optimizer.register_step_pre_hook(lambda *_: None)
        for _ in range(steps):
            F.cross_entropy(model(X), torch.zeros(3, dtype=torch.long)).backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            used.append(optimizer.param_groups[0]["lr"])

    first = FirstPass(lambda held: held.inject(changes, steps, 0))
    first.start()
    try:
        script()
    finally:
        first.stop()
    return used


def halving(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def test_the_schedule_of_a_script_is_led_elsewhere():
    assert rates(4, halving) == [0.5, 0.25, 0.125, 0.0625]
    assert rates(4, halving, Change("keep-rate")) == [1.0, 1.0, 1.0, 1.0]
    assert rates(4, halving, Change("stretch-schedule", {"factor": 2})) == [1.0, 0.5, 0.5, 0.25]
    assert rates(4, halving, Change("scale-rate", {"factor": 8.0})) == [4.0, 2.0, 1.0, 0.5]
    with pytest.raises(RepairError, match="no schedule"):
        rates(1, None, Change("keep-rate"))


def test_what_a_script_holds_can_be_pickled():
    def script():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = halving(optimizer)
        model(X)
        schedule.get_last_lr()

    held = pickle.loads(pickle.dumps(held_of(script)))
    assert held.root is held.model
    assert held.optimizers[0].param_groups[0]["params"][0] is held.model.first.weight
    assert held.schedulers[0].optimizer is held.optimizers[0]
    Change("scale-rate", {"factor": 10.0}).apply(held.setup(5))
    assert held.schedulers[0].base_lrs == [1.0]


def test_gradients_are_cleared_by_a_hook(found):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(X).mean()
    found[0].inject([Change("zero-grad")], 10, 0)
    loss.backward()
    optimizer.step()
    assert model.first.weight.grad is None

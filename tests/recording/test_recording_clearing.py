"""Who clears the gradients: a missing zero_grad is seen, and nothing else is taken for one."""

import pytest
import torch
from recording_cases import record_of, watching
from torch import nn

STEPS = 6


def made():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    return net, torch.optim.SGD(net.parameters(), 0.01)


def uncleared(recorder):
    return [info["uncleared"] for info in record_of(recorder).info]


@pytest.mark.parametrize(
    "where", ["optimizer", "optimizer zero", "model", "data", "by hand", "after the step", "after the forward"]
)
def test_cleared(where):
    net, optimizer = made()
    with watching(net, optimizer) as recorder:
        for _ in range(STEPS):
            if where == "optimizer":
                optimizer.zero_grad()
            elif where == "optimizer zero":
                optimizer.zero_grad(set_to_none=False)
            elif where == "model":
                net.zero_grad()
            elif where == "data":
                for p in net.parameters():
                    if p.grad is not None:
                        p.grad.data.zero_()
            elif where == "by hand":
                for p in net.parameters():
                    p.grad = None
            loss = net(torch.randn(8, 4)).square().mean()
            if where == "after the forward":
                optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if where == "after the step":
                optimizer.zero_grad()
    assert uncleared(recorder) == [[]] * STEPS


def test_never_cleared():
    net, optimizer = made()
    with watching(net, optimizer) as recorder:
        for _ in range(STEPS):
            net(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert uncleared(recorder) == [[]] + [[0]] * (STEPS - 1)


def test_never_cleared_under_a_sparse_schedule():
    net, optimizer = made()
    with watching(net, optimizer, every=7) as recorder:
        for _ in range(30):
            net(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert uncleared(recorder)[1:] == [[0]] * (len(record_of(recorder).steps) - 1)


def test_cleared_under_a_sparse_schedule():
    net, optimizer = made()
    with watching(net, optimizer, every=7) as recorder:
        for _ in range(30):
            optimizer.zero_grad()
            net(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert not any(uncleared(recorder))


def test_cleared_too_late():
    """Between backward and step: the step sees nothing; that is another fault than a missing zero_grad."""
    net, optimizer = made()
    with watching(net, optimizer) as recorder:
        for _ in range(STEPS):
            net(torch.randn(8, 4)).square().mean().backward()
            optimizer.zero_grad()
            optimizer.step()
    assert not any(uncleared(recorder))
    assert not any(len(record_of(recorder).series(s)) for s in record_of(recorder).of_kind("parameter-gradient"))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulation(set_to_none):
    net, optimizer = made()
    with watching(net, optimizer) as recorder:
        for i in range(4 * STEPS):
            net(torch.randn(8, 4)).square().mean().div(4).backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad(set_to_none)
    assert uncleared(recorder) == [[]] * STEPS


def test_accumulation_that_never_clears():
    net, optimizer = made()
    with watching(net, optimizer) as recorder:
        for i in range(4 * STEPS):
            net(torch.randn(8, 4)).square().mean().div(4).backward()
            if i % 4 == 3:
                optimizer.step()
    assert uncleared(recorder) == [[]] + [[0]] * (STEPS - 1)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("forgetful", [False, True])
def test_gan(set_to_none, forgetful):
    """The generator's pass deposits into the critic, which is cleared before its own step."""
    generator, of_generator = made()
    critic, of_critic = nn.Linear(1, 1), None
    of_critic = torch.optim.SGD(critic.parameters(), 0.01)
    with watching([generator, critic], [of_generator, of_critic]) as recorder:
        for _ in range(STEPS):
            fake = generator(torch.randn(8, 4))
            if not forgetful:
                of_critic.zero_grad(set_to_none)
            (critic(fake.detach()).mean() - critic(torch.randn(8, 1)).mean()).backward()
            of_critic.step()
            of_generator.zero_grad(set_to_none)
            (-critic(fake).mean()).backward()
            of_generator.step()
    expected = [[1] if forgetful and step and step % 2 == 0 else [] for step in range(2 * STEPS)]
    assert uncleared(recorder) == expected


def test_a_dead_layer_is_not_taken_for_cleared_gradients():
    net, optimizer = made()
    with torch.no_grad():
        net[0].bias.fill_(-100.0)
    with watching(net, optimizer) as recorder:
        for _ in range(STEPS):
            (net(torch.randn(8, 4)).mean() - 1).square().backward()
            optimizer.step()
    assert uncleared(recorder)[1:] == [[0]] * (STEPS - 1)

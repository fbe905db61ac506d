"""Hazard 07: loss, gradients at outputs and gradients of parameters in true units, whatever a scaler does."""

import copy

import pytest
import torch
from recording_cases import Net, by_hand, check, count, grads, record_of, values, watching
from torch.nn import functional as F

x = torch.randn(16, 5, generator=torch.Generator().manual_seed(2))
y = torch.randn(16, 3, generator=torch.Generator().manual_seed(3))

LOSSES = {
    "the loss": lambda scaler, loss: scaler.scale(loss),
    "a part of the batch": lambda scaler, loss: scaler.scale(loss) / 4,
    "a sum": lambda scaler, loss: scaler.scale(0.25 * loss) + scaler.scale(0.75 * loss),
    "several at once": lambda scaler, loss: sum(scaler.scale([0.25 * loss, 0.75 * loss])),
    "one a sample": lambda scaler, loss: scaler.scale(loss * torch.ones(4)).mean(),
}
SHARES = {"a part of the batch": 0.25}


@pytest.mark.parametrize("scaled", LOSSES)
@pytest.mark.parametrize("scale", [2.0**16, 1000.0, 8.0, 1.0, 0.5])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("explicit", [False, True])
def test_true_units(scaled, scale, fused, explicit):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1)
    share = SHARES.get(scaled, 1.0)
    with watching(net, optimizer) as recorder:
        for _ in range(2):  # the scale has doubled by the second
            optimizer.zero_grad()
            twin = copy.deepcopy(net)
            outputs = by_hand(twin, x)
            loss = share * F.mse_loss(outputs[-1], y)
            gradients = torch.autograd.grad(loss, outputs, retain_graph=True)
            loss.backward()
            LOSSES[scaled](scaler, F.mse_loss(net(x), y)).backward()
            if explicit:
                scaler.unscale_(optimizer)
            before = values(net)
            scaler.step(optimizer)
            scaler.update()
    record = record_of(recorder)
    assert record.losses[1] == pytest.approx(loss.item(), rel=1e-5)
    assert record.info[1]["loss_scale"] == 2 * scale
    for name, gradient in zip(("a", "act", "b"), gradients, strict=True):
        check(record, name, "gradient", gradient, step=1, rtol=1e-5)
    for name, gradient in grads(twin).items():
        check(record, name, "raw-gradient", gradient, step=1, rtol=1e-5)
        check(record, name, "parameter-gradient", gradient, step=1, rtol=1e-5)
        check(record, name, "update", net.get_parameter(name).double() - before[name].double(), step=1, rtol=1e-4)


def test_passes_of_one_step_in_units_of_their_own():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    first, second = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (1024.0, 12.0))
    outputs = by_hand(net, x)
    gradients = torch.autograd.grad(F.mse_loss(outputs[-1], y), outputs)
    with watching(net, optimizer) as recorder:
        for scaler in (first, second):
            scaler.scale(F.mse_loss(net(x), y)).backward()
        optimizer.step()
    for name, gradient in zip(("a", "act", "b"), gradients, strict=True):
        check(record_of(recorder), name, "gradient", gradient, gradient, rtol=1e-5)


def test_a_users_own_weight_is_none():
    """A factor that is no scaler's, and a scaler that is switched off."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    off, on = torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu", init_scale=64.0)
    with watching(net, optimizer) as recorder:
        for scaler in (off, on, off):
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            scaler.scale(3.0 * loss).backward()
            scaler.step(optimizer)
            scaler.update()
    record = record_of(recorder)
    assert record.losses.tolist() == pytest.approx([3 * loss.item()] * 3, rel=1e-6)
    assert [info["loss_scale"] for info in record.info] == [1.0, 64.0, 1.0]


@pytest.mark.parametrize("fused", [False, True])
def test_skipped_steps_leave_no_trace(fused):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=48.0)
    with watching(net, optimizer) as recorder:
        for factor in (1.0, float("inf"), float("nan"), 1.0):
            optimizer.zero_grad()
            scaler.scale(F.mse_loss(net(x), y) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    record = record_of(recorder)
    steps = 4 if fused else 2  # a fused optimizer is called, and leaves the parameters alone inside its kernel
    assert record.step_count == steps
    last = steps - 1
    assert count(record, "a", "output", last) == 16 * 7
    assert record.info[last]["loss_scale"] == 12.0
    assert record.series(record.site(0, "a", "gradient")).nonfinite[last] == 0


def test_scalers_are_forgotten_with_the_recorder():
    real = torch.amp.GradScaler.scale
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer), watching(Net(), torch.optim.SGD(net.parameters(), 0.1)):
        assert torch.amp.GradScaler.scale is not real
    assert torch.amp.GradScaler.scale is real

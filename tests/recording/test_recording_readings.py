"""The readings are the truth: every kind, against values computed by hand, in float64 and float32."""

import copy

import numpy as np
import pytest
import torch
from recording_cases import Net, by_hand, check, count, grads, reading, record_of, seen, values, watching
from torch import nn
from torch.nn import functional as F


def batches(n, dtype=torch.float64, rows=16):
    make = torch.Generator().manual_seed(5)
    return [
        (torch.randn(rows, 5, generator=make, dtype=dtype), torch.randn(rows, 3, generator=make, dtype=dtype))
        for _ in range(n)
    ]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_all_kinds_with_clipping(momentum):
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), 0.3, momentum=momentum)
    told = []
    with watching(net, optimizer) as recorder:
        for x, y in batches(4):
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            raw = grads(net)
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            used, before = grads(net), values(net)
            hand = copy.deepcopy(net)
            optimizer.step()
            told.append((x, y, loss.item(), raw, used, before, values(net), hand))
    record = record_of(recorder)
    assert record.steps.tolist() == record.loss_steps.tolist() == [0, 1, 2, 3]
    for step, (x, y, loss, raw, used, before, after, hand) in enumerate(told):
        assert record.losses[step] == pytest.approx(loss, rel=1e-12)
        outputs = by_hand(hand, x)
        at_outputs = torch.autograd.grad(F.mse_loss(outputs[-1], y), outputs)
        check(record, "input[0]", "input", x, step=step)
        for name, output, gradient in zip(("a", "act", "b"), outputs, at_outputs, strict=True):
            check(record, name, "output", output, step=step)
            check(record, name, "gradient", gradient, step=step)
        for name in raw:
            assert raw[name].norm() > used[name].norm()
            check(record, name, "raw-gradient", raw[name], step=step)
            check(record, name, "parameter-gradient", used[name], step=step)
            check(record, name, "parameter", before[name], step=step)
            check(record, name, "update", after[name] - before[name], step=step)
    assert seen(record, "output") == ["a", "act", "b"]  # the root gives what b gave: it is not read twice


def test_float32_against_a_float64_twin():
    net = Net(wide=64)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    ((x, y),) = batches(1, torch.float32, rows=256)
    twin = copy.deepcopy(net).double()
    with watching(net, optimizer) as recorder:
        F.mse_loss(net(x), y).backward()
        optimizer.step()
    record = record_of(recorder)
    outputs = by_hand(twin, x.double())
    loss = F.mse_loss(outputs[-1], y.double())
    at_outputs = torch.autograd.grad(loss, outputs, retain_graph=True)
    loss.backward()
    for name, output, gradient in zip(("a", "act", "b"), outputs, at_outputs, strict=True):
        check(record, name, "output", output, rtol=1e-5)
        check(record, name, "gradient", gradient, rtol=1e-5)
    for name, gradient in grads(twin).items():
        check(record, name, "parameter-gradient", gradient, rtol=1e-5)
        check(record, name, "update", -0.1 * gradient, rtol=1e-4)
    assert record.losses[0] == pytest.approx(loss.item(), rel=1e-6)


@pytest.mark.parametrize("how", ["data", "value", "new tensor", "in place", "hook"])
def test_gradients_changed_in_every_way_before_the_step(how):
    """Old code clips `p.grad.data`, which autograd's version counter does not see."""
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), 1.0)
    ((x, y),) = batches(1)
    if how == "hook":
        for p in net.parameters():
            p.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    with watching(net, optimizer) as recorder:
        F.mse_loss(net(x), y).backward()
        raw = grads(net)
        for p in net.parameters():
            if how == "data":
                p.grad.data.clamp_(-0.01, 0.01)
            elif how == "new tensor":
                p.grad = p.grad.clamp(-0.01, 0.01)
            elif how == "in place":
                p.grad.clamp_(-0.01, 0.01)
        if how == "value":
            nn.utils.clip_grad_value_(net.parameters(), 0.01)
        used, before = grads(net), values(net)
        optimizer.step()
    record = record_of(recorder)
    for name, p in net.named_parameters():
        assert used[name].abs().max() == 0.01
        check(record, name, "raw-gradient", raw[name])
        check(record, name, "parameter-gradient", used[name])
        check(record, name, "update", p - before[name])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradient_accumulation_is_one_step(set_to_none):
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    told = []
    with watching(net, optimizer) as recorder:
        for _ in range(3):
            optimizer.zero_grad(set_to_none)
            losses = []
            for x, y in batches(4):
                loss = F.mse_loss(net(x), y) / 4
                loss.backward()
                losses.append(loss.item())
            told.append((sum(losses), grads(net), copy.deepcopy(net)))
            optimizer.step()
    record = record_of(recorder)
    assert record.steps.tolist() == [0, 1, 2]
    for step, (loss, used, hand) in enumerate(told):
        assert record.losses[step] == pytest.approx(loss, rel=1e-12)
        assert record.info[step]["passes"] == 4
        assert record.info[step]["uncleared"] == []
        outputs, at_outputs = [], []
        for x, y in batches(4):
            outputs.append(by_hand(hand, x))
            at_outputs.append(torch.autograd.grad(F.mse_loss(outputs[-1][-1], y) / 4, outputs[-1]))
        for i, name in enumerate(("a", "act", "b")):
            check(record, name, "output", *(o[i] for o in outputs), step=step)
            check(record, name, "gradient", *(g[i] for g in at_outputs), step=step)
        for name, gradient in used.items():
            check(record, name, "raw-gradient", gradient, step=step)
            check(record, name, "parameter-gradient", gradient, step=step)


def test_a_module_called_twice_is_one_site():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(torch.tanh(self.f(torch.tanh(self.f(x)))))

    net = Shared().double()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(6, 4, dtype=torch.float64)
    first = x @ net.f.weight.T + net.f.bias
    second = first.tanh() @ net.f.weight.T + net.f.bias
    loss = (second.tanh() @ net.head.weight.T + net.head.bias).square().sum()
    gradients = torch.autograd.grad(loss, (first, second))
    with watching(net, optimizer) as recorder:
        net(x).square().sum().backward()
        optimizer.step()
    record = record_of(recorder)
    check(record, "f", "output", first, second)
    check(record, "f", "gradient", *gradients)
    assert reading(record, "head", "output")[0] == 6


def test_in_place_operations_do_not_change_what_was_read():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(4, 4)

        def forward(self, x):
            y = self.f(x)
            y += x
            return y.relu_()

    net = nn.Sequential(Residual(), nn.Linear(4, 1)).double()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(6, 4, dtype=torch.float64)
    f = x @ net[0].f.weight.T + net[0].f.bias
    r = (f + x).relu()
    gradients = torch.autograd.grad((r @ net[1].weight.T + net[1].bias).square().sum(), (f, r))
    with watching(net, optimizer) as recorder:
        net(x).square().sum().backward()
        optimizer.step()
    record = record_of(recorder)
    check(record, "0.f", "output", f)
    check(record, "0", "output", r)
    check(record, "0.f", "gradient", gradients[0])
    check(record, "0", "gradient", gradients[1])


def test_bf16_autocast():
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(32, 8)
    kept = []
    with watching(net, optimizer) as recorder:
        with torch.autocast("cpu", torch.bfloat16):
            h = net[0](x)
            r = net[1](h)
            out = net[2](r)
            for t in (h, r, out):
                t.retain_grad()
                kept.append(t)
        out.float().square().mean().backward()
        used = grads(net)
        optimizer.step()
    record = record_of(recorder)
    for i, tensor in enumerate(kept):
        assert tensor.dtype == torch.bfloat16
        check(record, str(i), "output", tensor)
        check(record, str(i), "gradient", tensor.grad)
    for name, gradient in used.items():
        check(record, name, "parameter-gradient", gradient)


def test_sparse_embedding_gradients():
    net = nn.Sequential(nn.Embedding(40, 4, sparse=True), nn.Flatten(), nn.Linear(8, 1)).double()
    dense, sparse = torch.optim.SGD(net[2].parameters(), 0.1), torch.optim.SparseAdam([net[0].weight], 0.1)
    x = torch.tensor([[0, 1], [1, 7], [39, 1]])
    with watching(net, [dense, sparse]) as recorder:
        for _ in range(2):
            dense.zero_grad()
            sparse.zero_grad()
            net(x).square().sum().backward()
            gradient, before = net[0].weight.grad.coalesce().values().clone(), net[0].weight.detach().clone()
            dense.step()
            sparse.step()
            after = net[0].weight.detach().clone()
    record = record_of(recorder)
    assert record.steps.tolist() == [0, 1]
    check(record, "0.weight", "parameter-gradient", gradient, step=1)
    check(record, "0.weight", "raw-gradient", gradient, step=1)
    check(record, "0.weight", "update", after - before, step=1)
    assert count(record, "0.weight", "parameter-gradient", step=1) == 4 * 4
    assert record.info[1]["uncleared"] == []


def test_lazy_modules():
    net = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(16, 5)
    with watching(net, optimizer) as recorder:
        for _ in range(2):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            used, before = grads(net), values(net)
            optimizer.step()
    record = record_of(recorder)
    for step in range(2):
        assert count(record, "0", "output", step) == count(record, "0", "gradient", step) == 16 * 8
    for name in used:
        check(record, name, "parameter-gradient", used[name], step=1)
        check(record, name, "parameter", before[name], step=1)
    assert record.models[0]["modules"]["0"]["class"] == "Linear"
    assert record.models[0]["parameters"]["0.weight"]["shape"] == [8, 5]


def test_channels_last():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    with watching(net, optimizer) as recorder:
        h = net[0](x)
        assert not h.is_contiguous()
        h.retain_grad()
        net[2](net[1](h)).square().mean().backward()
        used, before = grads(net), values(net)
        optimizer.step()
    record = record_of(recorder)
    check(record, "0", "output", h)
    check(record, "0", "gradient", h.grad)
    check(record, "0.weight", "parameter-gradient", used["0.weight"])
    check(record, "0.weight", "update", net[0].weight - before["0.weight"])


def test_frozen_layers():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    net[0].requires_grad_(False)
    net[4].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    x = torch.randn(16, 4, dtype=torch.float64)
    h = net[0](x).detach()
    with watching(net, optimizer) as recorder:
        net(x).square().mean().backward()
        optimizer.step()
    record = record_of(recorder)
    check(record, "0", "output", h)
    assert reading(record, "0", "gradient") is None
    assert seen(record, "gradient") == ["2", "3", "4"]
    assert seen(record, "parameter-gradient") == ["2.bias", "2.weight", "4.bias"]
    facts = record.models[0]["parameters"]
    assert [facts[n]["trainable"] for n in ("0.weight", "2.weight", "4.weight", "4.bias")] == [False, True, False, True]
    assert not facts["0.weight"]["optimized"]


def test_nonfinite_losses_and_readings_come_back():
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x, start = torch.randn(8, 4), copy.deepcopy(net.state_dict())
    with watching(net, optimizer) as recorder:
        for factor in (1.0, float("nan"), float("inf"), float("-inf")):
            net.load_state_dict(start)
            optimizer.zero_grad()
            y = net(x)
            poison = torch.ones_like(y)
            poison[0, 0] = factor
            (y * poison).sum().backward()
            optimizer.step()
        recorder.log("mine", float("nan"))
        recorder.log("yours", torch.tensor(float("inf")))
    record = record_of(recorder)
    assert np.isfinite(record.losses[0])
    assert np.isnan(record.losses[1])
    assert np.isinf(record.losses[2:]).all()
    assert record.loss_seen.all()
    gradient = record.series(record.site(0, "", "gradient"))
    assert gradient.nonfinite.tolist() == [0, 1, 1, 1]
    assert gradient.count.tolist() == [16, 15, 15, 15]
    assert np.isfinite(gradient.rms).all()
    assert reading(record, "weight", "parameter-gradient", step=1)[6] == 4  # one of two units, its four weights
    assert np.isnan(record.logged["mine"][1][0])
    assert np.isinf(record.logged["yours"][1][0])


def test_training_mode_is_that_of_the_forward_that_trained():
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer) as recorder:
        for training in (True, False):
            net.eval()
            net(torch.randn(8, 4))  # an evaluation that forgot no_grad
            net.train(training)
            optimizer.zero_grad()
            net(torch.randn(8, 4)).sum().backward()
            optimizer.step()
    assert [info["training"] for info in record_of(recorder).info] == [True, False]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_ragged_batches_are_watched_to_the_end():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer) as recorder:
        for _ in range(2):
            ragged = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(6, 4)], layout=torch.jagged)
            optimizer.zero_grad()
            net(ragged).values().square().mean().backward()
            optimizer.step()
    record = record_of(recorder)
    assert record.steps.tolist() == [0, 1]
    _, links = record.details["links"][0]
    assert links["0:2"]["output"] == [2, -1, 2]

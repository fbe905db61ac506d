"""The step clock: every kind of optimizer, closures, several optimizers, gradient scalers."""

import copy

import pytest
import torch
from recording_cases import Net, by_hand, check, count, grads, record_of, values, watching
from torch import nn
from torch.nn import functional as F

x = torch.randn(16, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
y = torch.randn(16, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}])
@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_every_implementation(cls, options):
    net = Net()
    optimizer = cls(net.parameters(), 0.01, **options)
    told = []
    with watching(net, optimizer) as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            F.mse_loss(net(x.float()), y.float()).backward()
            raw = grads(net)
            nn.utils.clip_grad_norm_(net.parameters(), 0.01, foreach=options.get("foreach"))
            used, before = grads(net), values(net)
            optimizer.step()
            told.append((raw, used, before, values(net)))
    record = record_of(recorder)
    for step, (raw, used, before, after) in enumerate(told):
        for name in raw:
            check(record, name, "raw-gradient", raw[name], step=step)
            check(record, name, "parameter-gradient", used[name], step=step)
            check(record, name, "parameter", before[name], step=step)
            check(record, name, "update", after[name].double() - before[name].double(), step=step, rtol=1e-5)


@pytest.mark.parametrize("keyword", [False, True])
@pytest.mark.parametrize("kind", ["LBFGS", "LBFGS line search", "SGD", "SGD that clears before"])
def test_closures(kind, keyword):
    """A step with a closure is one step: the loss is that of its first run, the gradients those of its last."""
    net = Net().double()
    if kind.startswith("LBFGS"):
        search = "strong_wolfe" if "search" in kind else None
        optimizer = torch.optim.LBFGS(net.parameters(), 0.5, max_iter=6, line_search_fn=search)
    else:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
    told, runs = [], []

    def closure():
        if kind != "SGD that clears before":
            optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        runs.append((loss.item(), grads(net), copy.deepcopy(net)))
        return loss

    with watching(net, optimizer) as recorder:
        for _ in range(3):
            runs.clear()
            before = values(net)
            if kind == "SGD that clears before":
                optimizer.zero_grad()
            first = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
            assert first.item() == runs[0][0]
            told.append((list(runs), before, values(net)))
    record = record_of(recorder)
    assert record.steps.tolist() == record.loss_steps.tolist() == [0, 1, 2]
    for step, (runs, before, after) in enumerate(told):
        assert record.info[step]["passes"] == len(runs)
        assert (len(runs) > 1) == kind.startswith("LBFGS")
        assert record.info[step]["uncleared"] == []
        assert record.losses[step] == pytest.approx(runs[0][0], rel=1e-12)
        _, used, hand = runs[-1]
        outputs = by_hand(hand, x)
        gradients = torch.autograd.grad(F.mse_loss(outputs[-1], y), outputs)
        for name, output, gradient in zip(("a", "act", "b"), outputs, gradients, strict=True):
            check(record, name, "output", output, step=step)
            check(record, name, "gradient", gradient, step=step)
        for name, gradient in used.items():
            check(record, name, "parameter-gradient", gradient, step=step)
            check(record, name, "raw-gradient", gradient, step=step)
            check(record, name, "update", after[name] - before[name], step=step)


def test_accumulation_before_a_closure():
    """Lightning runs the last micro-batch inside the closure, the others before it: the loss is the sum of all."""
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def micro(rows):
        loss = F.mse_loss(net(x[rows]), y[rows]) / 2
        loss.backward()
        return loss

    with watching(net, optimizer) as recorder:
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            first = micro(slice(0, 8))
            second = optimizer.step(lambda: micro(slice(8, 16)))
            losses.append(first.item() + second.item())
    record = record_of(recorder)
    assert record.losses.tolist() == pytest.approx(losses, rel=1e-12)
    assert count(record, "a", "output", 1) == 16 * 7


def test_a_closure_that_raises_leaves_the_next_step_whole():
    net = Net().double()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def bad():
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        raise KeyError("mine")

    with watching(net, optimizer) as recorder:
        with pytest.raises(KeyError):
            optimizer.step(bad)
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        used, before = grads(net), values(net)
        optimizer.step()
        after = values(net)
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
    record = record_of(recorder)
    assert record.steps.tolist() == [0, 1]
    assert record.losses[0] == pytest.approx(loss.item(), rel=1e-12)
    assert count(record, "a", "output") == 16 * 7
    for name in used:
        check(record, name, "parameter-gradient", used[name])
        check(record, name, "update", after[name] - before[name])


def test_two_optimizers_after_one_backward_are_one_step():
    net = Net().double()
    first, second = torch.optim.SGD(net.a.parameters(), 0.1), torch.optim.Adam(net.b.parameters(), 0.01)
    with watching(net, [first, second]) as recorder:
        for _ in range(3):
            first.zero_grad()
            second.zero_grad()
            F.mse_loss(net(x), y).backward()
            used, before = grads(net), values(net)
            first.step()
            second.step()
    record = record_of(recorder)
    assert record.steps.tolist() == record.loss_steps.tolist() == [0, 1, 2]
    assert record.stepped.tolist() == [3, 3, 3]
    assert record.info[0]["rates"] == [[0.1], [0.01]]
    for name in used:
        check(record, name, "parameter-gradient", used[name], step=2)
        check(record, name, "update", net.get_parameter(name) - before[name], step=2)


@pytest.mark.parametrize("depth", [2, 40])
def test_optimizer_in_backward(depth):
    """Each parameter steps and drops its gradient inside the backward pass, 80 optimizers at depth 40."""
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(depth))).double()
    optimizers = {p: torch.optim.SGD([p], 0.01) for p in net.parameters()}
    names = {p: name for name, p in net.named_parameters()}
    used, updates = {}, {}

    def step(p):
        used[names[p]], before = p.grad.clone(), p.detach().clone()
        optimizers[p].step()
        optimizers[p].zero_grad()
        updates[names[p]] = p.detach() - before

    handles = [p.register_post_accumulate_grad_hook(step) for p in net.parameters()]
    data = torch.randn(16, 4, dtype=torch.float64)
    with watching(net, list(optimizers.values())) as recorder:
        for _ in range(3):
            output = net(data)
            loss = output.square().mean()
            loss.backward()
    for handle in handles:
        handle.remove()
    record = record_of(recorder)
    assert record.steps.tolist() == [0, 1, 2]
    assert record.losses[2] == pytest.approx(loss.item(), rel=1e-12)
    assert record.stepped[2] == 2 ** min(2 * depth, 63) - 1
    for name in used:
        check(record, name, "parameter-gradient", used[name], step=2)
        check(record, name, "update", updates[name], step=2)
    check(record, str(depth - 1), "output", output, step=2)
    assert all(count(record, str(i), "gradient", 2) == 64 for i in range(depth))
    assert all(info["uncleared"] == [] for info in record.info)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_gradient_scaler(fused, explicit):
    """Hazard 07: loss and gradients are the true ones, whoever takes the scale off."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    data, target = x.float(), y.float()
    with watching(net, optimizer) as recorder:
        for _ in range(2):
            optimizer.zero_grad()
            twin = copy.deepcopy(net)
            loss = F.mse_loss(twin(data), target)
            loss.backward()
            scaler.scale(F.mse_loss(net(data), target)).backward()
            if explicit:
                scaler.unscale_(optimizer)
            before = values(net)
            scaler.step(optimizer)
            scaler.update()
    record = record_of(recorder)
    for name, gradient in grads(twin).items():
        check(record, name, "parameter-gradient", gradient, step=1, rtol=1e-5)
        check(record, name, "raw-gradient", gradient, step=1, rtol=1e-5)
        check(record, name, "update", net.get_parameter(name).double() - before[name].double(), step=1, rtol=1e-5)


@pytest.mark.parametrize(
    ("factor", "divided"), [(2.0**12, True), (torch.tensor(64.0), True), (3000.0, False), (16.0, False), (0.5, False)]
)
def test_a_loss_scale_is_told_from_a_weight(factor, divided):
    """Powers of two from 32 on are what mixed precision multiplies by; loss and gradients are recorded without it."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    with watching(net, optimizer) as recorder:
        loss = F.mse_loss(net(x.float()), y.float())
        (factor * loss).backward()
        optimizer.step()
    record = record_of(recorder)
    times = 1.0 if divided else float(factor)
    assert record.losses[0] == pytest.approx(times * loss.item(), rel=1e-6)
    assert record.info[0]["loss_scale"] == (float(factor) if divided else 1.0)
    for name, parameter in net.named_parameters():
        check(record, name, "raw-gradient", parameter.grad * times / float(factor), step=0, rtol=1e-5)
    bias = {name: p.grad for name, p in net.named_parameters() if p.ndim == 1}
    site = record.site(0, "a", "gradient")
    total = float(record.series(site).mean[0] * record.series(site).count[0])
    assert total == pytest.approx(float(bias["a.bias"].sum()) * times / float(factor), rel=1e-4)


def test_a_step_that_the_scaler_skips():
    """An overflow: the optimizer does not step, and nothing of that pass may slip into the next step."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    data, target = x.float(), y.float()
    with watching(net, optimizer) as recorder:
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            loss = F.mse_loss(net(data), target) * factor
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    record = record_of(recorder)
    assert record.steps.tolist() == [0, 1]
    assert count(record, "a", "output", 1) == 16 * 7
    assert record.losses[1] == pytest.approx(loss.item(), rel=1e-6)
    assert record.info[1]["loss_scale"] == 2.0  # halved by the step that was skipped


def test_an_unwatched_optimizer_of_another_model():
    """Its passes are not ours."""
    net, other = Net().double(), Net().double()
    ours, theirs = (torch.optim.SGD(m.parameters(), 0.1) for m in (net, other))
    with watching(net, ours) as recorder:
        for _ in range(3):
            theirs.zero_grad()
            F.mse_loss(other(x), y).mul(100).backward()
            theirs.step()
            ours.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            ours.step()
    record = record_of(recorder)
    assert record.step_count == 3
    assert record.losses[2] == pytest.approx(loss.item(), rel=1e-12)
    assert count(record, "a", "gradient", 2) == 16 * 7


def test_parameters_that_no_model_has():
    net, temperature = Net().double(), torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([*net.parameters(), temperature], 0.1)
    with watching(net, optimizer) as recorder:
        for _ in range(2):
            optimizer.zero_grad()
            F.mse_loss(net(x) * temperature.exp(), y).backward()
            used = grads(net)
            optimizer.step()
    record = record_of(recorder)
    check(record, "a.weight", "parameter-gradient", used["a.weight"], step=1)
    assert record.optimizers[0]["groups"][0]["parameters"][-1] == "?"


def test_hooks_of_a_users_own_run_as_ever():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    net.a.register_forward_hook(lambda *_: calls.append("forward"))
    with watching(net, optimizer):
        optimizer.register_step_post_hook(lambda *_: calls.append("post"))
        net(x.float()).sum().backward()
        optimizer.step()
    net(x.float()).sum().backward()
    optimizer.step()
    assert calls == ["forward", "pre", "post"] * 2

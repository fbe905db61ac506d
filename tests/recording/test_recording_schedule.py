"""Which steps are recorded, what hangs on the model at the others, how memory goes, and compiled models."""

import gc

import pytest
import torch
from recording_cases import Net, check, count, grads, hooks, record_of, seen, watching
from torch import nn

from trimtab.recording import Schedule


def test_the_default_schedule():
    recorded = [step for step in range(1000) if Schedule().records(step)]
    assert recorded[:10] == list(range(10))
    assert set(range(10, 100, 10)) <= set(recorded)
    assert set(range(100, 1000, 50)) <= set(recorded)
    assert len(recorded) <= 50
    assert all(not Schedule().details(step) or Schedule().records(step) for step in range(10**5))


def test_every():
    assert [step for step in range(40) if Schedule(7).records(step)] == [*range(10), 14, 21, 28, 35]
    assert all(Schedule(1).records(step) for step in range(100))


@pytest.mark.parametrize("every", [1, 5, None])
def test_hooks_are_there_on_recorded_steps_only(every):
    schedule, net = Schedule(every), Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    found = []
    with watching(net, optimizer, every):
        for step in range(40):
            optimizer.zero_grad()
            y = net(torch.randn(8, 5))
            assert bool(hooks(net)) == schedule.records(step)
            found.append(len(hooks(net.a)))
            y.sum().backward()
            optimizer.step()
            net.eval()
            with torch.no_grad():
                net(torch.randn(8, 5))
            assert hooks(net.a, net.b) == []  # between steps at most the root listens
            net.train()
    assert [bool(n) for n in found] == [schedule.records(step) for step in range(40)]
    assert hooks(net, optimizer) == []


def rss():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


def test_memory_is_flat(tmp_path):
    """Under 2 MiB over 500 steps, every one recorded into a file; evaluation and aborted forwards included."""
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6)))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    with watching(net, optimizer, 1, tmp_path / "a.db") as recorder:

        def train(steps):
            for _ in range(steps):
                optimizer.zero_grad()
                net(torch.randn(32, 64)).square().mean().backward()
                optimizer.step()
                net(torch.randn(4, 64))  # never trained

        train(400)
        gc.collect()
        before = rss()
        train(500)
        gc.collect()
        grown = rss() - before
    recorder.store.close()
    assert grown < 2.0


def test_nothing_of_a_step_is_kept():
    """No output, gradient or graph survives its step inside the recorder."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def tensors():
        gc.collect()
        return sum(type(o) in (torch.Tensor, nn.Parameter) for o in gc.get_objects())

    with watching(net, optimizer):
        counts = []
        for _ in range(2):
            for _ in range(10):
                optimizer.zero_grad()
                net(torch.randn(8, 5)).square().mean().backward()
                optimizer.step()
            counts.append(tensors())
    assert counts[1] <= counts[0]


@pytest.mark.parametrize("first", ["recorder", "compile"])
def test_compiled_models_are_recorded_too(first):
    """Hazard 08: recorded steps run eagerly, the others compiled, in one graph."""
    torch._dynamo.reset()
    graphs, calls = [], []

    def backend(graph, example):
        graphs.append(graph)

        def run(*args):
            calls.append(step)
            return graph.forward(*args)

        return run

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    step = -1
    compiled = torch.compile(net, backend=backend)
    if first == "compile":
        compiled(torch.randn(8, 5)).sum().backward()
        optimizer.zero_grad()
    told = []
    with watching(compiled, optimizer, every=4) as recorder:
        for step in range(22):  # noqa: B007 (the backend looks at it)
            optimizer.zero_grad()
            x = torch.randn(8, 5)
            told.append((net.a(x).detach(), x))
            compiled(x).sum().backward()
            used = grads(net)
            optimizer.step()
    record = record_of(recorder)
    assert record.steps.tolist() == [*range(10), 12, 16, 20]
    for recorded in record.steps.tolist():
        assert count(record, "a", "gradient", recorded) == 8 * 7
        check(record, "a", "output", told[recorded][0], step=recorded)
    assert seen(record, "output") == ["a", "act", "b"]
    assert len(graphs) == 1
    assert set(calls) - {-1} == set(range(22)) - set(record.steps.tolist())
    assert used.keys() == dict(net.named_parameters()).keys()
    torch._dynamo.reset()


def test_compiled_in_place_and_watched_by_the_original():
    torch._dynamo.reset()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    compiled = torch.compile(net, backend="eager")
    with watching(net, optimizer, every=4) as recorder:
        for _ in range(22):
            optimizer.zero_grad()
            compiled(torch.randn(8, 5)).sum().backward()
            optimizer.step()
    record = record_of(recorder)
    assert [count(record, "a", "gradient", step) for step in record.steps.tolist()] == [56] * 13
    torch._dynamo.reset()

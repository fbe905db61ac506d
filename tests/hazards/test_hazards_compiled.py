"""Hazard 08: compiled code stays in one graph, is not compiled again, and recorded steps run eagerly."""

import contextlib
import warnings

import pytest
import torch
from recording_cases import Net, count, record_of, watching
from torch import nn
from torch._dynamo.utils import counters

STEPS = 22
RECORDED = [*range(10), 12, 16, 20]


def wrapped(net, **options):
    return torch.compile(net, **options)


def in_place(net, **options):
    net.compile(**options)
    return net


def function(net, **options):
    return torch.compile(lambda x: net(x).square(), **options)


def part(net, **options):
    net.a = torch.compile(net.a, **options)
    return net


def train(how, watch, **options):
    """Losses, graphs, breaks and, of each graph, the steps at which it ran."""
    torch._dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    call, losses = how(net, **options), []
    with watching(net, optimizer, every=4) if watch else contextlib.nullcontext() as recorder:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = call(torch.randn(8, 5)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    graphs = counters["stats"]["unique_graphs"]
    breaks = sum(counters["graph_break"].values())
    torch._dynamo.reset()
    return losses, graphs, breaks, counters["frames"]["total"], recorder and record_of(recorder)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("how", [wrapped, in_place, function, part])
def test_one_graph_no_break_and_nothing_compiled_again(how, fullgraph, backend):
    plain = train(how, False, backend=backend, fullgraph=fullgraph)
    *watched, record = train(how, True, backend=backend, fullgraph=fullgraph)
    assert watched == list(plain[:4])
    assert watched[1:3] == [1, 0]
    assert record.steps.tolist() == RECORDED
    assert record.step_count == STEPS
    assert [count(record, "a", "gradient", step) for step in RECORDED] == [56] * 13
    assert record.unseen == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("fullgraph", [False, True])
def test_inductor(fullgraph):
    """Recorded steps run eagerly, so that they round as eager code does."""
    plain = train(wrapped, False, backend="inductor", fullgraph=fullgraph)
    *watched, record = train(wrapped, True, backend="inductor", fullgraph=fullgraph)
    assert watched[1:3] == [1, 0]
    assert watched[0] == pytest.approx(plain[0], rel=1e-5)
    assert [count(record, "a", "gradient", step) for step in RECORDED] == [56] * 13


def test_the_first_step_that_is_not_recorded_runs_compiled():
    """The eager stance must end with the recorded step, not within the next forward call."""
    ran = []

    def backend(graph, example):
        def run(*args):
            ran.append(step)
            return graph.forward(*args)

        return run

    torch._dynamo.reset()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    call = torch.compile(net, backend=backend, fullgraph=True)
    with watching(net, optimizer, every=4):
        for step in range(STEPS):  # noqa: B007 (the backend looks at it)
            optimizer.zero_grad()
            call(torch.randn(8, 5)).sum().backward()
            optimizer.step()
    assert sorted(set(ran)) == sorted(set(range(STEPS)) - set(RECORDED))
    torch._dynamo.reset()


@pytest.mark.parametrize("where", ["forward", "step"])
def test_a_fault_of_ours_inside_a_whole_graph(where, monkeypatch):
    """The stance ends with our fault, inside a call that must not be blamed for having compiled nothing."""
    torch._dynamo.reset()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    call = torch.compile(net, backend="eager", fullgraph=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with watching(net, optimizer, sound=False) as recorder:
            for step in range(4):
                if step == 2:
                    name = {"forward": "_hear", "step": "_finish_step"}[where]
                    for watched in recorder.models:
                        watched.forget_structure()  # a module is heard for the first time again
                    monkeypatch.setattr(type(recorder), name, lambda *_: 1 / 0)
                optimizer.zero_grad()
                call(torch.randn(8, 5)).sum().backward()
                optimizer.step()
    assert isinstance(recorder.fault, ZeroDivisionError)
    assert [w.category for w in caught if "trimtab" in str(w.message)] == [RuntimeWarning]
    torch._dynamo.reset()


def test_the_users_stance_wins():
    """Who takes a stance inside the step compiles all of it; then nothing is seen, and that is said."""
    torch._dynamo.reset()
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    call = torch.compile(net, backend="eager")
    with watching(net, optimizer) as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            with torch.compiler.set_stance("default"):
                call(torch.randn(8, 5)).sum().backward()
            optimizer.step()
    record = record_of(recorder)
    assert record.step_count == 3
    assert count(record, "0.weight", "parameter-gradient", 2) == 35
    assert [(place.name, place.what) for place in record.unseen] == [("", "output")]
    torch._dynamo.reset()


@pytest.mark.parametrize("target", ["wrapped", "in place", "whole graph"])
def test_a_script_is_compiled_as_ever(shell, target):
    """`trimtab run` is there before the compiler is: no graph breaks, no warning of our hooks, and the first step is seen."""
    calls = {
        "wrapped": "call = torch.compile(net, backend=backend)",
        "in place": "net.compile(backend=backend); call = net",
        "whole graph": "call = torch.compile(net, backend=backend, fullgraph=True)",
    }
    shell.write(
        "s.py",
        f"""
        import torch
        from torch import nn
        torch.manual_seed(0)
        graphs = []
        def backend(graph, example):
            graphs.append(graph)
            return graph.forward
        net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
        optimizer = torch.optim.SGD(net.parameters(), 0.05)
        {calls[target]}
        for _ in range(14):
            optimizer.zero_grad()
            loss = call(torch.randn(8, 5)).square().mean()
            loss.backward()
            optimizer.step()
            print(loss.item())
        print(len(graphs), dict(torch._dynamo.utils.counters["graph_break"]))
        """,
    )
    plain, done = shell.both("s.py")
    assert (plain.status, done.status) == (0, 0), done.err
    if target == "in place":  # a `Sequential` that is compiled in place runs in pieces of torch's own choosing
        assert done.out.splitlines()[:-1] == plain.out.splitlines()[:-1]
    else:
        assert done.out == plain.out
    assert "Warning" not in done.err
    from trimtab.recording import Record

    record = Record.open(shell.records[-1])
    assert count(record, "0", "gradient", 0) == 56
    assert record.step_count == 14


def test_two_watches_of_compiled_models():
    """Code runs eagerly as long as one of them records the step that comes, and as compiled again when both have ended."""
    torch._dynamo.reset()
    nets = Net(), Net()
    optimizers = [torch.optim.SGD(net.parameters(), 0.05) for net in nets]
    calls = [torch.compile(net, backend="eager", fullgraph=True) for net in nets]
    with watching(nets[0], optimizers[0]) as dense, watching(nets[1], optimizers[1], every=5) as sparse:
        for _ in range(16):
            for call, optimizer in zip(calls, optimizers, strict=True):
                optimizer.zero_grad()
                call(torch.randn(8, 5)).sum().backward()
                optimizer.step()
    assert [count(record_of(dense), "a", "gradient", step) for step in range(16)] == [56] * 16
    assert record_of(sparse).steps.tolist() == [*range(10), 10, 15]
    assert torch._dynamo.eval_frame._stance.stance == "default"
    torch._dynamo.reset()

"""Whatever a module gives back is read, and every place has the name its user knows it by."""

import concurrent.futures
import dataclasses
from typing import NamedTuple

import pytest
import torch
from recording_cases import Net, check, count, hooks, record_of, seen, watching
from torch import nn


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclasses.dataclass
class Out:
    hidden: torch.Tensor
    note: str
    extra: torch.Tensor | None = None


class Giving(nn.Module):
    """A layer that gives its output in some container."""

    def __init__(self, wrap):
        super().__init__()
        self.f, self.wrap = nn.Linear(4, 4), wrap

    def forward(self, x):
        h = self.f(x)
        return self.wrap(h * 2, h * 3)


def model_output(a, b):
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=a, hidden_states=(b,))


@pytest.mark.parametrize(
    ("wrap", "take"),
    [
        (lambda a, b: (a, b), lambda out: out),
        (lambda a, b: [a, b], lambda out: out),
        (Pair, lambda out: out),
        (lambda a, b: {"a": a, "n": 3, "b": b}, lambda out: (out["a"], out["b"])),
        (lambda a, b: {"a": {"deep": [a]}, "b": (b, None)}, lambda out: (out["a"]["deep"][0], out["b"][0])),
        (lambda a, b: Out(a, "x", b), lambda out: (out.hidden, out.extra)),
        (lambda a, b: (a, torch.arange(3), b), lambda out: (out[0], out[2])),
        (model_output, lambda out: (out.last_hidden_state, out.hidden_states[0])),
    ],
    ids=["tuple", "list", "named tuple", "dict", "nested", "dataclass", "integers between", "ModelOutput"],
)
def test_structures(wrap, take):
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Giving(wrap)

        def forward(self, x):
            a, b = take(self.inner(x))
            return a.sum() + 2 * b.sum()

    net = Whole()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(8, 4)
    with torch.no_grad():
        h = net.inner.f(x)
    with watching(net, optimizer) as recorder:
        net(x).backward()
        optimizer.step()
    record = record_of(recorder)
    check(record, "inner", "output", 2 * h)
    check(record, "inner[1]", "output", 3 * h)
    check(record, "inner", "gradient", torch.ones(8, 4))
    check(record, "inner[1]", "gradient", torch.full((8, 4), 2.0))


def test_lstm_gives_three_outputs_also_for_packed_sequences():
    net = nn.LSTM(3, 5, batch_first=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(2, 4, 3), torch.tensor([4, 2]), batch_first=True)
    with watching(net, optimizer) as recorder:
        out, (h, c) = net(packed)
        (out.data.sum() + h.sum() + c.sum()).backward()
        optimizer.step()
    record = record_of(recorder)
    check(record, "", "output", out.data)
    check(record, "[1]", "output", h)
    check(record, "[2]", "output", c)


def test_nothing_to_read():
    """Empty, integer, complex, scalar and meta tensors, strings and None."""

    class Odd(nn.Module):
        def forward(self, x, kind):
            return {
                "empty": x[:0], "integer": x.long(), "complex": torch.complex(x, x), "scalar": x.sum(), "none": None,
                "string": "text", "meta": x.to("meta"), "bool": x > 0,
            }[kind]  # fmt: skip

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.odd = nn.Linear(4, 4), nn.ModuleDict({k: Odd() for k in KINDS})

        def forward(self, x):
            h = self.f(x)
            for kind in KINDS:
                self.odd[kind](h, kind)
            return h

    KINDS = ["empty", "integer", "complex", "scalar", "none", "string", "meta", "bool"]
    net = Whole()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(8, 4)
    with torch.no_grad():
        h = net.f(x)
    with watching(net, optimizer) as recorder:
        net(x).sum().backward()
        optimizer.step()
    record = record_of(recorder)
    check(record, "odd.complex", "output", torch.complex(h, h))
    check(record, "odd.scalar", "output", h.sum())
    assert set(seen(record, "output")) == {"", "f", "odd.complex", "odd.scalar"}


class Hidden(nn.Module):
    """Modules that `parameters()` does not know."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.hidden = [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())]
        self.named = {"one": nn.Linear(4, 4)}

    def forward(self, x):
        x = self.first(x)
        for layer in self.hidden:
            x = layer(x)
        return self.named["one"](x)


def test_modules_in_plain_lists_and_dictionaries():
    net = Hidden()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(8, 4)
    with watching(net, optimizer) as recorder:
        net(x).sum().backward()
        gradient = net.hidden[0].weight.grad.clone()
        optimizer.step()
        assert hooks(net, *net.hidden, *net.named.values()) != []
    assert hooks(net, *net.hidden, *net.named.values()) == []
    record = record_of(recorder)
    assert seen(record, "output") == ["first", "hidden[0]", "hidden[1].0", "hidden[1].1", "named[one]"]
    check(record, "hidden[0].weight", "raw-gradient", gradient)
    assert count(record, "hidden[0].weight", "parameter-gradient") == 0
    facts = record.models[0]["parameters"]
    assert not facts["hidden[0].weight"]["registered"]
    assert facts["first.weight"]["registered"]


def test_wrappers_leave_no_trace_in_names():
    net = Net()
    wrapped = nn.DataParallel(net)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    with watching(wrapped, optimizer) as recorder:
        for _ in range(2):
            wrapped(torch.randn(8, 5)).sum().backward()
            optimizer.step()
    record = record_of(recorder)
    assert seen(record, "output") == ["a", "act", "b"]
    assert seen(record, "parameter") == ["a.bias", "a.weight", "b.bias", "b.weight"]
    assert count(record, "a", "output", 1) == 8 * 7


def test_a_users_own_module_called_module_keeps_its_name():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.module, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.head(self.module(x)) * 2

    net = Own()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer) as recorder:
        net(torch.randn(8, 4)).sum().backward()
        optimizer.step()
    record = record_of(recorder)
    assert seen(record, "output") == ["", "head", "module"]
    assert seen(record, "parameter") == ["head.bias", "head.weight", "module.bias", "module.weight"]
    assert count(record, "", "output") == 8 * 2


class Parallel(nn.Module):
    """What `DataParallel` does on several devices, on one: replicas of every module, called in threads."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def replica(self):
        copies = {id(m): m._replicate_for_data_parallel() for m in self.module.modules()}
        for module in self.module.modules():
            twin = copies[id(module)]
            for name, child in module.named_children():
                setattr(twin, name, copies[id(child)])
            for name, parameter in module.named_parameters(recurse=False):
                setattr(twin, name, parameter * 1)
        return copies[id(self.module)]

    def forward(self, x):
        replicas, parts = [self.replica() for _ in range(2)], x.chunk(2)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return torch.cat(list(pool.map(lambda replica, part: replica(part), replicas, parts)))


def test_replicas_of_data_parallel():
    net = Net()
    wrapped = Parallel(net)
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    x = torch.randn(8, 5)
    with torch.no_grad():
        a = net.a(x)
    with watching(wrapped, optimizer) as recorder:
        wrapped(x).sum().backward()
        optimizer.step()
    record = record_of(recorder)
    check(record, "a", "output", a)
    assert count(record, "b", "gradient") == 8 * 3
    assert seen(record, "parameter-gradient") == ["a.bias", "a.weight", "b.bias", "b.weight"]


def test_parametrizations():
    net = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer) as recorder:
        net(torch.randn(8, 4)).sum().backward()
        optimizer.step()
    record = record_of(recorder)
    assert seen(record, "output") == ["0", "1"]
    assert count(record, "0", "output") == 32
    assert "0.parametrizations.weight.original" in seen(record, "parameter-gradient")


def test_tied_weights_are_read_once():
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    net[2].weight = net[0].weight
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer) as recorder:
        net(torch.randn(8, 4)).square().sum().backward()
        gradient = net[0].weight.grad.clone()
        optimizer.step()
    record = record_of(recorder)
    check(record, "0.weight", "parameter-gradient", gradient)
    assert seen(record, "parameter-gradient") == ["0.weight"]


def test_a_module_that_gives_its_own_parameter_or_its_input():
    """Such a tensor outlives the step; so would a hook on it."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(4))

        def forward(self):
            return self.table

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.positions, self.same, self.f = Positions(), nn.Identity(), nn.Linear(4, 1)

        def forward(self, x):
            return self.f(self.same(x) + self.positions())

    net = Whole()
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    x = torch.randn(8, 4, requires_grad=True)
    with watching(net, optimizer) as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            net(x).square().sum().backward()
            gradient = net.positions.table.grad.clone()
            optimizer.step()
        recorder.close()
        assert hooks(net, x) == []
    record = record_of(recorder)
    for step in range(3):
        check(record, "positions", "gradient", gradient, step=step)
        check(record, "positions", "output", net.positions.table, step=step)


def test_keyword_arguments_are_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(4, 1)

        def forward(self, x, *, scale):
            return self.f(x * scale)

    net = Two()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x, scale = torch.randn(8, 4), torch.rand(8, 1)
    with watching(net, optimizer) as recorder:
        net(x, scale=scale).sum().backward()
        optimizer.step()
    check(record_of(recorder), "input[0]", "input", x)
    check(record_of(recorder), "scale", "input", scale)


def test_a_model_that_is_called_by_its_parts():
    """A GAN or a Lightning module in one: the root itself is never called."""
    net = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(4, 4), nn.ReLU()), "decoder": nn.Linear(4, 4)})
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer) as recorder:
        for _ in range(3):
            optimizer.zero_grad()
            net["decoder"](net["encoder"](torch.randn(8, 4))).square().sum().backward()
            optimizer.step()
    record = record_of(recorder)
    assert record.steps.tolist() == [0, 1, 2]
    for step in range(3):
        for name in ("encoder.0", "encoder.1", "decoder"):
            assert count(record, name, "output", step) == count(record, name, "gradient", step) == 32


def test_a_head_that_is_replaced_during_the_run():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer) as recorder:
        for step in range(6):
            if step == 3:
                net[1] = nn.Linear(4, 3)
                optimizer.add_param_group({"params": list(net[1].parameters())})
            optimizer.zero_grad()
            net(torch.randn(8, 4)).square().sum().backward()
            used = net[1].weight.grad.clone()
            optimizer.step()
    record = record_of(recorder)
    check(record, "1.weight", "parameter-gradient", used, step=5)
    assert [count(record, "0", "gradient", step) for step in range(6)] == [32] * 6
    assert count(record, "1", "output", 5) == 8 * 3


def test_a_frozen_teacher_beside_the_student():
    student, teacher = Net(), Net().requires_grad_(False)
    optimizer = torch.optim.SGD(student.parameters(), 0.1)
    x = torch.randn(8, 5)
    with watching([student, teacher], optimizer) as recorder:
        for _ in range(2):
            optimizer.zero_grad()
            with torch.no_grad():
                goal = teacher(x)
            (student(x) - goal).square().sum().backward()
            optimizer.step()
    record = record_of(recorder)
    assert count(record, "a", "output", 1, 0) == 8 * 7
    assert seen(record, "output", 1) == []


def test_models_of_one_class_are_told_apart_by_number():
    nets = [Net() for _ in range(3)]
    optimizer = torch.optim.SGD([p for net in nets for p in net.parameters()], 0.1)
    with watching(nets, optimizer) as recorder:
        sum(net(torch.randn(8, 5)).sum() for net in nets).backward()
        optimizer.step()
    record = record_of(recorder)
    assert [model["label"] for model in record.models] == ["Net", "Net-2", "Net-3"]
    assert record.label(1, "a") == "Net-2.a"
    assert [count(record, "a", "gradient", 0, model) for model in range(3)] == [56] * 3

"""What cannot be seen is said in the record with its reason, in JSON in full, and in the report's text where it matters."""

import json

import pytest
import torch
from recording_cases import Net, count, record_of, seen, watching
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import trimtab
from trimtab import _torch
from trimtab.recording import unseen
from trimtab.recording.unseen import Unseen

x, y = torch.randn(16, 5), torch.arange(16) % 3


def watched(net, loss=lambda net: F.cross_entropy(net(x), y), steps=3, parameters=None):
    """The record of a few steps."""
    optimizer = torch.optim.SGD(net.parameters() if parameters is None else parameters, 0.1)
    with watching(net, optimizer) as recorder:
        for _ in range(steps):
            optimizer.zero_grad()
            loss(net).backward()
            optimizer.step()
    return record_of(recorder)


def test_nothing_is_hidden_in_a_plain_net():
    assert watched(Net()).unseen == []


class Hiding(nn.Module):
    """Modules that are used in every way but a call."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(5, 1, batch_first=True)
        self.by_forward, self.by_function = nn.Linear(5, 5), nn.Linear(5, 5)
        self.list = nn.ModuleList([nn.Linear(5, 5)])
        self.unused, self.relu = nn.Linear(5, 5), nn.ReLU()
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        h = self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0]
        h = torch.relu(self.by_forward.forward(h))
        return self.head(self.list[0](F.linear(h, self.by_function.weight)))


def test_modules_that_are_not_called():
    record = watched(Hiding())
    assert record.unseen == [
        Unseen(0, "attention.out_proj", "output", unseen.ATTENTION),
        Unseen(0, "by_forward", "output", unseen.BYPASSED),
        Unseen(0, "by_function", "output", unseen.BYPASSED),
        Unseen(0, "unused", "output", unseen.NEVER_CALLED),
        Unseen(0, "relu", "output", unseen.NEVER_CALLED),
    ]
    used = {"attention.out_proj.weight", "by_forward.weight", "by_function.weight"}
    assert used <= set(seen(record, "parameter-gradient"))  # parameters are seen always


def test_the_text_says_what_matters_and_json_all_of_it():
    diagnosis = trimtab.diagnose(watched(Hiding()))
    (line,) = diagnosis.run.unseen
    assert line == f"by_forward, by_function: {unseen.BYPASSED}"
    assert line in str(diagnosis).replace("\n", " ").replace("           ", "")
    sites = json.loads(diagnosis.to_json())["run"]["unseen_sites"]
    assert len(sites) == 5
    assert sites[0] == {"model": 0, "name": "attention.out_proj", "what": "output", "reason": unseen.ATTENTION}


def test_a_transformer_has_no_line_in_its_report():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    tokens = torch.randn(4, 3, 8)
    record = watched(layer, lambda net: net(tokens).square().mean())
    assert [place.reason for place in record.unseen] == [unseen.ATTENTION]
    assert trimtab.diagnose(record).run.unseen == ()


def test_a_module_that_is_called_late_is_seen():
    net = nn.ModuleDict({"first": nn.Linear(5, 3), "late": nn.Linear(5, 3)})
    calls = []

    def loss(net):
        calls.append(1)
        return F.cross_entropy(net["late" if len(calls) > 2 else "first"](x), y)

    assert watched(net, loss, 2).unseen == [Unseen(0, "late", "output", unseen.NEVER_CALLED)]
    calls.clear()
    assert watched(net, loss, 3).unseen == []


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_inside():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.front = nn.Linear(5, 5)
            self.scripted = torch.jit.script(nn.Sequential(nn.Linear(5, 5), nn.ReLU()))
            self.traced = torch.jit.trace(nn.Linear(5, 3), torch.randn(2, 5))

        def forward(self, x):
            return self.traced(self.scripted(self.front(x)))

    record = watched(Whole())
    assert record.unseen == [Unseen(0, name, "output", unseen.SCRIPTED) for name in ("scripted", "traced")]
    assert "scripted.0.weight" in seen(record, "update")
    assert trimtab.diagnose(record).run.unseen == (f"scripted, traced: {unseen.SCRIPTED}",)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("when", ["between steps", "after forward"])
def test_scripting_and_tracing_a_watched_model(when):
    """TorchScript would compile our hooks, too; and what runs while it traces is no training."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def export():
        scripted, traced = torch.jit.script(net), torch.jit.trace(net, x)
        torch.jit.script(nn.Linear(2, 2))
        with torch.no_grad():
            assert torch.equal(scripted(x), traced(x))

    create = torch.jit._recursive.create_script_module
    with watching(net, optimizer) as recorder:
        for _ in range(3):
            if when == "between steps":
                export()
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            if when == "after forward":
                export()
            loss.backward()
            optimizer.step()
    assert torch.jit._recursive.create_script_module is create
    record = record_of(recorder)
    assert [count(record, "a", "output", step) for step in range(3)] == [16 * 7] * 3
    assert [count(record, "a", "gradient", step) for step in range(3)] == [16 * 7] * 3


class Odd(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x.detach())


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda x: x.argmax(-1), unseen.NOT_FLOATING),
        (lambda x: {"n": x > 0}, unseen.NOT_FLOATING),
        (lambda x: x.to("meta"), unseen.META),
        (lambda x: float(x.mean()), unseen.NO_TENSOR),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), unseen.QUANTIZED),
    ],
)
def test_outputs_without_numbers(make, reason):
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.f, self.odd = nn.Linear(5, 3), Odd(make)

        def forward(self, x):
            y = self.f(x)
            self.odd(y)
            return y

    assert watched(Whole()).unseen == [Unseen(0, "odd", "output", reason)]


def test_a_model_on_the_meta_device():
    net = Net().to("meta")
    record = watched(net, lambda net: net(x.to("meta")).sum())
    assert record.unseen == [Unseen(0, "", "output", unseen.META)]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:torch.ao.quantization:DeprecationWarning")
def test_quantized_layers_are_seen_by_what_they_give():
    float_net = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
    quantized = torch.ao.quantization.quantize_dynamic(float_net, {nn.Linear}, torch.qint8)
    net = nn.Sequential(quantized, nn.Linear(5, 3))
    record = watched(net)
    assert count(record, "0.0", "output") == 16 * 5
    assert all("_packed_params" in place.name for place in record.unseen)


def test_vmap_alone():
    """Gradients by sample: the optimizer steps, but there is no call that could be read."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer) as recorder:
        for _ in range(3):
            weights = {name: p.detach() for name, p in net.named_parameters()}
            loss = lambda w, row: functional_call(net, w, (row[None],)).square().sum()  # noqa: E731
            for name, gradient in vmap(grad(loss), (None, 0))(weights, x).items():
                net.get_parameter(name).grad = gradient.mean(0)
            optimizer.step()
    record = record_of(recorder)
    assert record.unseen == [Unseen(0, "", "output", unseen.TRANSFORMED)]
    assert record.steps.tolist() == [0, 1, 2]
    assert trimtab.diagnose(record).run.unseen == (f"Net: {unseen.TRANSFORMED}",)


def test_vmap_beside_training_hides_nothing():
    net = Net()
    assert watched(net, lambda net: net(x).sum() + 0 * vmap(net)(x).sum().detach()).unseen == []


def test_weights_of_somebody_else():
    """Their gradients train nothing that is known; those that an optimizer trains are the model's own from then on."""
    net = Net()
    weights = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    foreign = watched(net, lambda net: functional_call(net, weights, (x,)).square().mean() + 0 * sum_of(net))
    assert foreign.unseen == []  # they are beside a pass that trains
    record = watched(net, lambda net: functional_call(net, weights, (x,)).square().mean(), parameters=weights.values())
    assert record.unseen == []
    assert count(record, "a", "gradient", 2) == 16 * 7
    assert count(record, "a.weight", "update", 2) == 35
    assert record.models[0]["parameters"]["a.weight"]["optimized"]

    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer) as recorder:
        for _ in range(3):
            for weight in weights.values():
                weight.grad = None
            functional_call(net, weights, (x,)).square().mean().backward()
            for name, p in net.named_parameters():
                p.grad = weights[name].grad
            optimizer.step()
    record = record_of(recorder)
    assert {(place.name, place.what, place.reason) for place in record.unseen} == {
        ("", "output", unseen.FOREIGN),
        ("", "gradient", unseen.FOREIGN),
    }
    assert record.models[0]["parameters"]["a.weight"]["optimized"]
    assert count(record, "a.weight", "update", 2) == 35


def sum_of(net):
    return sum(p.sum() for p in net.parameters())


def test_gradients_by_hand():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer) as recorder:
        for _ in range(3):
            gradients = torch.autograd.grad(net(x).square().mean(), list(net.parameters()))
            for p, gradient in zip(net.parameters(), gradients, strict=True):
                p.grad = gradient
            optimizer.step()
    record = record_of(recorder)
    assert record.steps.tolist() == [0, 1, 2]
    assert record.unseen == [Unseen(0, "", "output", unseen.UNTRAINED)]
    assert trimtab.diagnose(record).findings == ()


def test_a_reentrant_checkpoint_around_all_of_it():
    data = x.clone().requires_grad_()
    record = watched(Net(), lambda net: checkpoint(net, data, use_reentrant=True).square().mean())
    assert record.unseen == [Unseen(0, "", "output", unseen.RECOMPUTED)]
    record = watched(Net(), lambda net: checkpoint(net, data, use_reentrant=False).square().mean())
    assert record.unseen == []


@pytest.mark.parametrize("begin", [0, 2])
def test_cuda_graphs_are_declined(monkeypatch, begin):
    """While a graph is captured nothing may be read, nor launched: it would be replayed. `is_capturing` alone knows of CUDA."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reads = []
    with watching(net, optimizer) as recorder:
        for name in ("measure", "measure_difference"):
            real = getattr(recorder._tape, name)
            monkeypatch.setattr(recorder._tape, name, lambda *a, real=real: (reads.append(step), real(*a))[1])
        for step in range(5):
            monkeypatch.setattr(_torch, "is_capturing", lambda: begin <= step)  # noqa: B023
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    assert set(reads) == set(range(begin))
    record = record_of(recorder)
    assert record.step_count == begin
    if begin:
        assert record.unseen == [Unseen(0, "", "step", unseen.CAPTURED)]
        assert trimtab.diagnose(record).run.unseen == (f"Net: {unseen.CAPTURED}",)


def test_nobody_is_missed_who_is_not_trained():
    teacher, net = Net().requires_grad_(False), Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching([net, teacher], optimizer) as recorder:
        for _ in range(2):
            with torch.no_grad():
                goal = teacher(x)
            optimizer.zero_grad()
            (net(x) - goal).square().mean().backward()
            optimizer.step()
    assert record_of(recorder).unseen == []


def test_a_record_of_before_says_nothing(tmp_path):
    """A store without the fact, or without a step in full."""
    record = watched(Net())
    del record.facts["unseen"]
    assert record.unseen == []


def test_looks_that_other_tools_take():
    """Export, symbolic tracing and fake tensors run the model's Python, but train nothing and have no values."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer) as recorder:
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            torch.export.export(net, (x,))
            torch.fx.symbolic_trace(net)
            make_fx(net)(x)
            with FakeTensorMode(allow_non_fake_inputs=True):
                net(x)
            loss.backward()
            optimizer.step()
    record = record_of(recorder)
    assert [count(record, "a", "output", step) for step in range(2)] == [16 * 7] * 2
    assert record.unseen == []

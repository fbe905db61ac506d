"""`trimtab.predict` from the outside: what it leaves, what it refuses, what it says of odd networks."""

import copy
import gc
import json
import random
import weakref

import numpy as np
import prediction_nets as nets
import pytest
import torch
from torch import nn

import trimtab
from trimtab.errors import UsageError
from trimtab.prediction import NoRuleError, State, predict, register_rule
from trimtab.prediction.registry import _RULES


def snapshot(model):
    tensors = {k: v.clone() for k, v in model.state_dict().items()}
    grads = {k: None if p.grad is None else p.grad.clone() for k, p in model.named_parameters()}
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for m in model.modules()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    return tensors, grads, hooks, states


@pytest.mark.parametrize("make", [lambda: nets.resnet(True, (8, 16), 32, 4), lambda: nets.transformer(depth=1, width=32), lambda: nets.recurrent("LSTM", 5, 4, 8, 4)])  # fmt: skip
def test_nothing_is_changed(make):
    model, batch = make()
    for p in list(model.parameters())[::2]:
        p.grad = torch.randn_like(p)
    next(model.children()).eval()
    before, given = snapshot(model), copy.deepcopy(batch)
    predict(model, batch)
    after = snapshot(model)
    for a, b in zip(before[:2], after[:2], strict=True):
        assert a.keys() == b.keys()
        assert all((v is None and b[k] is None) or torch.equal(v, b[k]) for k, v in a.items())
    assert before[2] == after[2]
    assert torch.equal(before[3][0], after[3][0])
    assert (before[3][1] == after[3][1]).all()
    assert before[3][2] == after[3][2]
    assert all(torch.equal(a, b) for a, b in zip(batch, given, strict=True))
    assert str(predict(model, batch)) == str(predict(model, batch))


def test_nothing_is_changed_after_an_error():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            self.norm(x)
            raise ArithmeticError("mine")

    model = Fails()
    before = snapshot(model)
    with pytest.raises(ArithmeticError, match="mine"):
        predict(model, torch.randn(8, 4))
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before[0].items())
    assert snapshot(model)[2] == before[2]


def test_nothing_is_kept():
    model, (x,) = nets.mlp("ReLU", depth=2, width=32)
    died = []
    handle = model.register_forward_hook(lambda module, args, output: died.append(weakref.ref(output)))
    predict(model, x)
    handle.remove()
    gc.collect()
    assert [reference() for reference in died] == [None]


def test_the_three_kinds_of_batch():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x, scale, shift=None):
            return self.linear(x * scale + (0 if shift is None else shift))

    model, x, y = Sum(), torch.randn(16, 4), torch.randn(16, 4)
    assert len(predict(model, (x, y))) == len(predict(model, {"x": x, "scale": y, "shift": x})) == 2 - 1
    assert len(predict(model.linear, x)) == 1


def test_a_loss_inside_the_model_is_a_site_of_no_dimension():
    class Loses(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(16, 4)

        def forward(self, x):
            return self.linear(x).square().mean()

    found = predict(Loses(), torch.randn(64, 16))
    assert abs(found["linear"].forward_error) < 0.1
    assert abs(found["linear"].backward_error) < 0.1


def test_what_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(UsageError, match=r"model must be a torch\.nn\.Module, but it is a str"):
        predict("model", torch.randn(2, 4))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        predict(model, torch.randn(2, 5))
    with pytest.raises(UsageError, match=r"loss must give a scalar tensor, but it gave a tensor of shape \(2, 4\)"):
        predict(model, torch.randn(2, 4), loss=lambda out: out)
    with pytest.raises(UsageError, match="no shape yet"):
        predict(nn.LazyLinear(3), torch.randn(2, 4))
    with torch.no_grad():
        model[0].weight[1, 1] = float("nan")
    with pytest.raises(UsageError, match=r"parameter 0\.weight holds NaN"):
        predict(model, torch.randn(2, 4))

    class Index(nn.Module):
        def forward(self, x):
            return x.argmax(-1)

    with pytest.raises(UsageError, match="no floating tensor"):
        predict(Index(), torch.randn(2, 4))


def test_a_batch_of_one_is_noted():
    found = predict(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(1, 8))
    assert "one sample" in str(found)
    assert len(found) == 3


def test_a_loss_of_the_users_own():
    model, (x,) = nets.mlp("ReLU", depth=3, width=200)
    y = torch.randint(0, 10, (len(x),))
    found = predict(model, x, loss=lambda out: nn.functional.cross_entropy(out, y))
    assert abs(found.sites[0].backward_error) < 0.1
    assert found.sites[-1].backward_measured < 1e-3


def test_no_gradient_where_nothing_can_take_one():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).requires_grad_(False)
    found = predict(model, torch.randn(8, 4))
    assert all(np.isnan(s.backward_measured) for s in found)
    assert not found.odd


def test_an_operation_without_a_rule_passes_the_measured_value():
    class Runs(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(64, 64), nn.Linear(64, 64), nn.Identity()

        def forward(self, x):
            return self.b(self.c(torch.cummax(self.a(x), -1)[0]))

    found = predict(Runs(), torch.randn(32, 64))
    assert dict(found.uncovered) == {"aten.cummax": 1}
    assert not found["a"].covered  # its gradient is a measured one
    assert not found["c"].covered
    assert found["b"].covered
    assert found["c"].forward == pytest.approx(found["c"].forward_measured, rel=0.05)
    assert abs(found["b"].forward_error) < 0.3
    assert "1 × aten.cummax" in str(found)


def test_a_rule_of_the_users_own():
    @torch.library.custom_op("predict_test::triple", mutates_args=())
    def triple(x: torch.Tensor) -> torch.Tensor:
        return 3 * x

    triple.register_autograd(lambda ctx, g: 3 * g, setup_context=lambda ctx, inputs, output: None)

    class Triples(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return self.b(triple(self.a(x)))

    def forward(call) -> State:
        return call.state(call.args[0]).scaled(3)

    def backward(call, gradients):
        return {call.args[0].id: gradients[0].scaled(3)}

    model, x = Triples(), torch.randn(32, 64)
    assert dict(predict(model, x).uncovered) == {"predict_test.triple": 1}
    register_rule(torch.ops.predict_test.triple, forward=forward, backward=backward)
    try:
        found = predict(model, x)
        assert found.coverage == 1.0
        assert abs(found["a"].backward_error) < 0.1

        def refuses(call):
            raise NoRuleError("not today")

        register_rule("predict_test.triple", forward=refuses, backward=backward)
        assert dict(predict(model, x).uncovered) == {"predict_test.triple": 1}
    finally:
        del _RULES["predict_test.triple"]
    with pytest.raises(UsageError, match="needs an operation"):
        register_rule(forward=forward, backward=backward)


def test_which_of_the_two_is_odd():
    torch.manual_seed(1)
    model, batch = nets.mlp("Sigmoid", depth=12, width=200)
    assert {s.odd for s in predict(model, batch)} == {"", "prediction"}
    model, batch = nets.mlp("ReLU", True, depth=4, width=400)
    assert not predict(model, batch).odd
    with torch.no_grad():
        model[2].weight.copy_(model[2].weight[:1].expand(400, 400))  # every unit the same one
        model[4].weight.abs_()
    assert any(s.odd == "measurement" for s in predict(model, batch))


@pytest.mark.parametrize("train", [True, False])
def test_evaluation_mode(train):
    model, batch = nets.vgg(True, (32, 64), 16, 16)
    found = predict(model.train(train), batch)
    assert found.coverage == 1.0
    assert abs(np.nanmedian([s.forward_error for s in found])) < 0.15
    assert abs(np.nanmedian([s.backward_error for s in found])) < 0.15


def test_renderings(tmp_path):
    model, batch = nets.mlp("Tanh", depth=3, width=100)
    found = trimtab.predict(model, batch)
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[0].endswith("as predicted")
    plain = json.loads(found.to_json())
    assert plain["coverage"] == 1.0
    assert len(plain["sites"]) == len(found) == 7
    assert plain["sites"][0]["name"] == "0"
    found.figure(tmp_path / "depth.png")
    assert (tmp_path / "depth.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(KeyError):
        found["nothing"]

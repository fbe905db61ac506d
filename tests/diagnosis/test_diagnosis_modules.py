"""Modules that make trouble for whoever follows them: losses inside the model, one activation for all layers."""

import math

import pytest
import torch
from diagnosis_cases import watched
from torch import nn
from torch.nn import functional as F

import trimtab
from trimtab import Setup
from trimtab.diagnosis.layers import layers
from trimtab.diagnosis.view import View

X, CLASSES, Y = torch.randn(64, 6), torch.randint(10, (64,)), torch.randn(64, 3)


class WithLoss(nn.Module):
    """A net whose forward gives the loss, as Lightning's and Hugging Face's do."""

    def __init__(self, crit, wide):
        super().__init__()
        self.body, self.act, self.head, self.crit = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, wide), crit

    def forward(self, x, y):
        found = self.head(self.act(self.body(x)))
        return F.mse_loss(found, y) if self.crit is None else self.crit(found, y)


class Plain(WithLoss):
    """The same, with the loss outside."""

    def forward(self, x):
        return self.head(self.act(self.body(x)))


def view(net, loss):
    return View(watched(Setup(net, torch.optim.SGD(net.parameters(), 0.01), lambda: [0], loss, steps=12)))


@pytest.mark.parametrize(
    ("crit", "y", "wide", "classes"),
    [(None, Y, 3, None), (nn.MSELoss(), Y, 3, None), (nn.CrossEntropyLoss(), CLASSES, 10, 10)],
)
def test_a_loss_that_is_a_modules_output_is_read_as_one_that_is_not(crit, y, wide, classes):
    function = F.mse_loss if classes is None else F.cross_entropy
    inside = view(WithLoss(crit, wide), lambda model, _: model(X, y))
    outside = view(Plain(None, wide), lambda model, _: function(model(X), y))
    assert inside.loss["operations"] == outside.loss["operations"] != []
    assert inside.loss["sources"] == outside.loss["sources"] == ["0:head"]
    assert inside.classes == outside.classes == classes
    expected = float(Y.std(correction=0)) ** 2 if classes is None else math.log(10)
    assert inside.constant_answer == pytest.approx(outside.constant_answer) == pytest.approx(expected)


def test_a_loss_with_something_added_to_it_inside_the_model():
    class Penalized(WithLoss):
        def forward(self, x, y):
            return super().forward(x, y) + 1e-3 * self.head.weight.square().sum()

    found = view(Penalized(nn.CrossEntropyLoss(), 10), lambda model, _: 2 * model(X, CLASSES))
    assert found.loss["sources"] == ["0:head"]
    assert found.loss["kind"] == "NllLoss"


def test_a_loss_module_in_the_model_is_diagnosed():
    net = WithLoss(nn.MSELoss(), 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    setup = Setup(net, optimizer, lambda: [0], lambda model, _: model(X, Y), steps=12)
    assert trimtab.diagnose(setup).run.steps == 12


class Deep(nn.Module):
    """Nine layers with a ReLU each, or one for all of them."""

    def __init__(self, shared):
        super().__init__()
        self.fc = nn.ModuleList(nn.Linear(32, 32) for _ in range(9))
        self.relu = nn.ReLU() if shared else nn.ModuleList(nn.ReLU() for _ in range(8))
        self.drop = nn.Dropout(0.0)  # shared by all in any case

    def forward(self, x):
        for i, fc in enumerate(self.fc):
            x = fc(x)
            if i < 8:
                x = self.drop((self.relu[i] if isinstance(self.relu, nn.ModuleList) else self.relu)(x))
        return x


def deep(shared, dead=False):
    torch.manual_seed(0)
    net = Deep(shared)
    if dead:
        nn.init.constant_(net.fc[0].bias, -100.0)
    x, y = torch.randn(64, 32), torch.randint(32, (64,))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    return Setup(net, optimizer, lambda: [(x, y)], lambda m, b: F.cross_entropy(m(b[0]), b[1]), steps=30)


def test_a_shared_activation_does_not_break_the_chain_of_layers():
    for layer in layers(watched(deep(True)))[1:]:
        before = layer.before
        assert before.sources == (f"fc.{int(layer.name[3:]) - 1}",)
        assert before.activations == ("relu",)
        assert before.modules == ("relu",)


@pytest.mark.parametrize("dead", [False, True])
def test_a_shared_activation_is_diagnosed_like_one_for_each_layer(dead):
    own, shared = (trimtab.diagnose(deep(shared, dead)) for shared in (False, True))
    assert [f.code for f in shared.findings] == [f.code for f in own.findings]
    for one, other in zip(shared.findings, own.findings, strict=True):
        assert one.summary == other.summary.replace("relu.0", "relu")
        places = dict.fromkeys("relu" if name.startswith("relu.") else name for name in other.where)
        assert list(dict.fromkeys(one.where)) == list(places)
    assert ("dead-units" in {f.code for f in shared.findings}) is dead
    if dead:
        assert shared["dead-units"].where == ("fc.0", "relu")

"""What lies between the weight layers, read off a real forward pass."""

import pytest
import torch
from diagnosis_cases import watched
from torch import nn
from torch.nn import functional as F

from trimtab import Setup
from trimtab.diagnosis.layers import is_norm, layers


def seen(net, x=None):
    """Layers by name, of one step of a net."""
    x = torch.randn(8, 6) if x is None else x
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    record = watched(
        Setup(net, optimizer, lambda: [x], lambda model, batch: model(batch).float().square().mean(), steps=2)
    )
    return {layer.name: layer for layer in layers(record)}


class Written(nn.Module):
    """A forward written by hand over linear layers a, b, c."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        for name, part in parts.items():
            setattr(self, name, part)
        self.by_hand = forward

    def forward(self, x):
        return self.by_hand(self, x)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.ReLU(), "relu"),
        (nn.ReLU(inplace=True), "relu"),
        (nn.Tanh(), "tanh"),
        (nn.GELU(), "gelu"),
        (nn.LeakyReLU(0.1, inplace=True), "leaky_relu"),
        (nn.SiLU(), "silu"),
        (nn.Hardtanh(), "hard_tanh"),
    ],
)
def test_an_activation_module(module, name):
    found = seen(nn.Sequential(nn.Linear(6, 6), module, nn.Linear(6, 3)))
    assert list(found) == ["0", "2"]
    between = found["2"].before
    assert between.activations[:1] == (name,)
    assert set(between.activations) == {name}
    assert "1" in between.modules
    assert between.sources == ("0",)
    assert not between.joins
    assert not between.norms
    assert found["0"].after == between
    assert found["0"].before.sources == ()


def test_an_activation_module_counts_once():
    for module in (nn.ReLU(), nn.ReLU(inplace=True), nn.Tanh()):
        assert len(seen(nn.Sequential(nn.Linear(6, 6), module, nn.Linear(6, 3)))["2"].before.activations) == 1


@pytest.mark.parametrize(
    ("function", "name"),
    [(F.relu, "relu"), (torch.tanh, "tanh"), (torch.sigmoid, "sigmoid"), (F.gelu, "gelu"), (F.relu_, "relu")],
)
def test_an_activation_function(function, name):
    found = seen(Written(lambda net, x: net.c(function(net.b(function(net.a(x)))))))
    assert list(found) == ["a", "b", "c"]
    assert found["b"].before.activations == (name,)
    assert found["b"].before.modules == ("",)
    assert found["b"].before.sources == ("a",)
    assert found["c"].before.sources == ("b",)


def test_a_residual_sum():
    found = seen(Written(lambda net, x: net.c((z := net.a(x)) + net.b(F.relu(z)))))
    assert found["b"].before.sources == ("a",)
    assert not found["b"].before.joins
    assert set(found["c"].before.sources) == {"a", "b"}
    assert found["c"].before.joins


def test_a_concatenation():
    found = seen(Written(lambda net, x: net.c(torch.cat([net.a(x)[:, :3], net.b(x)[:, :3]], 1))))
    assert found["c"].before.joins
    assert set(found["c"].before.sources) == {"a", "b"}


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.BatchNorm1d(6), nn.GroupNorm(2, 6), nn.RMSNorm(6)])
def test_a_norm(norm):
    found = seen(nn.Sequential(nn.Linear(6, 6), norm, nn.ReLU(), nn.Linear(6, 3)))
    assert list(found) == ["0", "3"]
    assert "1" in found["3"].before.norms
    assert found["3"].before.activations == ("relu",)
    assert found["3"].before.sources == ("0",)


def test_a_norm_that_is_no_module():
    found = seen(Written(lambda net, x: net.b(F.layer_norm(net.a(x), (6,)))))
    assert "" in found["b"].before.norms


@pytest.mark.parametrize(
    ("cls", "yes"),
    [("BatchNorm2d", True), ("LlamaRMSNorm", True), ("MyLayerNorm2d", True), ("Linear", False), ("Normal", False)],
)
def test_norms_by_name(cls, yes):
    assert is_norm(cls) is yes


def test_containers_are_looked_through():
    inner = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    found = seen(nn.Sequential(inner, nn.Sequential(nn.Identity(), nn.Dropout(0.5)), nn.Linear(6, 3)))
    assert list(found) == ["0.0", "2"]
    assert found["2"].before.sources == ("0.0",)
    assert set(found["2"].before.activations) == {"relu"}
    assert not found["2"].before.joins


def test_modules_in_a_list():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.parts = nn.Linear(6, 6), [nn.Linear(6, 6) for _ in range(2)]

        def forward(self, x):
            x = self.first(x)
            for part in self.parts:
                x = part(torch.tanh(x))
            return x

    found = seen(Net())
    assert list(found) == ["first", "parts[0]", "parts[1]"]
    assert found["parts[1]"].before.sources == ("parts[0]",)
    assert found["parts[1]"].before.activations == ("tanh",)
    assert not len(found["parts[1]"].updates)


def test_convolutions_pooling_and_flattening():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    found = seen(net, torch.randn(4, 1, 6, 6))
    assert list(found) == ["0", "4"]
    assert found["4"].before.sources == ("0",)
    assert set(found["4"].before.activations) == {"relu"}
    assert found["0"].fan_in == 9
    assert found["4"].fan_in == 16


def test_recurrent_layers_and_embeddings():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.cell, self.head = nn.Embedding(5, 6), nn.GRU(6, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.cell(self.embedding(x))[0][:, -1])

    found = seen(Net(), torch.randint(0, 5, (4, 7)))
    assert list(found) == ["cell", "head"]
    assert found["cell"].recurrent
    assert not found["head"].recurrent
    assert found["head"].before.sources == ("cell",)


def test_layers_stand_in_the_order_in_which_they_ran():
    found = seen(Written(lambda net, x: net.c(net.a(net.b(x)))))
    assert list(found) == ["b", "a", "c"]
    assert [layer.order for layer in found.values()] == sorted(layer.order for layer in found.values())


def test_a_layer_has_its_readings():
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3, bias=False))
    first, last = seen(net).values()
    assert (first.weight, first.bias, first.shape) == ("0.weight", "0.bias", (6, 6))
    assert (last.weight, last.bias, last.shape) == ("2.weight", "", (3, 6))
    for layer in (first, last):
        assert layer.trainable
        assert all(len(series) == 2 for series in (layer.output, layer.gradient, layer.values, layer.updates))
        assert layer.at(layer.output, 0)[0] == 8 * layer.shape[0]
        assert layer.at(layer.output, 99) is None


def test_a_model_that_is_one_layer():
    net = nn.Linear(6, 3)
    (layer,) = seen(net).values()
    assert (layer.name, layer.weight, layer.before.sources) == ("", "weight", ())

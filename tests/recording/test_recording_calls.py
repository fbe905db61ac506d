"""Modules that are called more than once: which call is told apart, and along which axis its units lie."""

import pytest
import torch
from recording_cases import record_of, watching
from torch import nn
from torch.nn import functional as F

from trimtab.recording import split_call
from trimtab.recording.details import input_axis
from trimtab.recording.sites import MAX_CALLS, CallTable, call_name


class Shared(nn.Module):
    """Three layers and one ReLU for them all; everything behind the first layer is off."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.relu = nn.Linear(5, 4), nn.Linear(4, 6), nn.Linear(6, 3), nn.ReLU()
        nn.init.constant_(self.a.bias, -100.0)

    def forward(self, x):
        return self.c(self.relu(self.b(self.relu(self.a(x)))))


class Recurrent(nn.Module):
    """One layer called five times; the first time on zeros."""

    def __init__(self):
        super().__init__()
        self.x, self.h, self.act = nn.Linear(5, 4), nn.Linear(4, 4, bias=False), nn.ReLU()

    def forward(self, x):
        h = torch.zeros(len(x), 4)
        for _ in range(5):
            h = self.x(x) + self.act(self.h(h))
        return h


def recorded(net, *inputs, passes=1):
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    with watching(net, optimizer) as recorder:
        for _ in range(passes):
            net(*inputs).square().mean().backward()
        optimizer.step()
    return record_of(recorder)


def links(record):
    return record.details["links"][0][1]


def looks(record, name, kind="output"):
    return record.units[record.site(0, name, kind).index]


@pytest.mark.parametrize("passes", [1, 3])
def test_each_call_of_a_shared_activation_is_told_apart(passes):
    record = recorded(Shared(), torch.randn(8, 5), passes=passes)
    assert {key: link["sources"] for key, link in links(record).items() if "relu" in key} == {
        "0:relu": ["0:a"],
        "0:relu#2": ["0:b"],
    }
    assert links(record)["0:c"]["sources"] == ["0:relu#2"]
    assert [(u.call, u.units, u.silent == u.units) for u in looks(record, "relu")] == [(1, 4, True), (2, 6, False)]


def test_a_layer_in_a_loop_is_one_place_looked_at_last():
    record = recorded(Recurrent(), torch.randn(8, 5))
    assert set(links(record)) == {"0:", "0:x", "0:h", "0:act"}
    (last,) = looks(record, "act")
    assert last.silent < last.units  # at the first call, on zeros, all four were


def test_a_call_keeps_its_number_when_an_earlier_one_is_left_out():
    net = Shared()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    with watching(net, optimizer) as recorder:
        for step in range(3):
            x = torch.randn(8, 5)
            if step:
                net.forward = lambda x: net.c(net.relu(net.b(torch.randn(8, 4))))
            net(x).square().mean().backward()
            optimizer.step()
    assert [(u.step, u.call) for u in looks(record_of(recorder), "relu")] == [(0, 1), (0, 2), (1, 2), (2, 2)]


def test_calls_without_end():
    table = CallTable()
    found = [table.number("0:act", [], [f"0:act#{i}"]) for i in range(MAX_CALLS + 9)]
    assert found == [*range(1, MAX_CALLS + 1), *[MAX_CALLS] * 9]
    assert table.number("0:act", [], ["0:act#3"]) == 4


def test_names_of_calls():
    assert [call_name("a.relu", call) for call in (1, 2, 12)] == ["a.relu", "a.relu#2", "a.relu#12"]
    assert [split_call(name) for name in ("a.relu", "a.relu#12", "", "#2", "a#b")] == [
        ("a.relu", 1), ("a.relu", 12), ("", 1), ("", 2), ("a#b", 1),
    ]  # fmt: skip


class Permute(nn.Module):
    def forward(self, x):
        return x.permute(0, 2, 3, 1)


class Functional(nn.Module):
    """An activation that is no module, between two convolutions."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv1d(2, 6, 3), nn.Conv1d(6, 4, 3)

    def forward(self, x):
        return self.b(F.relu(self.a(x)))


def test_an_activation_has_the_units_of_what_it_is_given():
    signal = recorded(nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Dropout(0.1)), torch.randn(4, 2, 20))
    assert [looks(signal, name)[0].units for name in "012"] == [6, 6, 6]
    # Patches with channels last, as Swin has them: a convolution, axes permuted, and from there on the last axis.
    mlp = (nn.LayerNorm(6), nn.Linear(6, 9), nn.GELU())
    last = recorded(nn.Sequential(nn.Conv2d(3, 6, 2, 2), Permute(), *mlp), torch.randn(4, 3, 8, 16))
    assert [looks(last, name)[0].units for name in "01234"] == [6, 6, 6, 9, 9]
    text = recorded(nn.Sequential(nn.Linear(5, 7), nn.ReLU()), torch.randn(4, 11, 5))
    assert looks(text, "1")[0].units == 7


def test_a_functional_activation_has_the_units_of_what_it_is_given():
    assert looks(recorded(Functional(), torch.randn(4, 2, 20)), "b", "input")[0].units == 6


@pytest.mark.parametrize(
    ("shape", "net", "axis"),
    [
        ((4, 5), nn.Linear(5, 3), 1),
        ((4, 2, 20), nn.Conv1d(2, 6, 3), 1),
        ((4, 2, 20), nn.LazyConv1d(6, 3), 1),
        ((4, 20, 5), nn.Sequential(nn.Linear(5, 8), nn.Conv1d(20, 6, 3)), 2),
        ((4, 20, 5), nn.LSTM(5, 8), 2),
        ((4, 3, 8, 8), nn.Conv2d(3, 6, 3), 1),
        ((4, 8, 8, 3), nn.Linear(3, 6), 3),
        ((4, 20, 5), nn.Identity(), 2),
        ((4, 3, 8, 8), nn.Identity(), 1),
    ],
)
def test_input_features_lie_where_the_first_layer_looks_for_them(shape, net, axis):
    assert input_axis(torch.zeros(shape), net.modules()) == axis

"""Models of thousands of modules: recorded in full, and diagnosed; one without numbers is left alone."""

import sqlite3

import torch
from torch import nn

import trimtab
from trimtab.recording import Record

DEPTH = 1000


class Deep(nn.Module):
    """A thousand residual layers with their activations: 2,002 modules, the root included."""

    def __init__(self, depth=DEPTH, device=None):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, device=device) for _ in range(depth))
        self.activations = nn.ModuleList(nn.Tanh() for _ in range(depth))

    def forward(self, x):
        for layer, activation in zip(self.layers, self.activations, strict=True):
            x = x + 0.01 * activation(layer(x))
        return x


def train(model, steps=2, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(16, 8, device=next(model.parameters()).device)
    with trimtab.watch(model, optimizer, **options) as watch:
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return watch


def test_two_thousand_modules(tmp_path):
    store = tmp_path / "run.db"
    train(Deep(), store=store, every=1)
    record = Record.open(store)
    assert record.steps.tolist() == [0, 1]
    assert len(list(record.of_kind("output"))) == 2 * DEPTH + 1
    assert len(list(record.of_kind("gradient"))) == 2 * DEPTH + 1
    assert len(list(record.of_kind("update"))) == 2 * DEPTH
    seen = record.readings[:, :, 0] > 0
    assert seen.all(), "every site at every step"
    with sqlite3.connect(store) as connection:
        sizes = [size for (size,) in connection.execute("SELECT length(readings) FROM steps")]
    assert sizes == [28 * len(record.sites)] * 2
    assert trimtab.diagnose(record).healthy


def test_a_model_without_numbers_is_left_alone():
    watch = train(Deep(20, "meta"), every=1)
    record = watch.record
    assert "fault" not in record.facts
    assert not record.readings[:, :, [0, 6]].any()
    watch.diagnose()

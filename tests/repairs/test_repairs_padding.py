"""Batch statistics over the real positions of padded sequences, however the data tells which these are."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, answers_to
from trimtab.repairs.families.padding import real_positions
from trimtab.repairs.patient import Patient
from trimtab.report import Finding

LENGTHS = torch.tensor([5, 3, 2, 4])
REAL = torch.arange(5) < LENGTHS[:, None]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean(2))


def sequences():
    return torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0)) * REAL[:, None] + 2.0 * REAL[:, None]


def setup_of(x=None):
    x, y = sequences() if x is None else x, torch.tensor([0, 1, 0, 1])
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Setup(model, optimizer, lambda: [(x, y)], lambda m, b: F.cross_entropy(m(b[0]), b[1]), steps=3)


@pytest.mark.parametrize(
    "given",
    [
        sequences(),
        sequences().transpose(1, 2),
        REAL,
        ~REAL,
        LENGTHS,
        torch.where(REAL, torch.arange(1, 21).view(4, 5), 0),
        torch.where(REAL, torch.arange(20).view(4, 5), 99),
    ],
)
def test_the_real_positions(given):
    assert torch.equal(real_positions((given,), (4, 5)), REAL)


@pytest.mark.parametrize("given", [torch.randn(4, 3, 5), torch.arange(20).view(4, 5), torch.tensor([0, 1, 2, 1])])
def test_nothing_tells(given):
    assert real_positions((given,), (4, 5)) is None


def test_statistics_are_those_of_the_real_positions():
    setup = setup_of()
    Change("mask-padding", {"layers": ["norm"]}).apply(setup)
    model = setup.model
    held = [id(p) for g in setup.optimizer.param_groups for p in g["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    model.train()(sequences())
    real = model.conv(sequences()).detach().transpose(1, 2)[REAL]
    torch.testing.assert_close(model.norm.running_mean, 0.1 * real.mean(0))
    torch.testing.assert_close(model.norm.running_var, 0.9 + 0.1 * real.var(0))
    list(setup.train(3))


def test_whole_sequences_have_no_padding():
    with pytest.raises(RepairError, match="padded"):
        Change("mask-padding", {"layers": ["norm"]}).apply(setup_of(torch.randn(4, 3, 5)))
    with pytest.raises(RepairError, match="BatchNorm1d"):
        Change("mask-padding", {"layers": ["head"]}).apply(setup_of())


def test_padding_is_answered_by_a_mask_or_else_by_another_norm():
    finding = Finding("padding-in-batch-stats", "error", ("norm",), "")
    kinds = [c.kind for c in answers_to(finding, Patient(setup_of))]
    assert kinds == ["mask-padding", "convert-norms"]
    kinds = [c.kind for c in answers_to(finding, Patient(lambda: setup_of(torch.randn(4, 3, 5))))]
    assert kinds == ["convert-norms"]

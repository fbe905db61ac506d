"""Recurrent nets are judged along time: which of them are named, and beside what."""

import math

import pytest
import torch
from diagnosis_cases import seeded
from torch import nn
from torch.nn import functional as F

import trimtab
from trimtab import Setup
from trimtab.diagnosis.expected import TimeFlow, time_flows
from trimtab.report.prediction import Prediction, Site


class Cells(nn.Module):
    """The same net as `Layer`, its cell called once a step."""

    def __init__(self, width):
        super().__init__()
        self.cell, self.head = nn.RNNCell(3, width), nn.Linear(width, 2)

    def forward(self, x):
        h = None
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


class Layer(nn.Module):
    def __init__(self, width, cls=nn.RNN):
        super().__init__()
        self.rnn, self.head = cls(3, width, batch_first=True), nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def recurrent(model):
    return next(m for m in model.modules() if isinstance(m, (nn.RNNBase, nn.RNNCellBase)))


def setup(model, length, gain, steps=30, lr=1e-2):
    """Tell from the last step which of two signs stood at the first one: with orthogonal recurrent weights of this gain."""
    for name, weight in recurrent(model).named_parameters():
        if "weight_hh" in name:
            nn.init.orthogonal_(weight, gain)
    x = 0.1 * torch.randn(64, length, 3, generator=seeded(1))
    y = torch.randint(2, (64,), generator=seeded(2))
    x[:, 0, 0] = 2.0 * y - 1
    optimizer = torch.optim.Adam(model.parameters(), lr)
    return Setup(model, optimizer, lambda: [(x, y)], lambda m, b: F.cross_entropy(m(b[0]), b[1]), steps=steps)


@pytest.mark.parametrize(("make", "name"), [(Layer, "rnn"), (Cells, "cell")])
def test_what_a_step_back_takes_is_named_beside_what_the_weights_foretell(make, name):
    torch.manual_seed(0)
    diagnosis = trimtab.diagnose(setup(make(16), 60, 0.5))
    found = diagnosis["vanishing-gradient"]
    assert diagnosis.roots[0] is found
    assert (found.severity, found.where) == ("error", (name,))
    per_step, foretold, across = found.evidence[:3]
    assert per_step.measured == pytest.approx(0.25, rel=0.1)  # gain squared, where tanh is nearly linear
    assert foretold.expected == pytest.approx(per_step.measured, rel=0.2)
    assert across.measured == pytest.approx(per_step.measured**59, rel=1e-6)


def test_a_net_that_keeps_its_state_is_left_in_peace():
    torch.manual_seed(0)
    assert trimtab.diagnose(setup(Layer(16), 60, 1.0)).healthy


def test_short_sequences_are_left_in_peace():
    torch.manual_seed(0)
    assert "vanishing-gradient" not in trimtab.diagnose(setup(Layer(16), 12, 0.5))


def test_a_rate_that_moves_nothing_is_not_laid_at_the_steps_door():
    torch.manual_seed(0)
    assert "vanishing-gradient" not in trimtab.diagnose(setup(Layer(16), 60, 0.5, lr=1e-7))


def test_growth_along_time_is_an_explosion():
    torch.manual_seed(0)
    model = Layer(16)
    run = setup(model, 60, 1.6)
    nn.init.normal_(model.rnn.weight_ih_l0, std=1e-3)  # tanh stays linear
    nn.init.zeros_(model.rnn.bias_ih_l0)
    nn.init.zeros_(model.rnn.bias_hh_l0)
    x = 1e-9 * torch.randn(64, 60, 3, generator=seeded(1))
    run.batches = lambda: [(x, torch.randint(2, (64,), generator=seeded(2)))]
    run.optimizer = torch.optim.SGD(model.parameters(), 100.0)
    found = trimtab.diagnose(run)["exploding-gradient"]
    assert "rnn" in found.where
    assert any("per step back in time" in e.name for e in found.evidence)


def test_a_check_warns_before_a_step_is_taken():
    torch.manual_seed(0)
    found = trimtab.check(setup(Layer(16), 60, 0.5))["vanishing-gradient"]
    assert (found.severity, found.where) == ("warning", ("rnn",))


def test_an_lstm_is_told_to_open_its_forget_gates():
    torch.manual_seed(0)
    model = Layer(16, nn.LSTM)
    x = torch.randn(32, 60, 3, generator=seeded(1))
    y = torch.randint(2, (32,), generator=seeded(2))
    run = Setup(
        model,
        torch.optim.Adam(model.parameters(), 1e-2),
        lambda: [(x, y)],
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        steps=1,
    )
    (repair, _) = trimtab.check(run)["vanishing-gradient"].repairs
    exec(repair.code, {"model": model, "torch": torch})
    gates = model.rnn.bias_hh_l0.detach().chunk(4)
    assert gates[1].tolist() == pytest.approx([math.log(60)] * 16, abs=0.1)
    assert all(gate.abs().max() < 0.5 for gate in (gates[0], gates[2], gates[3]))
    assert "vanishing-gradient" not in trimtab.check(run)


def sites(name, kind, backward):
    return tuple(Site(name.format(t), kind, t, 1.0, 1.0, 1.1, b, b, 2.0) for t, b in enumerate(backward))


def test_layers_in_a_plain_list_are_no_time_steps():
    found = Prediction("net", sites("hidden[{}]", "Linear", [10.0**-t for t in range(9)]))
    assert time_flows(0, found) == []
    assert len(time_flows(0, Prediction("net", sites("rnn[{}]", "RNN", [10.0**-t for t in range(9)])))) == 1


def test_a_gradient_that_underflows_is_none_at_all():
    flow = TimeFlow(0, "rnn", (0.0, 0.0, 1e-40, 1e-20, 1.0), (math.nan,) * 5, 2.0)
    assert flow.log_total == -math.inf
    assert flow.per_step == pytest.approx(1e-20)
    assert math.isnan(flow.log_predicted)

"""Changes of what weights, biases and norms start at: what they do to the numbers, and whether their code does the same."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from trimtab import Setup
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, answers_to
from trimtab.repairs.patient import Patient
from trimtab.report import Finding


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


class Recall(nn.Module):
    def __init__(self, kind=nn.RNN, **settings):
        super().__init__()
        self.rnn, self.head = kind(3, 8, batch_first=True, **settings), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def plain(act=nn.ReLU):
    return nn.Sequential(nn.Linear(8, 16), act(), nn.Linear(16, 16), act(), nn.Linear(16, 4))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4, 4)
    )


def setup_of(model, shape=(8,), classes=4):
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(32, *shape, generator=generator), torch.randint(classes, (32,), generator=generator)
    return Setup(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda: [(x, y)],
        lambda m, batch: functional.cross_entropy(m(batch[0]), batch[1]),
        steps=4,
    )


def changed(kind, model, shape=(8,), **settings):
    setup = setup_of(model, shape)
    Change(kind, settings).apply(setup)
    assert sorted(map(id, setup.model.parameters())) == sorted(id(p) for p in setup.optimizer.param_groups[0]["params"])
    return setup.model


def by_code(kind, model, **settings):
    """A copy of the model that the described code was run on."""
    theirs = copy.deepcopy(model)
    exec(Change(kind, settings).describe().code, {"torch": torch, "model": theirs})
    return theirs


def assert_same(a, b):
    for (name, p), (other, q) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(p, q), name


def patient_of(make, shape=(8,)):
    def fresh():
        torch.manual_seed(0)
        return setup_of(make(), shape)

    return Patient(fresh)


def answers(code, where, make, shape=(8,)):
    finding = Finding(code, "error", where, "")
    families = ("initialization", "architecture")
    return [c for c in answers_to(finding, patient_of(make, shape)) if c.family.name in families]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("draw-weights", {"layers": ["0", "4"], "gain": 1.5}),
        ("draw-weights", {"layers": None, "gain": 0.3, "orthogonal": True}),
        ("scale-weights", {"layers": ["4"], "factor": 0.25}),
        ("set-biases", {"layers": ["0", "2"], "value": 0.5}),
    ],
)
def test_the_code_does_what_the_change_does(kind, settings):
    model = plain()
    torch.manual_seed(5)
    theirs = by_code(kind, model, **settings)
    torch.manual_seed(5)
    assert_same(changed(kind, model, **settings), theirs)


def test_drawn_weights_have_the_variance_of_their_gain_and_fan_in():
    wide = nn.Sequential(nn.Linear(200, 300), nn.Conv1d(20, 300, 5))
    changed("draw-weights", wide, layers=None, gain=math.sqrt(2))
    for layer, fan_in in ((wide[0], 200), (wide[1], 100)):
        assert layer.weight.var().item() == pytest.approx(
            2 / fan_in, rel=0.05
        )  # 3 standard errors of 30000 values: 0.025
        assert not layer.bias.any()


def test_orthogonal_weights_keep_lengths_times_the_gain():
    model = plain()
    changed("draw-weights", model, layers=["2"], gain=1.5, orthogonal=True)
    torch.testing.assert_close(model[2].weight @ model[2].weight.T, 2.25 * torch.eye(16), atol=1e-5, rtol=0)


def test_only_the_layers_that_are_named_change():
    model = plain()
    before = copy.deepcopy(model)
    changed("fit-weights", model, method="critical", layers=["2"])
    assert torch.equal(model[0].weight, before[0].weight)
    assert torch.equal(model[4].weight, before[4].weight)
    assert not torch.equal(model[2].weight, before[2].weight)
    assert all(p.requires_grad for p in model.parameters())


def test_frozen_and_tied_weights_stay():
    model = plain()
    model[0].weight.requires_grad_(False)
    model[2].weight = nn.Parameter(torch.ones(16, 16))
    model.append(nn.Linear(4, 16)).append(nn.Linear(16, 16))
    model[6].weight = model[2].weight
    kept = model[0].weight.clone()
    Change("draw-weights", {"layers": None, "gain": 1.0}).apply(setup_of(model, classes=16))
    assert torch.equal(model[0].weight, kept)
    assert torch.equal(model[2].weight, torch.ones(16, 16))
    assert not torch.equal(model[4].weight, torch.zeros(4, 16))


def test_critical_weights_keep_the_gradient_of_a_deep_net():
    deep = nn.Sequential(*[m for _ in range(12) for m in (nn.Linear(64, 64), nn.Tanh())], nn.Linear(64, 4))
    for p in deep.parameters():
        p.data.mul_(0.1)
    setup = setup_of(deep, (64,))
    Change("fit-weights", {"method": "critical"}).apply(setup)
    setup.compute_loss(next(iter(setup.batches()))).backward()
    first, last = deep[0].bias.grad.square().sum(), deep[22].bias.grad.square().sum()
    assert 0.2 < (first / last).item() < 5  # 0.01^12 before


def test_lsuv_gives_each_layer_unit_variance():
    model = plain()
    setup = setup_of(model)
    Change("fit-weights", {"method": "lsuv"}).apply(setup)
    assert model[0](next(iter(setup.batches()))[0]).var(correction=0).item() == pytest.approx(1, rel=0.02)


def test_a_model_that_the_loss_calls_in_parts_is_set_in_the_order_of_its_modules():
    model = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 4)})
    setup = setup_of(model)
    setup.loss = lambda m, batch: functional.cross_entropy(m["b"](m["a"](batch[0]).relu()), batch[1])
    before = model["b"].weight.clone()
    Change("fit-weights", {"method": "critical"}).apply(setup)
    assert not torch.equal(model["b"].weight, before)
    with pytest.raises(RepairError):
        Change("fit-weights", {"method": "lsuv"}).apply(setup)


@pytest.mark.parametrize("matrix", ["identity", "orthogonal"])
def test_recurrent_matrices_are_orthogonal_and_the_code_does_the_same(matrix):
    model = Recall(nn.LSTM)
    torch.manual_seed(3)
    theirs = by_code("draw-recurrent", model, layers=["rnn"], matrix=matrix, gain=0.5)
    torch.manual_seed(3)
    assert_same(changed("draw-recurrent", model, (6, 3), layers=["rnn"], matrix=matrix, gain=0.5), theirs)
    for gate in model.rnn.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, 0.25 * torch.eye(8))
    assert not model.rnn.bias_hh_l0.any()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_open_gates_keep_a_state(kind):
    """With a gate that is all but 1 the state stays what it was: at 20, sigmoid is 1 - 2e-9."""
    model = Recall(kind)
    theirs = by_code("open-gates", model, layers=["rnn"], value=20.0)
    assert_same(changed("open-gates", model, (6, 3), layers=["rnn"], value=20.0), theirs)
    state = torch.randn(1, 2, 8)
    if kind is nn.GRU:
        torch.testing.assert_close(model.rnn(torch.zeros(2, 1, 3), state)[1], state, atol=1e-6, rtol=0)
    else:
        with torch.no_grad():
            model.rnn.bias_hh_l0.chunk(4)[0].fill_(-20.0)  # and nothing comes in
        kept = model.rnn(torch.zeros(2, 1, 3), (torch.zeros(1, 2, 8), state))[1][1]
        torch.testing.assert_close(kept, state, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("draw-weights", {"layers": ["1"], "gain": 1.0}),  # a ReLU
        ("draw-weights", {"layers": ["9"], "gain": 1.0}),
        ("set-biases", {"layers": ["0"], "value": 0.0}),
        ("draw-recurrent", {"layers": ["0"], "matrix": "identity"}),
        ("open-gates", {"layers": ["0"], "value": 1.0}),
    ],
)
def test_what_is_not_there_cannot_be_changed(kind, settings):
    model = plain()
    nn.init.zeros_(model[0].bias)
    nn.init.ones_(model[0].weight)
    with pytest.raises(RepairError):
        Change(kind, settings).apply(setup_of(model))


def test_answers_begin_with_what_the_fault_needs():
    body = ("0", "2")
    assert answers("vanishing-gradient", body, plain)[0] == Change("fit-weights", {"method": "critical"})
    assert answers("exploding-gradient", body, plain)[0] == Change("fit-weights", {"method": "critical"})
    assert answers("saturated-units", body, lambda: plain(nn.Tanh))[0] == Change("fit-weights", {"method": "critical"})
    assert answers("dead-units", ("2", "3"), plain)[0] == Change("set-biases", {"layers": ["2"], "value": 0.0})
    first = answers("symmetric-init", body, plain)[0]
    assert (first.kind, first.settings["layers"]) == ("draw-weights", None)
    assert first.settings["gain"] == pytest.approx(math.sqrt(2), rel=1e-4)
    assert answers("loss-at-init-off", ("4", "loss"), plain)[0] == Change(
        "scale-weights", {"layers": ["4"], "factor": 0.0}
    )
    assert answers("loss-at-init-off", ("loss",), plain)[0] == Change("scale-weights", {"layers": ["4"], "factor": 0.0})


def test_the_gain_is_that_of_the_activation_wherever_it_is_written():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            return self.b(torch.tanh(self.a(x)))

    drawn = next(c for c in answers("saturated-units", ("a",), Functional) if c.kind == "draw-weights")
    assert drawn.settings["gain"] == pytest.approx(1.5925374, rel=1e-5)  # 1/sqrt(E tanh(z)^2), by quadrature


def test_a_recurrent_layer_is_answered_by_its_own_matrices():
    kinds = [c.kind for c in answers("vanishing-gradient", ("rnn",), Recall, (6, 3))]
    assert kinds == ["draw-recurrent", "draw-recurrent"]
    gates = answers("vanishing-gradient", ("rnn",), lambda: Recall(nn.LSTM), (6, 3))
    assert gates[0] == Change("open-gates", {"layers": ["rnn"], "value": 1.8})  # ln 6
    assert answers("exploding-gradient", ("rnn",), Recall, (6, 3))[0].settings["matrix"] == "orthogonal"


def test_residual_branches_are_answered_by_their_last_layers():
    make = lambda: nn.Sequential(*[Block() for _ in range(4)], nn.Linear(8, 4))  # noqa: E731
    found = answers("residual-growth", tuple("0123"), make)
    ends = ["0.b", "1.b", "2.b", "3.b"]
    assert Change("scale-weights", {"layers": ends, "factor": 0.5}) in found
    assert Change("scale-branches", {"layers": ends, "factor": 0.5}) in found
    assert Change("rezero", {"layers": ends}) in found


def test_every_kind_draws_settings_that_its_patient_takes():
    import random

    from trimtab.repairs.families import FAMILIES

    patients = [patient_of(plain), patient_of(lambda: Recall(nn.LSTM), (6, 3)), patient_of(convolutions, (1, 4, 4))]
    family = next(f for f in FAMILIES if f.name == "initialization")
    for name, kind in family.kinds.items():
        rng = random.Random(0)
        draws = [
            (patient, settings)
            for patient in patients
            for _ in range(3)
            if (settings := kind.sample(patient, rng)) is not None
        ]
        taken = [patient.takes(Change(name, dict(settings))) for patient, settings in draws]
        assert any(taken), name

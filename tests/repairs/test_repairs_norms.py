"""Changes of normalizations: what stands in the model, in the optimizer and in the running statistics afterwards."""

import copy
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import trimtab
from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.norms import ChannelLayerNorm
from trimtab.repairs.change import Change, answers_to
from trimtab.repairs.families import modes, norm_insertion, norm_kind, norm_numbers, norm_precision
from trimtab.repairs.patient import Patient
from trimtab.repairs.search import MOST
from trimtab.report import Finding


def dense(norm=nn.BatchNorm1d):
    return nn.Sequential(nn.Linear(5, 8), norm(8), nn.ReLU(), nn.Linear(8, 8), norm(8), nn.ReLU(), nn.Linear(8, 3))


def data(rows=64):
    generator = torch.Generator().manual_seed(2)
    return 3 * torch.randn(rows, 5, generator=generator) + 1, torch.randint(3, (rows,), generator=generator)


def setup_of(model, x=None, size=16, step=None, loss=None):
    x, y = data() if x is None else (x, torch.arange(len(x)) % 3)

    def batches():
        for i in range(0, len(x), size):
            yield x[i : i + size], y[i : i + size]

    return Setup(
        model,
        torch.optim.SGD(model.parameters(), lr=0.05),
        batches,
        loss or (lambda m, b: F.cross_entropy(m(b[0]), b[1])),
        steps=8,
        step=step,
    )


def held_by(setup):
    return [id(p) for o in setup.optimizers for g in o.param_groups for p in g["params"]]


def trained_once(setup):
    """Every trainable parameter is in the optimizer, once."""
    held = held_by(setup)
    return len(set(held)) == len(held) and set(held) == {id(p) for p in setup.model.parameters() if p.requires_grad}


def code_of(change, model, **scope):
    scope |= {"torch": torch, "trimtab": trimtab, "model": model}
    exec(change.describe().code, scope)
    return scope["model"]


def finding(code, *where):
    return Finding(code, "error", where, "")


def first_answers(code, make, *where, count=1):
    stream = answers_to(finding(code, *where), Patient(make))
    return [next(stream) for _ in range(count)]


# Kinds -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "kind"), [("layer_norm", "ChannelLayerNorm"), ("group_norm", "GroupNorm"), ("batch_renorm", "BatchRenorm1d")]
)
def test_converted_norms_carry_their_gains_and_stand_in_the_optimizer(to, kind):
    setup = setup_of(dense())
    nn.init.constant_(setup.model[4].weight, 0.5)
    change = Change("convert-norms", {"to": to, "layers": ["4"]})
    change.apply(setup)
    assert type(setup.model[4]).__name__ == kind
    assert isinstance(setup.model[1], nn.BatchNorm1d)
    assert torch.equal(setup.model[4].weight, torch.full((8,), 0.5))
    assert trained_once(setup)
    told = code_of(change, dense())
    assert type(told[4]).__name__ == kind
    assert isinstance(told[1], nn.BatchNorm1d)


def test_a_converted_net_treats_each_sample_by_itself():
    setup = setup_of(dense())
    Change("convert-norms", {"to": "layer_norm"}).apply(setup)
    x, _ = data()
    torch.testing.assert_close(setup.model(x)[:2], setup.model(x[:2]))
    assert all(isinstance(setup.model[i], (nn.LayerNorm, ChannelLayerNorm)) for i in (1, 4))


def test_a_shared_norm_stays_shared():
    norm = nn.BatchNorm1d(8)
    setup = setup_of(nn.Sequential(nn.Linear(5, 8), norm, nn.Linear(8, 8), norm, nn.Linear(8, 3)))
    Change("convert-norms", {"to": "layer_norm"}).apply(setup)
    assert setup.model[1] is setup.model[3]
    assert trained_once(setup)


def test_frozen_norms_stay_out_of_the_optimizer():
    model = dense()
    for p in model[1].parameters():
        p.requires_grad_(False)
    setup = setup_of(model)
    setup.optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    Change("convert-norms", {"to": "layer_norm"}).apply(setup)
    assert not setup.model[1].weight.requires_grad
    assert trained_once(setup)


def test_group_norm_with_fewer_groups_is_the_functional_one():
    setup = setup_of(dense(lambda c: nn.GroupNorm(8, c)))
    change = Change("fewer-groups", {"groups": 2, "layers": ["1"]})
    change.apply(setup)
    x = torch.randn(4, 8)
    torch.testing.assert_close(setup.model[1](x), F.group_norm(x, 2))
    assert setup.model[4].num_groups == 8
    assert code_of(change, dense(lambda c: nn.GroupNorm(8, c)))[1].num_groups == 2


def test_dropped_norms_leave_the_optimizer():
    setup = setup_of(dense())
    change = Change("drop-norms", {"layers": ["1"]})
    change.apply(setup)
    assert isinstance(setup.model[1], nn.Identity)
    assert trained_once(setup)
    assert isinstance(code_of(change, dense())[1], nn.Identity)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "batch_norm"])
def test_an_inserted_norm_follows_its_layer_and_is_trained(kind):
    plain = nn.Sequential(nn.Linear(5, 8), nn.Sigmoid(), nn.Linear(8, 3))
    setup = setup_of(plain)
    weight = plain[0].weight
    change = Change("insert-norms", {"kind": kind, "layers": ["0"]})
    change.apply(setup)
    layer, norm = setup.model[0]
    assert layer.weight is weight
    assert trained_once(setup)
    x, _ = data()
    z = layer(x)
    exact = {
        "layer_norm": lambda: F.layer_norm(z, (8,)),
        "rms_norm": lambda: F.rms_norm(z, (8,)),
        "batch_norm": lambda: F.batch_norm(z, None, None, training=True),
    }[kind]()
    torch.testing.assert_close(setup.model[0](x), exact)
    torch.manual_seed(0)
    told = code_of(change, nn.Sequential(nn.Linear(5, 8), nn.Sigmoid(), nn.Linear(8, 3)))
    assert type(told[0][1]) is type(norm)


def test_a_convolution_is_followed_by_groups_of_channels():
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3))
    setup = setup_of(model, x=torch.randn(16, 1, 5, 5), size=8)
    stops = norm_insertion.bare_layers(Patient(lambda: setup))
    assert [stop.name for stop in stops] == ["0"]
    change = Change("insert-norms", {"kind": "group_norm", "layers": ["0"]})
    change.apply(setup)
    assert (setup.model[0][1].num_groups, setup.model[0][1].num_channels) == (2, 8)
    told = code_of(change, nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 3)))
    assert told[0][1].num_groups == 2


def test_nothing_to_convert_drop_or_regroup():
    plain = lambda: setup_of(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)))  # noqa: E731
    for kind, settings in (
        ("convert-norms", {"to": "layer_norm"}),
        ("convert-norms", {"to": "batch_renorm"}),
        ("drop-norms", {"layers": []}),
        ("insert-norms", {"kind": "layer_norm", "layers": []}),
        ("fewer-groups", {"groups": 1, "layers": ["0"]}),
        ("set-momentum", {"momentum": 0.1}),
        ("set-eps", {"eps": 0.1, "layers": ["0"]}),
        ("set-gains", {"gain": 1.0}),
        ("in-single-precision", {"layers": ["0"]}),
        ("recalibrate", {}),
        ("train-mode", {}),
        ("dropout-off", {"layers": ["1"]}),
    ):
        with pytest.raises(RepairError):
            Change(kind, settings).apply(plain())


# Numbers ---------------------------------------------------------------------------------------------------------------


def test_momentum_eps_and_gains_are_set_where_asked():
    setup = setup_of(dense())
    changes = [
        Change("set-momentum", {"momentum": 0.01, "layers": ["1"]}),
        Change("set-eps", {"eps": 1e-3, "layers": ["4"]}),
        Change("set-gains", {"gain": 0.5, "layers": ["4"]}),
    ]
    for change in changes:
        change.apply(setup)
        with pytest.raises(RepairError):
            change.apply(setup)
    told = dense()
    for change in changes:
        code_of(change, told)
    for model in (setup.model, told):
        assert [model[i].momentum for i in (1, 4)] == [0.01, 0.1]
        assert [model[i].eps for i in (1, 4)] == [1e-5, 1e-3]
        assert [model[i].weight[0].item() for i in (1, 4)] == [1.0, 0.5]
    assert trained_once(setup)


def test_momentum_and_gains_of_all():
    setup, told = setup_of(dense()), dense()
    for change in (Change("set-momentum", {"momentum": None}), Change("set-gains", {"gain": 2.0})):
        change.apply(setup)
        code_of(change, told)
    for model in (setup.model, told):
        assert [model[i].momentum for i in (1, 4)] == [None, None]
        assert [model[i].weight[0].item() for i in (1, 4)] == [2.0, 2.0]


class HalfNorm(nn.Module):
    """A layer norm written by hand, in half precision."""

    def __init__(self, width, eps=1e-12, root=False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        if not root:
            self.bias = nn.Parameter(torch.zeros(width))
        self.root, self.eps = root, eps

    def forward(self, x):
        x = x.half()
        x = x if self.root else x - x.mean(-1, keepdim=True)
        y = (x / ((x * x).mean(-1, keepdim=True) + self.eps).sqrt()).float() * self.weight
        return y if self.root else y + self.bias


@pytest.mark.parametrize("root", [False, True])
def test_a_norm_written_by_hand_becomes_the_one_it_is(root):
    setup = setup_of(dense(lambda c: HalfNorm(c, root=root)))
    before = setup.model[1].weight
    Change("in-single-precision", {"layers": ["1"]}).apply(setup)
    norm = setup.model[1]
    assert type(norm) is (nn.RMSNorm if root else nn.LayerNorm)
    assert norm.weight is before
    assert trained_once(setup)
    x = 1000 * torch.randn(4, 8)  # squares that half precision does not hold
    exact = F.rms_norm(x, (8,)) if root else F.layer_norm(x, (8,))
    torch.testing.assert_close(norm(x), exact)
    assert not torch.allclose(HalfNorm(8, root=root)(x), exact, atol=0.1)
    assert norm(x.half()).dtype == torch.float16


def test_what_is_no_norm_is_not_taken_for_one():
    class Odd(HalfNorm):
        def forward(self, x):
            return x.abs() * self.weight

    setup = setup_of(dense(Odd))
    with pytest.raises(RepairError, match="neither"):
        Change("in-single-precision", {"layers": ["1"]}).apply(setup)


def test_recalibrated_statistics_are_those_of_the_data_at_the_first_evaluation():
    setup = setup_of(dense(lambda c: nn.BatchNorm1d(c, momentum=0.001)))
    stale = copy.deepcopy(setup)
    Change("recalibrate").apply(setup)
    for run in (setup, stale):
        for _ in run.train(4):
            pass
    assert torch.equal(setup.model[1].running_mean, stale.model[1].running_mean)  # training is what it was
    x, _ = data()
    setup.model.eval()(x)
    z = setup.model[0](x).detach()
    torch.testing.assert_close(setup.model[1].running_mean, z.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(setup.model[1].running_var, z.var(0), rtol=1e-5, atol=1e-5)
    again = setup.model(x)
    twin = copy.deepcopy(setup.model)
    torch.testing.assert_close(twin(x), again)


def test_recalibration_is_told_as_the_call_that_does_it():
    import itertools

    setup = setup_of(dense())
    code = Change("recalibrate", {"batches": 4}).describe().code
    list(setup.train(2))
    exec(
        code, {"trimtab": trimtab, "itertools": itertools, "model": setup.model, "train_loader": list(setup.batches())}
    )
    z = setup.model[0](data()[0]).detach()
    torch.testing.assert_close(setup.model[1].running_mean, z.mean(0), rtol=1e-5, atol=1e-5)


# Modes -----------------------------------------------------------------------------------------------------------------


def forgetful(setup, batch):
    """A step that leaves evaluation mode on."""
    setup.optimizer.zero_grad()
    loss = setup.loss(setup.model, batch)
    loss.backward()
    setup.optimizer.step()
    setup.model.eval()
    with torch.no_grad():
        setup.loss(setup.model, batch)
    forgetful.modes.append(setup.model.training)
    return loss


def test_each_step_begins_in_training_mode_and_its_validation_stays_one():
    forgetful.modes = []
    seen = []
    setup = setup_of(dense(), step=forgetful)
    Change("train-mode").apply(setup)
    setup.model[1].register_forward_pre_hook(lambda m, args: seen.append(m.training))
    list(setup.train(3))
    assert seen == [True, False] * 3
    assert forgetful.modes == [False] * 3


def test_a_step_that_validates_first_trains_in_training_mode_too():
    seen = []

    def step(setup, batch):
        setup.model.eval()
        with torch.no_grad():
            setup.loss(setup.model, batch)
        setup.optimizer.zero_grad()
        loss = setup.loss(setup.model, batch)
        loss.backward()
        setup.optimizer.step()
        return loss

    setup = setup_of(dense(), step=step)
    Change("train-mode").apply(setup)
    setup.model[1].register_forward_pre_hook(lambda m, args: seen.append(m.training))
    list(setup.train(2))
    assert seen == [False, True] * 2
    setup.model.eval()(data()[0])
    assert seen[-1] is False


def test_the_plain_step_is_the_same_step():
    plain, changed = setup_of(dense()), None
    changed = copy.deepcopy(plain)
    Change("train-mode").apply(changed)
    assert [a.item() for a in plain.train(4)] == [b.item() for b in changed.train(4)]


def dropped(last=0.0):
    return nn.Sequential(
        nn.Dropout(0.2),
        nn.Linear(5, 8),
        nn.Dropout(0.4),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Dropout(last),
        nn.Linear(8, 3),
    )


def test_dropout_moves_behind_the_last_norm():
    setup = setup_of(dropped())
    head = setup.model[6]
    change = Change("dropout-behind", {"layers": ["0", "2"]})
    change.apply(setup)
    assert [setup.model[i].p for i in (0, 2)] == [0.0, 0.0]
    assert setup.model[6][0].p == 0.4
    assert setup.model[6][1] is head
    assert trained_once(setup)
    assert [type(m) for m in code_of(change, dropped())[6]] == [nn.Dropout, nn.Linear]

    setup = setup_of(dropped(0.3))
    change.apply(setup)
    assert setup.model[5].p == 0.3
    assert isinstance(setup.model[6], nn.Linear)


def test_dropout_off():
    setup = setup_of(dropped(0.3))
    change = Change("dropout-off", {"layers": ["0", "2"]})
    change.apply(setup)
    for model in (setup.model, code_of(change, dropped(0.3))):
        assert [m.p for m in model if isinstance(m, nn.Dropout)] == [0.0, 0.0, 0.3]


# Answers ---------------------------------------------------------------------------------------------------------------


def test_small_batches_are_answered_by_norms_of_one_sample():
    def make():
        return setup_of(dense(), size=2)

    (change,) = first_answers("small-batch-batchnorm", make, "1", "4")
    assert change == Change("convert-norms", {"to": "layer_norm"})

    def pictures():
        model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3))
        return setup_of(model, x=torch.randn(8, 1, 5, 5), size=2)

    assert first_answers("small-batch-batchnorm", pictures, "1")[0].settings["to"] == "group_norm"


@pytest.mark.parametrize(("momentum", "first"), [(0.99, 0.01), (0.001, 0.1), (0.0, 0.1)])
def test_momentum_is_answered_by_the_usual_or_the_other_convention(momentum, first):
    code = "train-eval-gap" if momentum > 0.5 else "stale-running-stats"
    change = first_answers(code, lambda: setup_of(dense(lambda c: nn.BatchNorm1d(c, momentum=momentum))), "1")[0]
    assert change == Change("set-momentum", {"momentum": first})


def test_a_mode_left_behind_is_answered_by_the_mode():
    assert first_answers("stale-running-stats", lambda: setup_of(dense()), "loop", "1")[0].kind == "train-mode"


def test_dropout_before_a_norm_is_answered_by_moving_it():
    change = first_answers("train-eval-gap", lambda: setup_of(dropped()), "3")[0]
    assert change == Change("dropout-behind", {"layers": ["0", "2"]})


@pytest.mark.parametrize(
    ("norm", "first"),
    [
        (lambda c: nn.GroupNorm(c, c), Change("fewer-groups", {"groups": 1, "layers": ["1"]})),
        (lambda c: nn.LayerNorm(8), Change("drop-norms", {"layers": ["1"]})),
    ],
)
def test_a_norm_of_one_value_is_answered_by_fewer_groups_or_none(norm, first):
    assert first_answers("degenerate-normalization", lambda: setup_of(dense(norm)), "1")[0] == first


def test_precision_is_answered_by_what_half_holds_and_a_heavy_eps_by_the_variance():
    (change,) = first_answers("norm-precision", lambda: setup_of(dense(HalfNorm)), "1")
    assert change == Change("set-eps", {"eps": 1e-3, "layers": ["1"]})

    def weak():
        model = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8, eps=1e3), nn.ReLU(), nn.Linear(8, 3))
        return setup_of(model)

    (change,) = first_answers("norm-precision", weak, "1")
    model = weak().model
    z = model[0](data()[0][:16])
    assert change.settings["eps"] < z.var(-1, correction=0).mean().item() / 90


def test_zero_gains_are_answered_by_gains_of_one():
    def make():
        setup = setup_of(dense())
        nn.init.zeros_(setup.model[4].weight)
        return setup

    found = list(answers_to(finding("signal-collapse", "4"), Patient(make)))
    assert Change("set-gains", {"gain": 1.0, "layers": ["4"]}) in found[:MOST]


def test_a_deep_plain_net_is_answered_by_norms_behind_its_layers():
    def make():
        layers = [m for _ in range(4) for m in (nn.Linear(5, 5), nn.Sigmoid())]
        return setup_of(nn.Sequential(*layers, nn.Linear(5, 3)))

    changes = [c for c in answers_to(finding("vanishing-gradient", "0"), Patient(make)) if c.kind == "insert-norms"]
    assert [c.settings["kind"] for c in changes] == ["batch_norm", "layer_norm"]
    assert changes[0].settings["layers"] == ["0", "2", "4", "6"]


def test_draws_of_norms_can_be_made_or_say_why_not():
    patient = Patient(lambda: setup_of(dropped()))
    for family in (norm_kind, norm_insertion, norm_numbers, norm_precision, modes):
        for name, kind in family.KINDS.items():
            drawn = [s for seed in range(5) if (s := kind.sample(patient, random.Random(seed))) is not None]
            assert bool(drawn) == (name != "fewer-groups")
            assert not drawn or any(patient.takes(Change(name, s)) for s in drawn)

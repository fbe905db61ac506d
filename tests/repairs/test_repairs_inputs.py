"""Changes of what a model is fed with: values against closed forms, in either mode, held by the model."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, answers_to
from trimtab.repairs.families import inputs
from trimtab.repairs.feeding import ports
from trimtab.repairs.patient import Patient
from trimtab.report import Finding


class Recorded(nn.Module):
    """A linear map that keeps what it is given."""

    def __init__(self, features=4):
        super().__init__()
        self.linear = nn.Linear(features, 1)

    def forward(self, x):
        self.seen = x
        return self.linear(x)


def table(rows=96):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 4, generator=generator) * torch.tensor([1.0, 3e4, 0.2, 5.0]) + torch.tensor([
        0.0,
        1e5,
        7.0,
        -2.0,
    ])
    x[:, 3] += 4 * x[:, 0]
    return x


def setup_of(model, x, size=24, loss=None):
    y = torch.randn(len(x), 1, generator=torch.Generator().manual_seed(4))

    def batches():
        for i in range(0, len(x), size):
            yield x[i : i + size], y[i : i + size]

    return Setup(
        model,
        torch.optim.SGD(model.parameters(), lr=0.01),
        batches,
        loss or (lambda m, b: F.mse_loss(m(b[0]), b[1])),
        steps=8,
    )


@pytest.fixture
def run():
    return setup_of(Recorded(), table())


def fed_by(setup, x):
    with torch.no_grad():
        setup.model(x)
    return setup.model.seen


def code_of(change, x, model):
    """The model after the code that the change is told by."""
    exec(change.describe().code, {"torch": torch, "x_train": x, "model": model})
    return model


def test_standardized_inputs_have_the_closed_forms_mean_and_spread_in_both_modes(run):
    change = Change("standardize-inputs", {"index": 0})
    change.apply(run)
    x = table()
    exact = ((x.double() - x.double().mean(0)) / x.double().std(0, correction=0)).float()
    for mode in (True, False):
        run.model.train(mode)
        torch.testing.assert_close(fed_by(run, x), exact, rtol=1e-5, atol=1e-6)
    told = code_of(change, x, Recorded())
    told(x)
    torch.testing.assert_close(told.seen, exact, rtol=1e-3, atol=1e-3)  # single precision, with a mean 3 spreads away


def test_the_model_holds_its_statistics_and_copies_of_it_do_too(run):
    Change("standardize-inputs").apply(run)
    assert {"standardize_mean", "standardize_std"} < set(run.model.state_dict())
    twin = copy.deepcopy(run.model)
    twin.standardize_mean.zero_()
    twin(table()), run.model(table())
    assert not torch.equal(twin.seen, run.model.seen)
    assert [p.shape for p in run.model.parameters()] == [(1, 4), (1,)]


def test_a_sequential_model_stays_the_same_sequence():
    setup = setup_of(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)), table())
    before = [name for name, _ in setup.model.named_modules()]
    plain = copy.deepcopy(setup.model)
    Change("standardize-inputs").apply(setup)
    assert [name for name, _ in setup.model.named_modules()] == before
    x = table()
    z = ((x.double() - x.double().mean(0)) / x.double().std(0, correction=0)).float()
    torch.testing.assert_close(setup.model(x), plain(z), rtol=1e-4, atol=1e-5)


def test_pictures_are_standardized_by_channel():
    x = (
        torch.randn(12, 2, 5, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([40.0, 0.5]).view(2, 1, 1)
        + 90
    )
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(27, 1))
    setup = setup_of(model, x, size=6)
    heard = []
    Change("standardize-inputs").apply(setup)
    model[0].register_forward_pre_hook(lambda module, args: heard.append(args[0]))
    model(x)
    axes = (0, 2, 3)
    np.testing.assert_allclose(heard[0].mean(axes).detach(), 0, atol=1e-4)
    np.testing.assert_allclose(heard[0].std(axes, correction=0).detach(), 1, rtol=1e-4)


def test_a_sequence_has_its_features_last_before_a_recurrent_layer_and_second_before_a_convolution():
    x = torch.randn(8, 6, 6)
    for first, axis in ((nn.Conv1d(6, 2, 1), 1), (nn.LSTM(6, 2, batch_first=True), 2)):
        model = nn.Module()
        model.first = first
        model.forward = lambda x, first=first: first(x)[0].mean() if isinstance(first, nn.LSTM) else first(x).mean()
        setup = setup_of(model, x, size=4, loss=lambda m, b: m(b[0]))
        assert ports(setup)[0].axis == axis


def test_whitened_inputs_have_the_identity_for_covariance(run):
    change = Change("whiten-inputs", {"index": 0, "floor": 1e-8})
    change.apply(run)
    z = fed_by(run, table()).double()
    torch.testing.assert_close(z.T @ z / len(z), torch.eye(4).double(), rtol=0, atol=1e-4)
    torch.testing.assert_close(z.mean(0), torch.zeros(4).double(), rtol=0, atol=1e-4)
    told = code_of(change, table(), Recorded())
    told(table())
    torch.testing.assert_close(told.seen.abs(), z.float().abs(), rtol=1e-3, atol=1e-3)  # eigenvectors have no sign


def test_the_floor_keeps_a_direction_of_rounding_small():
    x = torch.randn(64, 3)
    x = torch.cat([x, x[:, :1] + 1e-6 * torch.randn(64, 1)], 1)
    setup = setup_of(Recorded(), x)
    Change("whiten-inputs", {"floor": 1e-4}).apply(setup)
    z = fed_by(setup, x).double()
    least = torch.linalg.eigvalsh(z.T @ z / len(z))
    assert float(least[0]) < 1e-6
    torch.testing.assert_close(least[1:], torch.ones(3).double(), rtol=0, atol=1e-3)


def test_missing_cells_get_the_mean_of_their_column_and_nothing_else_moves():
    x = table()
    x[3, 1], x[40, 2], x[41, 2] = torch.nan, torch.inf, -torch.inf
    setup = setup_of(Recorded(), x)
    change = Change("missing-values", {"how": "mean"})
    change.apply(setup)
    got, fine = fed_by(setup, x), x.isfinite()
    assert torch.equal(got[fine], x[fine])
    for row, column in ((3, 1), (40, 2), (41, 2)):
        kept = x[:, column][x[:, column].isfinite()].double().mean()
        assert got[row, column].item() == pytest.approx(kept.item(), rel=1e-5)
    told = code_of(change, x, Recorded())
    told(x)
    torch.testing.assert_close(told.seen, got, rtol=1e-5, atol=1e-6)


def test_missing_cells_can_be_zero():
    x = table()
    x[3, 1] = torch.nan
    setup = setup_of(Recorded(), x)
    change = Change("missing-values", {"how": "zero"})
    change.apply(setup)
    told = code_of(change, x, Recorded())
    told(x)
    for got in (fed_by(setup, x), told.seen):
        assert torch.equal(got, x.nan_to_num(0.0))


def test_samples_with_holes_are_left_out_of_training_only():
    x = table()
    x[3, 1] = torch.nan
    setup = setup_of(Recorded(), x)
    Change("missing-values", {"how": "drop"}).apply(setup)
    sizes = [len(batch[0]) for batch in setup.batches()]
    assert sizes == [23, 24, 24, 24]
    assert all(len(a) == len(b) and a.isfinite().all() for a, b in setup.batches())


def test_scale_and_clip_are_what_they_say(run):
    Change("scale-inputs", {"factor": 0.5}).apply(run)
    torch.testing.assert_close(fed_by(run, table()), 0.5 * table())
    other = setup_of(Recorded(), table())
    Change("clip-inputs", {"spreads": 1.0}).apply(other)
    x = table().double()
    low, high = x.mean(0) - x.std(0, correction=0), x.mean(0) + x.std(0, correction=0)
    torch.testing.assert_close(fed_by(other, table()), x.clamp(low, high).float(), rtol=1e-5, atol=1e-5)
    for change in (Change("scale-inputs", {"factor": 0.5}), Change("clip-inputs", {"spreads": 1.0})):
        told = code_of(change, table(), Recorded())
        told(table())
        assert told.seen.abs().max() < table().abs().max()


def test_two_changes_of_one_input_follow_each_other(run):
    Change("missing-values", {"how": "mean"}).apply(run)
    Change("standardize-inputs").apply(run)
    Change("standardize-inputs").apply(run)
    torch.testing.assert_close(fed_by(run, table()).std(0, correction=0), torch.ones(4), rtol=1e-4, atol=0)
    assert "standardize_2_mean" in run.model.state_dict()


def test_applying_leaves_weights_random_state_and_batches(run):
    before, state = copy.deepcopy(run.model.state_dict()), torch.get_rng_state()
    first = next(iter(run.batches()))
    Change("whiten-inputs").apply(run)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(run.model.state_dict()[name], value) for name, value in before.items())
    assert torch.equal(next(iter(run.batches()))[0], first[0])


def test_tokens_are_no_input_to_be_standardized():
    tokens = torch.arange(24).view(12, 2)
    model = nn.Sequential(nn.Embedding(24, 3), nn.Flatten(), nn.Linear(6, 1))
    setup = setup_of(model, tokens, size=6)
    for kind, settings in (("standardize-inputs", {}), ("whiten-inputs", {}), ("missing-values", {"how": "zero"})):
        with pytest.raises(RepairError, match="floating"):
            Change(kind, settings).apply(setup)
    with pytest.raises(RepairError, match="finite"):
        Change("missing-values", {"how": "drop"}).apply(setup)


def test_only_a_table_is_whitened():
    setup = setup_of(nn.Sequential(nn.Conv1d(3, 2, 2), nn.Flatten(), nn.Linear(8, 1)), torch.randn(12, 3, 5), size=6)
    with pytest.raises(RepairError, match="table"):
        Change("whiten-inputs").apply(setup)


@pytest.mark.parametrize(
    ("code", "first"),
    [
        ("unscaled-inputs", "standardize-inputs"),
        ("ill-conditioned", "whiten-inputs"),
        ("nonfinite-data", "missing-values"),
        ("nonfinite-loss", "missing-values"),
    ],
)
def test_the_first_answer(code, first):
    def make():
        x = table()
        x[3, 1] = torch.nan
        return setup_of(Recorded(), x)

    finding = Finding(code, "error", ("data",), "")
    assert next(answers_to(finding, Patient(make))).kind == first


def test_a_loss_that_breaks_on_finite_data_is_not_answered_here():
    patient = Patient(lambda: setup_of(Recorded(), table()))
    assert list(inputs.ANSWERS["nonfinite-loss"](Finding("nonfinite-loss", "error", ("loss",), ""), patient)) == []


def test_draws_apply_and_differ():
    patient = Patient(lambda: setup_of(Recorded(), table()))
    for name, kind in inputs.KINDS.items():
        drawn = [kind.sample(patient, random.Random(seed)) for seed in range(6)]
        if name == "missing-values":
            assert drawn == [None] * 6  # there is nothing to fill
            continue
        assert all(patient.takes(Change(name, settings)) for settings in drawn)
        assert name == "standardize-inputs" or len({str(d) for d in drawn}) > 3

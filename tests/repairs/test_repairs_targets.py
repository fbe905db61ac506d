"""Changes of what answers are compared with, and of the order of samples."""

import copy
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, answers_to
from trimtab.repairs.families import sample_order, targets
from trimtab.repairs.feeding import compared
from trimtab.repairs.patient import Patient
from trimtab.report import Finding


def data(rows=60, outputs=1):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(rows, 3, generator=generator)
    y = 1e4 * torch.randn(rows, outputs, generator=generator) + 2e5
    return x, y


def setup_of(x, y, size=20, loss=None, outputs=1):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, outputs))

    def batches():
        for i in range(0, len(x), size):
            yield {"y": y[i : i + size], "x": x[i : i + size]}

    loss = loss or (lambda m, b: F.mse_loss(m(b["x"]), b["y"]))
    return Setup(model, torch.optim.SGD(model.parameters(), lr=0.01), batches, loss, steps=6)


def test_the_target_is_what_the_model_is_not_given():
    x, y = data()
    found = compared(setup_of(x, y, loss=lambda m, b: F.mse_loss(m(b["x"] * 1.0), b["y"])))
    assert found.entry == 0
    torch.testing.assert_close(found.target, y[:20])


def test_an_autoencoder_has_no_target_of_its_own():
    x, _ = data()
    setup = setup_of(x, x, loss=lambda m, b: F.mse_loss(m(b["x"]), b["x"][:, :1]))
    with pytest.raises(RepairError, match="no floating-point target"):
        Change("standardize-targets").apply(setup)


def test_training_sees_standardized_targets_and_evaluation_the_old_units():
    x, y = data()
    setup = setup_of(x, y)
    plain = copy.deepcopy(setup.model)
    change = Change("standardize-targets")
    change.apply(setup)
    seen = torch.cat([batch["y"] for batch in setup.batches()])
    exact = (y.double() - y.double().mean()) / y.double().std(correction=0)
    torch.testing.assert_close(seen, exact.float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(torch.cat([batch["x"] for batch in setup.batches()]), x)
    assert torch.equal(setup.model(x), plain(x))
    setup.model.eval()
    torch.testing.assert_close(setup.model(x), plain(x) * y.std(correction=0) + y.mean(), rtol=1e-5, atol=1e-2)

    told, scope = copy.deepcopy(plain), {"torch": torch, "y_train": y}
    exec(change.describe().code, {**scope, "model": told})
    assert torch.equal(told(x), plain(x))
    torch.testing.assert_close(told.eval()(x), setup.model(x), rtol=1e-5, atol=1e-2)


def test_each_column_of_a_table_of_targets_has_its_own_scale():
    x, y = data(outputs=2)
    y[:, 1] = y[:, 1] * 1e-6
    setup = setup_of(x, y, outputs=2)
    Change("standardize-targets").apply(setup)
    seen = torch.cat([batch["y"] for batch in setup.batches()])
    torch.testing.assert_close(seen.std(0, correction=0), torch.ones(2), rtol=1e-4, atol=0)
    assert setup.model.target_std.shape == (2,)


def test_targets_times_a_number_and_stretched_answers():
    x, y = data()
    setup = setup_of(x, y)
    plain = copy.deepcopy(setup.model)
    Change("scale-targets", {"factor": 1e-5}).apply(setup)
    torch.testing.assert_close(next(iter(setup.batches()))["y"], 1e-5 * y[:20])
    torch.testing.assert_close(setup.model.eval()(x), plain(x) * 1e5)

    other = setup_of(x, y)
    change = Change("scale-outputs")
    change.apply(other)
    told = copy.deepcopy(plain)
    exec(change.describe().code, {"torch": torch, "y_train": y, "model": told})
    for mode in (True, False):
        torch.testing.assert_close(other.model.train(mode)(x), plain(x) * y.std(correction=0) + y.mean())
        torch.testing.assert_close(told.train(mode)(x), other.model(x))


@pytest.mark.parametrize("flat_target", [True, False])
def test_a_broadcast_loss_becomes_that_of_pairs(flat_target):
    x, y = data()
    y = (y - y.mean()) / y.std()
    stray = (
        (lambda m, b: ((m(b["x"]) - b["y"]) ** 2).mean())
        if flat_target
        else (lambda m, b: ((m(b["x"])[:, 0] - b["y"]) ** 2).mean())
    )
    for what in ("targets", "answers"):
        setup = setup_of(x, y.squeeze(1) if flat_target else y, loss=stray)
        if not flat_target:  # the model's own answers are (N, 1) as the targets are: only the loss knows better
            with pytest.raises(RepairError, match="same shape"):
                Change("match-shapes", {"change": what}).apply(setup)
            continue
        pairs = F.mse_loss(setup.model(x[:20]), y[:20])
        Change("match-shapes", {"change": what}).apply(setup)
        batch = next(iter(setup.batches()))
        torch.testing.assert_close(setup.loss(setup.model, batch), pairs)


def test_answers_keep_their_shape_in_evaluation():
    x, y = data()
    setup = setup_of(x, y.squeeze(1), loss=lambda m, b: ((m(b["x"]) - b["y"]) ** 2).mean())
    Change("match-shapes", {"change": "answers"}).apply(setup)
    assert setup.model(x).shape == (60,)
    assert setup.model.eval()(x).shape == (60, 1)


def test_shapes_that_fit_are_left_alone():
    setup = setup_of(*data())
    for what in ("targets", "answers"):
        with pytest.raises(RepairError, match="same shape"):
            Change("match-shapes", {"change": what}).apply(setup)


@pytest.mark.parametrize(
    ("code", "first"), [("unscaled-targets", "standardize-targets"), ("broadcast-loss", "match-shapes")]
)
def test_the_first_answer(code, first):
    x, y = data()
    stray = {"loss": lambda m, b: ((m(b["x"]) - b["y"]) ** 2).mean()}
    patient = Patient(lambda: setup_of(x, y.squeeze(1), **stray))
    assert next(answers_to(Finding(code, "error", ("data",), ""), patient)).kind == first


def test_draws_of_targets_apply():
    patient = Patient(lambda: setup_of(*data()))
    for name, kind in targets.KINDS.items():
        settings = kind.sample(patient, random.Random(1))
        assert (settings is None) == (name == "match-shapes")
        assert settings is None or patient.takes(Change(name, settings))


# Order of samples ------------------------------------------------------------------------------------------------------


def by_class(size=16):
    x = torch.arange(100.0).view(100, 1).repeat(1, 3)
    y = torch.arange(100) // 25
    model = nn.Linear(3, 4)

    def batches():
        for i in range(0, 100, size):
            yield x[i : i + size], (y[i : i + size],)

    loss = lambda m, b: F.cross_entropy(m(b[0]), b[1][0])  # noqa: E731
    return Setup(model, torch.optim.SGD(model.parameters(), lr=0.01), batches, loss, steps=10)


def test_samples_are_dealt_anew_each_pass_in_batches_of_the_same_sizes():
    setup = by_class()
    Change("shuffle-samples").apply(setup)
    passes = [list(setup.batches()) for _ in range(2)]
    for one in passes:
        assert [len(b[0]) for b in one] == [16] * 6 + [4]
        x, y = torch.cat([b[0] for b in one]), torch.cat([b[1][0] for b in one])
        assert sorted(x[:, 0].tolist()) == list(range(100))
        assert torch.equal((x[:, 0] // 25).long(), y)  # each label stays with its sample
        assert all(len(b[1][0].unique()) > 1 for b in one[:-1])
    assert not torch.equal(passes[0][0][0], passes[1][0][0])


def test_the_same_setup_is_shuffled_the_same_way_and_draws_nothing():
    state = torch.get_rng_state()
    first, second = by_class(), by_class()
    for setup in (first, second):
        Change("shuffle-samples", {"seed": 3}).apply(setup)
    torch.manual_seed(9)
    one = next(iter(first.batches()))
    torch.set_rng_state(state)
    assert torch.equal(one[0], next(iter(second.batches()))[0])
    assert len(list(first.batches())) == 7


def test_batches_by_class_are_told_from_shuffled_ones():
    setup = by_class()
    assert sample_order.unlike(list(setup.batches()))
    Change("shuffle-samples").apply(setup)
    assert not sample_order.unlike(list(setup.batches()))


def test_what_cannot_be_shuffled():
    setup = by_class(size=100)
    with pytest.raises(RepairError, match="one batch"):
        Change("shuffle-samples").apply(setup)
    setup = setup_of(*data())
    one = setup.batches
    setup.batches = lambda: ({**batch, "scale": torch.ones(())} for batch in one())
    with pytest.raises(RepairError, match="axis of samples"):
        Change("shuffle-samples").apply(setup)


def test_unlike_batches_are_answered_by_shuffling_and_alike_ones_are_not():
    patient = Patient(by_class)
    gap = Finding("train-eval-gap", "error", ("0",), "")
    assert next(answers_to(gap, patient)).kind == "shuffle-samples"

    def mixed():
        setup = by_class()
        Change("shuffle-samples").apply(setup)
        return setup

    assert all(change.kind != "shuffle-samples" for change in answers_to(gap, Patient(mixed)))


def test_what_a_changed_loader_draws_from_is_still_put_back():
    """Probes put back the generator of the user's loader, also behind a change of the batches."""
    from torch.utils.data import DataLoader, TensorDataset

    from trimtab.diagnosis.probes import drawn

    loader = DataLoader(TensorDataset(*data()), batch_size=10, shuffle=True, generator=torch.Generator().manual_seed(1))
    setup = setup_of(*data())
    setup.batches, setup.loss = lambda: loader, lambda m, b: F.mse_loss(m(b[0]), b[1])
    Change("shuffle-samples").apply(setup)
    state = loader.generator.get_state()
    drawn(setup, 2)
    assert torch.equal(loader.generator.get_state(), state)

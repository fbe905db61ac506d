"""What is told of batch normalizations, beside draws with known answers; losses by mode; dropout in front of a norm."""

import copy
import functools
import warnings

import numpy as np
import pytest
import torch
from diagnosis_cases import watched
from problems import classify, cross_entropy, digits, normed, passes
from torch import nn
from torch.optim import SGD

from trimtab import Setup, diagnose
from trimtab.diagnosis.batch_norms import LATEST, BatchNorm, batch_norms
from trimtab.diagnosis.dropout_shift import dropout_shifts
from trimtab.diagnosis.evaluation import losses_by_mode
from trimtab.diagnosis.view import View
from trimtab.norms import recalibrate


def drawn(m=16, momentum=0.1, looks=60, channels=256, drift=0.0, scale=1.0, seed=0, centres=0.0):
    """A norm that was given m independent normal values a channel and look, and averaged with a momentum."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(looks, m, channels)) * scale + 3
    x += drift * np.arange(looks)[:, None, None] + centres * rng.normal(size=(looks, 1, channels))
    mean, variance = x.mean(1), x.var(1)
    kept_mean, kept_variance = [np.zeros(channels)], [np.ones(channels)]
    for i in range(looks - 1):
        kept_mean.append((1 - momentum) * kept_mean[-1] + momentum * mean[i])
        kept_variance.append((1 - momentum) * kept_variance[-1] + momentum * variance[i] * m / (m - 1))
    return BatchNorm(
        model=0, name="norm", cls="BatchNorm1d", momentum=momentum, keeps=True, samples=m, padding=np.zeros((looks, 3)), run=looks,
        steps=np.arange(looks), training=np.ones(looks, dtype=bool), counts=np.full(looks, float(m)), mean=mean,
        variance=variance, kept_mean=np.array(kept_mean), kept_variance=np.array(kept_variance),
    )  # fmt: skip


@pytest.mark.parametrize("drift", [0.0, 0.5])
@pytest.mark.parametrize("m", [2, 3, 4, 8, 32, 256])
def test_values_behind_a_statistic_are_told_from_the_scatter_of_the_variances(m, drift):
    found = [drawn(m, looks=12, channels=64, drift=drift, seed=seed).effective for seed in range(10)]
    assert np.mean(found) == pytest.approx(m, rel=0.15)
    assert np.std(found) < 0.2 * m


def test_alike_positions_are_worth_less_than_their_count():
    norm = drawn(4, looks=12)
    repeated = BatchNorm(**{f: getattr(norm, f) for f in norm.__dataclass_fields__} | {"counts": 16 * norm.counts})
    assert repeated.elements == 64
    assert repeated.effective == pytest.approx(4, rel=0.2)


@pytest.mark.parametrize("drift", [0.0, 0.5])
@pytest.mark.parametrize("m", [2, 8, 32])
def test_the_mean_of_m_values_scatters_by_one_in_m(m, drift):
    norm = drawn(m, drift=drift)
    assert norm.noise * m == pytest.approx(1, rel=0.15)
    if not drift and m > 2:  # over few values the variance of a look may be near zero
        assert norm.between * m == pytest.approx(1, rel=0.25)


@pytest.mark.parametrize("scale", [1.0, 0.1, 1e4])
@pytest.mark.parametrize("momentum", [0.05, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("m", [4, 32])
def test_statistics_that_follow_are_not_off(m, momentum, scale):
    norm = drawn(m, momentum, looks=200, scale=scale)
    assert norm.offset < 0.3
    assert 0.75 < norm.stretch < 1.35


def test_statistics_of_unlike_batches_are_not_off():
    assert drawn(32, 0.1, looks=200, centres=1.0).offset < 0.5


@pytest.mark.parametrize(("momentum", "left"), [(0.0, 1.0), (1e-4, (1 - 1e-4) ** 200)])
def test_statistics_that_never_came_are_off_by_what_is_left(momentum, left):
    norm = drawn(32, momentum, looks=200, scale=2.0)
    assert norm.offset == pytest.approx(left * 3 / 2, rel=0.1)
    assert norm.stretch == pytest.approx((left + (1 - left) * 4) / 4, rel=0.1)


def test_dead_channels_do_not_count():
    norm = drawn(16)
    norm.variance[:, :64], norm.kept_mean[:, :64] = 1e-12, 5.0
    assert norm.alive.sum() == 192
    assert norm.offset < 0.2


def test_few_looks_tell_nothing():
    norm = drawn(16, looks=1)
    assert all(np.isnan(value) for value in (norm.offset, norm.stretch, norm.between, norm.noise, norm.effective))


def test_norms_of_a_run():
    net = normed()
    record = watched(classify(net, SGD(net.parameters(), 0.05), 40))
    first, second = batch_norms(record)
    assert (first.name, first.cls, first.samples, first.elements, first.momentum) == ("1", "BatchNorm1d", 64, 64, 0.1)
    assert second.name == "4"
    assert first.normalizes_by_batch
    assert first.keeps
    assert len(first.late) <= LATEST
    assert first.mean.shape == (len(first.steps), 48)


# Losses by mode --------------------------------------------------------------------------------------------------------


def test_losses_by_mode_are_those_that_a_user_would_compute():
    net = normed()
    setup = classify(net, SGD(net.parameters(), 0.05), 30)
    for _ in setup.train():
        pass
    before = copy.deepcopy(net.state_dict())
    state, modes = torch.get_rng_state(), [m.training for m in net.modules()]
    found = losses_by_mode(setup)
    batches = list(setup.batches())[:8]

    def mean(model):
        with torch.no_grad():
            return np.mean([float(cross_entropy(model, batch)) for batch in batches])

    assert found["batches"] == 8
    assert found["train"] == pytest.approx(mean(copy.deepcopy(net).train()))
    assert found["evaluation"] == pytest.approx(mean(copy.deepcopy(net).eval()))
    again = recalibrate(net, batches, upstream="batch", inplace=False).model
    assert found["recalibrated"] == pytest.approx(mean(again.eval()))
    assert all(torch.equal(value, net.state_dict()[key]) for key, value in before.items())
    assert torch.equal(state, torch.get_rng_state())
    assert modes == [m.training for m in net.modules()]


def test_losses_by_mode_where_they_cannot_be_had():
    plain = nn.Sequential(nn.Linear(64, 10))
    assert losses_by_mode(classify(plain, SGD(plain.parameters(), 0.1))) is None

    def penalty(model, batch):
        loss = cross_entropy(model, batch)
        return loss + torch.autograd.grad(loss, batch[0].requires_grad_())[0].sum()

    net = normed()
    assert losses_by_mode(classify(net, SGD(net.parameters(), 0.1), loss=penalty)) is None


def test_a_diagnosis_leaves_the_trained_model_as_training_left_it():
    def run(how):
        torch.manual_seed(3)
        net = normed()
        setup = classify(net, SGD(net.parameters(), 0.05), 30)
        how(setup)
        return net.state_dict(), [m.training for m in net.modules()], torch.get_rng_state()

    diagnosed, plain = run(diagnose), run(lambda setup: list(setup.train()))
    assert all(torch.equal(a, b) for a, b in zip(diagnosed[0].values(), plain[0].values(), strict=True))
    assert diagnosed[1] == plain[1]
    assert torch.equal(diagnosed[2], plain[2])


# Dropout in front of a norm ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("between", [False, True])
def test_the_variance_that_dropout_adds(rate, between):
    """Foretold from what was seen in training; measured by switching dropout off."""
    layer = [nn.Linear(64, 64, bias=False)] if between else []
    net = nn.Sequential(nn.Dropout(rate), *layer, nn.BatchNorm1d(64), nn.Linear(64, 10))
    x, y = torch.randn(4096, 64) + 1.0, torch.randint(10, (4096,))
    setup = Setup(net, SGD(net.parameters(), 0.0), passes(x, y, 512), cross_entropy, 24)
    view = View(watched(setup))
    (norm,) = view.batch_norms
    (shift,) = dropout_shifts(view, norm)
    front = nn.Sequential(*net[: 1 + len(layer)])
    with torch.no_grad():
        truth = (front.train()(x).var(0) / front.eval()(x).var(0)).median()
    assert shift.dropout == "0"
    assert shift.ratio == pytest.approx(float(truth), rel=0.15)


def test_a_norm_between_takes_the_shift_off():
    net = nn.Sequential(
        nn.Dropout(0.5), nn.BatchNorm1d(64), nn.Linear(64, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 10)
    )
    x, y = digits()
    view = View(watched(Setup(net, SGD(net.parameters(), 0.01), passes(x, y), cross_entropy, 12)))
    first, second = view.batch_norms
    assert len(list(dropout_shifts(view, first))) == 1
    assert list(dropout_shifts(view, second)) == []


# Rules, where a run was only watched ------------------------------------------------------------------------------------


def said(setup, code):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diagnosis = diagnose(watched(setup))
    return [(f.severity, f.where) for f in diagnosis.findings if f.code == code]


def test_stale_statistics_without_an_evaluation_are_a_warning_where_the_run_learns():
    net = normed(functools.partial(nn.BatchNorm1d, momentum=1e-4))
    x, y = digits(scaled=False)
    setup = Setup(net, SGD(net.parameters(), 0.1), passes(x + 20, y, 32), cross_entropy, 80)
    assert said(setup, "stale-running-stats") == [("warning", ("1", "4"))]


def test_a_forgetful_momentum_without_an_evaluation_is_a_warning():
    net = normed(functools.partial(nn.BatchNorm1d, momentum=0.99))
    assert said(classify(net, SGD(net.parameters(), 0.05), 100, size=8), "train-eval-gap") == [("warning", ("1", "4"))]


def test_a_forgetful_momentum_of_large_batches_is_in_order():
    net = normed(functools.partial(nn.BatchNorm1d, momentum=0.9))
    assert said(classify(net, SGD(net.parameters(), 0.05), 100, size=128), "train-eval-gap") == []


def test_small_batches_in_a_run_that_learns_are_a_note():
    net = normed()
    assert said(classify(net, SGD(net.parameters(), 0.02), 600, size=3), "small-batch-batchnorm") == [
        ("note", ("1", "4"))
    ]


def test_small_batches_before_training_are_a_warning():
    from trimtab import check

    net = normed()
    diagnosis = check(classify(net, SGD(net.parameters(), 0.02), size=3))
    assert [(f.code, f.severity) for f in diagnosis.findings] == [("small-batch-batchnorm", "warning")]


@pytest.mark.parametrize("back", [False, True])
def test_a_model_left_in_evaluation_mode_is_a_slip_of_the_loop_also_where_it_learns(back):
    """After the first quick look at step 20 nobody calls train()."""
    count = [0]

    def step(setup, batch):
        if back:
            setup.model.train()
        setup.optimizer.zero_grad()
        loss = cross_entropy(setup.model, batch)
        loss.backward()
        setup.optimizer.step()
        count[0] += 1
        if count[0] % 20 == 0:
            setup.model.eval()
        return loss

    net = normed()
    found = said(classify(net, SGD(net.parameters(), 0.2), 150, size=32, step=step), "stale-running-stats")
    assert found == ([] if back else [("warning", ("loop", *found[0][1][1:]))])
    assert back or set(found[0][1]) <= {"loop", "1", "4"}


def test_a_norm_that_divides_by_what_it_has_kept_is_not_judged_by_what_it_is_given():
    """In evaluation mode a small input stays small, whatever eps is."""
    net = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
    nn.init.normal_(net[0].weight, std=1e-5)
    nn.init.zeros_(net[0].bias)

    def step(setup, batch):
        setup.model[1].eval()
        setup.optimizer.zero_grad()
        loss = cross_entropy(setup.model, batch)
        loss.backward()
        setup.optimizer.step()
        return loss

    assert said(classify(net, SGD(net.parameters(), 1e-6), 40, step=step), "norm-precision") == []


def test_values_that_are_no_number_count_as_values():
    """A batch of NaN is bad data, not a small batch."""
    net = normed()
    x, y = digits()
    setup = Setup(net, SGD(net.parameters(), 0.1), passes(x * torch.nan, y), cross_entropy, 12)
    codes = {finding.code for finding in diagnose(watched(setup)).findings}
    assert "nonfinite-data" in codes
    assert "small-batch-batchnorm" not in codes

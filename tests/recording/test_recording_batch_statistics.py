"""What batch normalizations are given and what they keep, beside numpy; and what counts as padding."""

import numpy as np
import pytest
import torch
from recording_cases import record_of, watching
from torch import nn

from trimtab.norms.layers import MaskedBatchNorm1d
from trimtab.recording import Schedule
from trimtab.recording.batch_statistics import SHOWN, is_batch_norm, padding


def looks(record, name, kind):
    site = record.site(0, name, kind)
    return {} if site is None else dict(record.channels.get(site.index, []))


def train(net, batches, optimizer=None, loss=lambda y: y.square().mean()):
    """A record of steps over these batches, and the running statistics as they were before each."""
    optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.1)
    norms = {name: m for name, m in net.named_modules() if is_batch_norm(m) and m.running_mean is not None}
    before = []
    with watching(net, optimizer) as recorder:
        for batch in batches:
            before.append({n: (m.running_mean.clone(), m.running_var.clone()) for n, m in norms.items()})
            optimizer.zero_grad()
            loss(net(batch)).backward()
            optimizer.step()
    return record_of(recorder), before


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(3), (8, 3)),
        (nn.BatchNorm1d(3, momentum=None), (4, 3, 5)),
        (nn.BatchNorm2d(3, momentum=0.9), (4, 3, 5, 2)),
    ],
)
def test_statistics_of_the_batch_and_those_from_before_the_step(norm, shape):
    batches = [torch.randn(shape) * (1 + i) + i for i in range(3)]
    record, before = train(nn.Sequential(norm), batches)
    given, kept = looks(record, "0", "batch-statistics"), looks(record, "0", "running-statistics")
    assert list(given) == list(kept) == [0, 1, 2]
    for step, batch in enumerate(batches):
        x = batch.double().movedim(1, 0).reshape(3, -1).numpy()
        np.testing.assert_allclose(given[step][:, 0], x.shape[1])
        np.testing.assert_allclose(given[step][:, 1], x.mean(1), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(given[step][:, 2], x.std(1), rtol=1e-6)
        mean, variance = before[step]["0"]
        np.testing.assert_allclose(kept[step][:, 1], mean.numpy(), rtol=1e-6)
        np.testing.assert_allclose(kept[step][:, 2] ** 2, variance.numpy(), rtol=1e-6)


def test_the_first_of_several_calls_and_passes_counts():
    norm = nn.BatchNorm1d(2)
    first, second = torch.randn(6, 2) + 5, torch.randn(6, 2) - 5
    optimizer = torch.optim.SGD(norm.parameters(), 0.1)
    net = nn.Sequential(norm)
    with watching(net, optimizer) as recorder:
        for batch in (first, second):
            net(batch).square().sum().backward()
        optimizer.step()
    record = record_of(recorder)
    assert looks(record, "0", "batch-statistics")[0][:, 1] == pytest.approx(first.mean(0).numpy(), rel=1e-5)
    assert looks(record, "0", "running-statistics")[0][:, 1] == pytest.approx([0, 0])


def test_mode_and_samples_stand_in_the_links():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3).eval(), nn.ReLU())
    record, _ = train(net, [torch.randn(7, 4)])
    link = record.details["links"][0][1]["0:1"]
    assert (link["training"], link["samples"], link["padding"]) == (False, 7, None)
    assert record.details["links"][0][1]["0:0"]["training"] is True


def test_of_many_channels_some_are_kept():
    width = 3 * SHOWN - 5
    x = torch.randn(16, width)
    record, before = train(nn.Sequential(nn.BatchNorm1d(width)), [x])
    given, kept = looks(record, "0", "batch-statistics")[0], looks(record, "0", "running-statistics")[0]
    assert len(given) == len(kept) <= SHOWN
    assert given[:, 1] == pytest.approx(x[:, ::3].mean(0).numpy(), abs=1e-6)
    assert len(before[0]["0"][0]) == width


class Frozen(nn.Module):
    """Buffers alone, as in detection libraries."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(3))
        self.register_buffer("running_var", torch.ones(3))

    def forward(self, x):
        return (x - self.running_mean) * (self.running_var + 1e-5).rsqrt()


@pytest.mark.parametrize(
    ("module", "is_one"),
    [
        (nn.BatchNorm3d(2), True),
        (nn.SyncBatchNorm(2), True),
        (nn.BatchNorm1d(2, track_running_stats=False), True),
        (Frozen(), True),
        (nn.InstanceNorm1d(2, track_running_stats=True), False),
        (MaskedBatchNorm1d(2), False),
        (nn.GroupNorm(1, 2), False),
    ],
)
def test_what_is_a_batch_normalization(module, is_one):
    assert is_batch_norm(module) is is_one


def test_norms_that_keep_nothing_or_are_given_a_mask():
    net = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False))
    record, _ = train(net, [torch.randn(5, 3)])
    assert looks(record, "0", "batch-statistics")
    assert not looks(record, "0", "running-statistics")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = MaskedBatchNorm1d(3)

        def forward(self, x):
            return self.norm(x, torch.ones(x.shape[0], x.shape[2], dtype=torch.bool))

    record, _ = train(Net(), [torch.randn(5, 3, 4)])
    assert not looks(record, "norm", "batch-statistics")


def test_a_closer_look_comes_soon_after_each_power_of_the_root_of_two():
    for every in (1, 4, 6, 50):
        schedule = Schedule(every)
        looked = [step for step in range(5000) if schedule.records(step) and schedule.details(step)]
        for power in (64, 181, 512, 1448, 4096):
            assert any(power <= step < power + every for step in looked)


# Padding -----------------------------------------------------------------------------------------------------------------


def padded(lengths, length=12, channels=3, value=0.0, front=False):
    x = torch.randn(len(lengths), channels, length) + 2
    for row, real in zip(x, lengths, strict=True):
        if front:
            row[:, : length - real] = value
        else:
            row[:, real:] = value
    return x


@pytest.mark.parametrize("value", [0.0, -1.5])
@pytest.mark.parametrize("front", [False, True])
def test_padding_is_found_and_weighed(value, front):
    lengths = [12, 3, 5, 8]
    x = padded(lengths, value=value, front=front)
    found = padding(x, 4)
    real = torch.stack([(row != value).all(0) for row in x])
    assert found["share"] == pytest.approx(1 - sum(lengths) / 48)
    values = x.double().movedim(1, 0)
    own = values[:, real]
    mean, variance = own.mean(1), own.var(1, correction=0)
    shift = ((values.flatten(1).mean(1) - mean) ** 2 / variance).mean().sqrt()
    assert found["shift"] == pytest.approx(float(shift), rel=1e-6)
    assert found["spread"] == pytest.approx(
        float((values.flatten(1).var(1, correction=0) / variance).median()), rel=1e-6
    )


def test_padding_behind_a_flattening():
    x = padded([2, 9, 12, 4])
    flat = x.movedim(1, 2).reshape(-1, 3)
    assert padding(flat, 4) == pytest.approx(padding(x, 4))
    assert padding(flat, 48) is None  # then rows are samples


def test_what_is_no_padding():
    assert padding(torch.randn(4, 3, 12), 4) is None
    assert padding(torch.zeros(4, 3, 12), 4) is None  # a dead layer
    assert padding(torch.zeros(4, 3, 6, 6), 4) is None  # an image
    assert padding(padded([11, 11, 11, 11]), 4) is None  # one position each
    own = padded([12, 12, 12, 12])
    own[0, :, 6:], own[1, :, 6:] = 1.0, 2.0  # two samples that hold still, each at its own value
    assert padding(own, 4)["share"] == pytest.approx(6 / 48)

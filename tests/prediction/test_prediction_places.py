"""Rules of what gives entries another place, another order or several places, against the mean over draws of the weights."""

import numpy as np
import pytest
import torch
from prediction_draws import Said, over_draws
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from trimtab.prediction import predict
from trimtab.prediction.rules.maps import _running, mapped, sums
from trimtab.prediction.rules.order import largest
from trimtab.prediction.state import measure

ROWS = torch.arange(64)
DRAWN = torch.randint(0, 64, (64,), generator=torch.Generator().manual_seed(0))
GIVEN = torch.randn(64, 64, generator=torch.Generator().manual_seed(2))
EACH = torch.randint(0, 64, (64, 64), generator=torch.Generator().manual_seed(1))


def set_column(u):
    v = u.clone()
    v[:, :16] = torch.tanh(u[:, :16])
    return v


def padded_by_hand(u):
    wide = torch.zeros(96, 64)
    wide[:64] = u
    wide[64:80] = 2 * u[:16]
    return wide


UNITS = {
    "glu": lambda u: functional.glu(torch.cat([u, u.flip(0)], -1)),
    "glu over samples": lambda u: functional.glu(u, 0),
    "cumsum": lambda u: u.cumsum(-1),
    "cumsum over samples": lambda u: u.cumsum(0),
    "sort": lambda u: u.sort(-1)[0],
    "sort of relu, down": lambda u: torch.relu(u).sort(-1, descending=True)[0],
    "topk": lambda u: torch.cat([u.topk(32, -1)[0]] * 2, -1),
    "topk of tanh, smallest": lambda u: torch.cat([torch.tanh(u).topk(16, -1, largest=False)[0]] * 4, -1),
    "max": lambda u: u.view(8, 8, 64).max(1)[0],
    "amax of relu": lambda u: torch.relu(u).amax(1, keepdim=True).expand(64, 64),
    "amin of tanh": lambda u: torch.tanh(u / 4).amin(1, keepdim=True).expand(64, 64),
    "index": lambda u: u[DRAWN],
    "index of units": lambda u: u[:, DRAWN],
    "index of one": lambda u: u[torch.zeros(8, dtype=torch.long)],
    "index by a mask": lambda u: u[ROWS % 3 == 0],
    "index of both": lambda u: u.view(4, 16, 64)[ROWS % 4, ROWS % 16],
    "index of many": lambda u: u[EACH[:4]],
    "index_select": lambda u: u.index_select(1, DRAWN),
    "gather": lambda u: u.gather(1, EACH),
    "gather over samples": lambda u: u.gather(0, EACH[:16]),
    "select_scatter": lambda u: torch.select_scatter(u, 2 * u[:, 3], 1, 5),
    "slice_scatter": lambda u: torch.slice_scatter(u, torch.tanh(u[:32]), 0, 0, 32),
    "written": set_column,
    "padded by hand": padded_by_hand,
    "repeat": lambda u: u.repeat(2, 1),
    "pad": lambda u: functional.pad(u[:, 2:-2], (2, 2)),
    "normalize": lambda u: functional.normalize(u, dim=-1),
    "diagonal": lambda u: u.view(64, 8, 8).diagonal(0, 1, 2).repeat(1, 8),
    "einsum, units": lambda u: torch.einsum("bi,bi,ij->bj", u, GIVEN, GIVEN / 8),
    "einsum, outer": lambda u: torch.einsum("bi,bj->bij", u[:, :8], u[:, 8:16]).flatten(1),
    "einsum, diagonal": lambda u: torch.einsum("bii->bi", u.view(64, 8, 8)).repeat(1, 8),
    "einsum, batch": lambda u: torch.einsum("gik,gjk->gij", u.view(4, 16, 64), GIVEN.view(4, 16, 64)).reshape(16, 64),
}
WIDER = {
    "sort": 0.1,
    "sort of relu, down": 0.1,
    "topk": 0.1,
    "topk of tanh, smallest": 0.1,
    "cumsum": 0.1,
    "cumsum over samples": 0.1,
}
"""All rows in one order, and random walks: one draw is worth so little that the mean over these few is."""


@pytest.mark.parametrize("name", UNITS)
def test_between_layers(name):
    torch.manual_seed(1)
    forward, backward = over_draws(
        lambda: Said(UNITS[name], nn.Linear(64, 64), nn.Linear(64, 64)), 2 * torch.randn(64, 64), 6
    )
    most = WIDER.get(name, 0.06)
    assert np.abs(forward).max() < most, forward
    assert np.abs(backward).max() < most, backward


IMAGES = {
    "reflection": lambda u: functional.pad(u, (3, 2, 1, 3), mode="reflect"),
    "replication": lambda u: functional.pad(u, (3, 2, 1, 3), mode="replicate"),
    "zeros": lambda u: functional.pad(u, (3, 2, 1, 3)),
    "cut": lambda u: functional.pad(u, (-1, -2, 0, 1)),
    "nearest": lambda u: functional.interpolate(u, scale_factor=2),
    "nearest, smaller": lambda u: functional.interpolate(u, size=(5, 3)),
    "nearest, exact": lambda u: functional.interpolate(u, scale_factor=1.5, mode="nearest-exact"),
    "bilinear": lambda u: functional.interpolate(u, scale_factor=2, mode="bilinear"),
    "bilinear, aligned": lambda u: functional.interpolate(u, size=(11, 20), mode="bilinear", align_corners=True),
    "bicubic": lambda u: functional.interpolate(u, scale_factor=2, mode="bicubic"),
    "nearest of relu": lambda u: functional.interpolate(torch.relu(u), scale_factor=2),
    "bilinear of relu": lambda u: functional.interpolate(torch.relu(u), scale_factor=2, mode="bilinear"),
    "pixel shuffle": lambda u: functional.pixel_unshuffle(functional.pixel_shuffle(torch.relu(u), 2), 2),
    "pixel shuffle alone": lambda u: torch.cat([functional.pixel_shuffle(u, 2)] * 4, 1),
    "pixel unshuffle": lambda u: functional.pixel_unshuffle(u, 2)[:, ::4],
}


SMOOTH = ("bilinear", "nearest", "reflection", "bicubic")


@pytest.mark.parametrize(("name", "smooth"), [*((n, False) for n in IMAGES), *((n, True) for n in SMOOTH)])
def test_on_images(name, smooth):
    torch.manual_seed(2)
    images = torch.randn(8, 3, 8, 8)
    if smooth:
        images = functional.interpolate(torch.randn(8, 3, 3, 3), size=(8, 8), mode="bilinear") + 0.2 * images
    forward, backward = over_draws(
        lambda: Said(IMAGES[name], nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 12, 3)), images, 5
    )
    most = 0.1 if smooth else 0.08
    assert np.abs(forward).max() < most, forward
    assert np.abs(backward).max() < most, backward


@pytest.mark.parametrize("mode", ["reflect", "replicate", "linear", "nearest"])
def test_on_sequences(mode):
    def change(u):
        if mode in {"linear", "nearest"}:
            return functional.interpolate(u, scale_factor=2, mode=mode)
        return functional.pad(u, (2, 3), mode=mode)

    make = lambda: Said(change, nn.Conv1d(8, 32, 3), nn.Conv1d(32, 8, 3))  # noqa: E731
    forward, backward = over_draws(make, torch.randn(16, 8, 12), 8)
    assert np.abs(forward).max() < 0.06
    assert np.abs(backward).max() < 0.06


@pytest.mark.parametrize(("kind", "sorts"), [("LSTM", True), ("LSTM", False), ("GRU", False), ("RNN", False)])
def test_packed_sequences(kind, sorts):
    lengths = torch.tensor([12, 12, 10, 9, 5, 4, 4, 2])

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = getattr(nn, kind)(16, 96, batch_first=True), nn.Linear(96, 48)

        def forward(self, x):
            given = lengths if sorts else lengths.flip(0)
            packed = pack_padded_sequence(x, given, batch_first=True, enforce_sorted=sorts)
            return self.head(pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0])

    torch.manual_seed(3)
    x, rows = torch.randn(8, 12, 16), []
    for seed in range(4):
        torch.manual_seed(seed)
        found = predict(Reads(), x)
        assert found.coverage == 1.0, dict(found.uncovered)
        rows.append([found["rnn.0"].forward_error, found["head"].forward_error, found["rnn.0"].backward_error])
    assert np.abs(np.mean(rows, 0)).max() < 0.08, np.mean(rows, 0)


@pytest.mark.parametrize(
    "matrix", [np.tri(12), np.tri(12).T, np.eye(12)[[0, 0, 3, 5]], np.random.default_rng(0).normal(size=(7, 12))]
)
def test_a_map_along_a_dimension_is_exact(matrix):
    """Covariances of exchangeable entries, against the mean over permutations and signs of what is mapped."""
    draws, n = 4000, 12
    shared = torch.randn(draws, 1, 1, dtype=torch.float64)
    x = 0.5 + 0.7 * shared + torch.randn(draws, n, 1, dtype=torch.float64)
    y = torch.einsum("ij,bjk->bik", torch.as_tensor(matrix), x)
    found = mapped(measure(x[..., 0]), 1, sums(matrix))
    assert found.dims[1] == (len(matrix),)
    assert found.kappa == pytest.approx(measure(y[..., 0]).kappa, rel=0.1, abs=0.1)
    assert found.mean == pytest.approx(float(y.mean()), rel=0.1, abs=0.05)


def test_a_cumulative_sum_is_a_triangle():
    for n in (1, 2, 9):
        assert _running(n) == pytest.approx(sums(np.tri(n)))
        assert _running(n) == pytest.approx(sums(np.tri(n).T))


@pytest.mark.parametrize(("count", "k"), [(2, 1), (9, 1), (9, 4), (9, 9), (100, 5)])
def test_the_largest_of_drawn_numbers(count, k):
    drawn = torch.randn(60_000, count, dtype=torch.float64).topk(k)[0]
    points, weights = largest(count, k)
    assert weights @ points == pytest.approx(float(drawn.mean()), abs=0.02)
    assert weights @ points**2 == pytest.approx(float(drawn.square().mean()), rel=0.02)


def test_what_has_no_order_passes_the_measured_value():
    model = Said(lambda u: torch.sin(u).sort(-1)[0], nn.Linear(64, 64), nn.Linear(64, 64))
    assert dict(predict(model, torch.randn(32, 64)).uncovered) == {"aten.sort": 1}

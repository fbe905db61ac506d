"""The charts of a record against what the run itself did."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn

import trimtab
from trimtab.diagnosis.charting import charts_of
from trimtab.diagnosis.charting.thinned import columns, points
from trimtab.diagnosis.charting.training import _gaps
from trimtab.recording import Record

STEPS = 30


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.last(self.act(self.norm(self.first(x))))


@pytest.fixture(scope="module")
def run():
    """A small run with everything in it, its charts, and what it did by its own count."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(
        [
            {"params": model.first.parameters(), "lr": 0.1},
            {"params": [*model.norm.parameters(), *model.last.parameters()]},
        ],
        lr=0.2,
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    own = {"loss": [], "first": [], "gradient": [], "moved": [], "rates": [], "norm": []}
    heard = []
    model.first.register_forward_hook(lambda _m, _i, out: (heard.append(out), out.retain_grad())[0] and None)
    with trimtab.watch(model, optimizer, every=1) as watch:
        for step in range(STEPS):
            x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
            own["norm"].append(gradients.norm().item())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            before = torch.cat([p.detach().flatten().clone() for p in model.first.parameters()])
            own["rates"].append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            after = torch.cat([p.detach().flatten() for p in model.first.parameters()])
            own["loss"].append(loss.item())
            own["first"].append(heard[-1].detach().square().mean().sqrt().item())
            own["gradient"].append(heard[-1].grad.square().mean().sqrt().item())
            own["moved"].append(((after - before).norm() / before.norm()).item())
            watch.log(held_out=0.5 * step, sharpness=10.0 + step)
            scheduler.step()
    return charts_of(watch.record), own


def row(chart, name):
    return chart.values[chart.rows.index(name)]


def test_there_is_a_chart_of_each_thing_that_was_measured(run):
    charts, _ = run
    assert [chart.key for chart in charts] == [
        "loss", "learning-rate", "gradient-norm", "sharpness", "logged-held_out",
        "signal", "gradient", "update",
        "signal-by-depth", "gradient-by-depth",
        "running-mean", "running-variance",
    ]  # fmt: skip
    assert charts.notes == ()
    assert "loss" in charts
    assert "nothing" not in charts
    assert all(chart.title and chart.caption for chart in charts)


def test_curves_are_the_runs_own_numbers(run):
    charts, own = run
    loss = charts["loss"]
    assert loss.x.tolist() == list(range(STEPS))
    np.testing.assert_allclose(loss.curves[0].y, own["loss"], rtol=1e-6)
    assert loss.curves[1].look == "limit"
    assert loss.curves[1].y[0] == pytest.approx(math.log(3))
    rates = charts["learning-rate"]
    np.testing.assert_allclose([curve.y for curve in rates.curves], np.array(own["rates"]).T, rtol=1e-6)
    came, used = charts["gradient-norm"].curves
    np.testing.assert_allclose(came.y, own["norm"], rtol=1e-5)
    np.testing.assert_allclose(used.y, np.minimum(own["norm"], 0.5), rtol=1e-4)
    np.testing.assert_allclose(charts["logged-held_out"].curves[0].y, 0.5 * np.arange(STEPS))


def test_sharpness_stands_beside_what_the_rate_bears(run):
    charts, own = run
    measured, bound = charts["sharpness"].curves
    np.testing.assert_allclose(measured.y, 10.0 + np.arange(STEPS))
    assert bound.look == "limit"
    first = np.array(own["rates"])[:, 0]
    np.testing.assert_allclose(bound.y, 2 / first, rtol=0.12)  # a value logged between two steps: the rate of either


def test_heat_maps_are_the_layers_own_numbers(run):
    charts, own = run
    signal = charts["signal"]
    assert signal.rows == ("first", "norm", "act", "last")
    assert signal.columns.tolist() == list(range(STEPS))
    np.testing.assert_allclose(row(signal, "first"), own["first"], rtol=1e-5)
    np.testing.assert_allclose(row(charts["gradient"], "first"), own["gradient"], rtol=1e-5)
    assert charts["update"].rows == ("first", "norm", "last")
    np.testing.assert_allclose(row(charts["update"], "first"), own["moved"], rtol=1e-4)


def test_depth_has_the_prediction_with_its_band(run):
    charts, own = run
    chart = charts["signal-by-depth"]
    assert chart.names == ("first", "last")
    predicted, first, last = chart.curves
    assert (predicted.low < predicted.y).all()
    assert (predicted.y < predicted.high).all()
    assert first.y[0] == pytest.approx(own["first"][0] ** 2, rel=1e-5)
    assert last.y[0] == pytest.approx(own["first"][-1] ** 2, rel=1e-5)
    assert predicted.low[0] < first.y[0] < predicted.high[0]


def test_running_statistics_of_a_plain_average_agree_with_the_batch():
    torch.manual_seed(1)
    model = nn.Sequential(nn.BatchNorm1d(4, momentum=0.5), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with trimtab.watch(model, optimizer, every=1) as watch:
        for _ in range(40):
            optimizer.zero_grad()
            model(3 + 2 * torch.randn(512, 4)).square().mean().backward()
            optimizer.step()
    charts = charts_of(watch.record)
    shift, even = charts["running-mean"].curves
    assert abs(shift.y[0]) < 0.2
    assert even.y[0] == 0
    assert charts["running-variance"].curves[0].y[0] == pytest.approx(1, abs=0.15)


def test_what_is_not_finite_is_told_from_what_was_not_seen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trimtab.watch(model, optimizer, every=1) as watch:
        for step in range(4):
            optimizer.zero_grad()
            x = torch.ones(3, 2) * (math.inf if step == 2 else 1)
            model(x).mean().backward()
            optimizer.step()
    charts = charts_of(watch.record)
    assert charts["signal"].rows == ("0 Linear", "1 Linear")
    assert np.isfinite(charts["signal"].values[:, :2]).all()
    assert np.isinf(charts["signal"].values[:, 2]).all()
    assert np.isnan(charts["loss"].curves[0].y[2])
    assert "not finite" in charts["loss"].caption


def test_a_record_without_a_step_has_no_charts():
    model = nn.Linear(2, 1)
    with trimtab.watch(model, torch.optim.SGD(model.parameters(), lr=0.1)) as watch:
        pass
    charts = charts_of(watch.record)
    assert len(charts) == 0
    assert charts.notes


def test_a_diagnosis_makes_its_charts_when_asked_and_takes_them_along(tmp_path):
    import pickle

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trimtab.watch(model, optimizer, store=tmp_path / "r.db"):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 2)).square().mean().backward()
            optimizer.step()
    diagnosis = trimtab.diagnose(Record.open(tmp_path / "r.db"))
    copy = pickle.loads(pickle.dumps(diagnosis))
    assert copy == diagnosis
    for one, other in zip(diagnosis.charts, copy.charts, strict=True):
        assert one.key == other.key
    assert trimtab.Diagnosis().charts.charts == ()


# ---- thinning ----

runs = arrays.arrays(np.float32, st.tuples(st.integers(1, 60), st.integers(1, 3)), elements=st.floats(-9, 9, width=32))


@given(runs, st.integers(3, 12))
def test_columns_are_few_ascending_and_reach_both_ends(values, most):
    chosen = columns(values, most)
    assert len(chosen) == min(len(values), most)
    assert (np.diff(chosen) > 0).all()
    assert chosen[0] == 0
    assert chosen[-1] == len(values) - 1


@given(st.integers(0, 499), st.sampled_from([5.0, -5.0, np.inf, np.nan]))
def test_a_spike_of_one_step_is_never_thinned_away(step, height):
    values = np.zeros((500, 4), dtype=np.float32)
    values[:, 1] = np.linspace(0, 1, 500)
    values[step, 2] = height
    if np.isnan(height):
        values[:, 2] += 3
    assert step in columns(values, 20)


@given(
    arrays.arrays(np.float64, st.integers(1, 300), elements=st.one_of(st.floats(-9, 9), st.just(np.nan))),
    st.integers(4, 40),
)
def test_points_keep_the_outline(y, most):
    chosen = points(y, most)
    assert (np.diff(chosen) > 0).all()
    assert {0, len(y) - 1} <= set(chosen.tolist())
    seen = y[~np.isnan(y)]
    if len(seen):
        kept = y[chosen][~np.isnan(y[chosen])]
        assert kept.max() == seen.max()
        assert kept.min() == seen.min()
    assert np.isnan(y[chosen]).any() == np.isnan(y).any()
    assert len(chosen) <= max(len(y) if len(y) <= most else 1.5 * most + 2, 1)


def test_a_logged_series_says_where_it_was_not_finite():
    steps = np.arange(4) * 10
    assert _gaps(steps, np.array([1.0, np.nan, np.inf, 2.0])) == (
        " It was not finite at 2 steps, first at step 10; there the line has a gap."
    )
    assert _gaps(steps, np.arange(4.0)) == ""

"""`trimtab.compare` on real runs: what was set differently is told, what was not is not."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import trimtab
from trimtab.diagnosis.starts import _is_one_draw, _Parameter
from trimtab.errors import RecordError, UsageError
from trimtab.recording import Record
from trimtab.report import Diagnosis
from trimtab.report.alignment import Kind

STEPS = 12


def net(norm=False, gain=1.0, seed=0, activation=nn.ReLU, width=8):
    torch.manual_seed(seed)
    layers = []
    for wide in (6, width, width):
        layers += [nn.Linear(wide, width), *([nn.BatchNorm1d(width)] if norm else []), activation()]
    model = nn.Sequential(*layers, nn.Linear(width, 3))
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight *= gain
    return model


def run(
    store=None,
    *,
    steps=STEPS,
    optimizer=torch.optim.SGD,
    lr=0.1,
    batch=16,
    scale=1.0,
    freeze=False,
    passes=1,
    loss=nn.functional.cross_entropy,
    **settings,
):
    """A small run: its record in memory, or at a path."""
    model = net(**settings)
    if freeze:
        model[0].requires_grad_(False)
    optimizer = optimizer([p for p in model.parameters() if p.requires_grad], lr=lr)
    draw = torch.Generator().manual_seed(1)
    with trimtab.watch(model, optimizer, store=store, every=1) as watch:
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(passes):
                x = scale * torch.randn(batch, 6, generator=draw)
                loss(model(x), torch.randint(0, 3, (batch,), generator=draw)).backward()
            optimizer.step()
    return Record.open(store) if store else watch.diagnose().draw.args[0]


@pytest.fixture(scope="module")
def plain():
    return run()


def told(a, b):
    return {(s.where, s.what): (s.a, s.b) for s in trimtab.compare(a, b).settings}


def test_the_same_run_twice(plain):
    found = trimtab.compare(plain, plain)
    assert (found.gone, found.new, found.settings, found.notes) == ((), (), (), ())
    assert [old.code for old, _ in found.stay] == [finding.code for finding in found.a]
    assert found.layers
    assert all(layer.values[0] == layer.values[1] for layer in found.layers)
    assert "Layers that differ most" not in str(found) + found.to_html()
    assert found.names == ("first", "second")
    assert told(plain, run()) == {}  # the same seeds, so the same numbers


@pytest.mark.parametrize(("share", "anew"), [(3e-7, False), (1e-3, True)])
def test_rounding_is_no_other_draw_of_the_weights(share, anew):
    one = _Parameter("0.weight", Kind("0.weight", "Linear", ((8, 8),)), True, 64.0, 0.01, 0.4)
    assert _is_one_draw(one, replace(one, mean=0.01 + share * 0.4)) != anew
    assert _is_one_draw(one, replace(one, size=0.4 * (1 + share))) != anew


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"lr": 0.01}, {("optimizer", "lr"): ("0.1", "0.01")}),
        ({"steps": 10}, {("loop", "training steps"): ("12", "10")}),
        ({"passes": 2}, {("loop", "backward passes a step"): ("1", "2")}),
        ({"batch": 4}, {("data", "shape of the first input"): ("16 × 6", "4 × 6")}),
        ({"activation": nn.Tanh}, {("model", "1, 3, 5"): ("ReLU", "Tanh")}),
        ({"seed": 3}, {("start", "weights"): ("one draw", "another draw of the same size")}),
        ({"freeze": True}, {("optimizer", "0.weight, 0.bias"): ("trained", "left as they are")}),
    ],
)
def test_one_thing_that_was_set_differently(plain, settings, expected):
    assert told(plain, run(**settings)) == expected


def test_weights_drawn_at_another_size(plain):
    ((key, (a, b)),) = told(plain, run(gain=3.0)).items()
    assert key == ("start", "rms of 0.weight … 6.weight (4 places)")
    sizes = [layer.weight.detach().square().mean().sqrt().item() for layer in net() if isinstance(layer, nn.Linear)]
    low, high = (float(part) for part in a.split(" … "))
    assert (low, high) == pytest.approx((min(sizes), max(sizes)), rel=0.005)
    assert [float(part) for part in b.split(" … ")] == pytest.approx([3 * low, 3 * high], rel=0.01)


def test_inputs_of_another_size(plain):
    ((key, (a, b)),) = told(plain, run(scale=50.0)).items()
    assert key == ("data", "spread of the inputs")
    assert float(b) == pytest.approx(50 * float(a), rel=0.01)


def test_another_optimizer_and_another_loss(plain):
    found = told(plain, run(optimizer=torch.optim.AdamW, loss=lambda p, y: nn.functional.nll_loss(p.softmax(1), y)))
    assert found["optimizer", "class"] == ("SGD", "AdamW")
    assert found["optimizer", "betas"] == ("", "[0.9, 0.999]")
    assert found["loss", "operations"] == ("NllLoss ← LogSoftmax", "NllLoss ← Softmax")


def test_a_normalization_put_in(plain):
    normed = run(norm=True)  # 6·8 + 8, twice 8·8 + 8 and 8·3 + 3 numbers, with 3 · 2 · 8 more
    found = trimtab.compare(plain, normed)
    assert {(s.what, s.a, s.b) for s in found.settings} == {
        ("numbers in its parameters", "227", "275"),
        ("1, 4, 7", "", "BatchNorm1d"),
    }  # the Linear layers are told to be the same, though two of their names have shifted
    pairs = {(layer.a, layer.b) for layer in found.layers}
    assert {("0 Linear", "0 Linear"), ("1 ReLU", "2 ReLU"), ("2 Linear", "3 Linear"), ("6 Linear", "9 Linear")} <= pairs
    panel = found.charts["signal"]
    assert panel.runs[0].chart.rows[:4] == ("0 Linear", "1 BatchNorm1d", "1 ReLU", "2 Linear")
    assert panel.runs[1].chart.rows[:4] == ("0 Linear", "1 BatchNorm1d", "2 ReLU", "3 Linear")
    assert np.isnan(panel.runs[0].chart.values[1]).all()
    assert found.charts["running-mean"].runs[0] is None


def test_layers_are_told_as_the_records_have_them(plain):
    other = run(gain=3.0)
    found = trimtab.compare(plain, other)
    assert {layer.steps for layer in found.layers} == {(0, 0), (11, 11)}
    for layer in found.layers:
        name = layer.a.split()[0]
        kind = "output" if layer.what == "signal" else "gradient"
        for record, step, value in zip((plain, other), layer.steps, layer.values, strict=True):
            series = record.series(record.site(0, name, kind))
            assert value == pytest.approx(series.rms[list(series.steps).index(step)], rel=1e-6)
    for when in ("first", "last"):
        apart = [abs(np.log(layer.ratio)) for layer in found.layers if layer.when == when]
        assert len(apart) == 14
        assert apart == sorted(apart, reverse=True)


def test_layers_that_take_turns_meet_where_both_were_seen():
    """Two nets by turns: one is seen at even steps, the other at odd ones."""
    records = []
    for lr in (0.1, 0.01):
        torch.manual_seed(0)
        nets = [nn.Sequential(nn.Linear(3, 4)), nn.Sequential(nn.Linear(3, 5))]
        optimizers = [torch.optim.SGD(part.parameters(), lr=lr) for part in nets]
        with trimtab.watch(nets, optimizers, every=1) as watch:
            for step in range(10):
                nets[step % 2](torch.randn(8, 3)).square().mean().backward()
                optimizers[step % 2].step()
                optimizers[step % 2].zero_grad()
        records.append(watch.diagnose())
    found = trimtab.compare(*records)
    steps = {(layer.a, layer.when): layer.steps for layer in found.layers if layer.what == "signal"}
    assert sorted(steps.values()) == [(0, 0), (1, 1), (8, 8), (9, 9)]
    assert "first common step" in str(found)
    assert {setting.what.split()[0] for setting in found.settings} == {"lr"}
    assert len({setting.what for setting in found.settings}) == 2


def test_runs_of_different_lengths_meet_at_their_last_common_step(plain):
    assert {layer.steps for layer in trimtab.compare(plain, run(steps=5)).layers} == {(0, 0), (4, 4)}


def test_what_is_gone_one_way_is_new_the_other_way(plain):
    bad = run(lr=1e3)
    one, other = trimtab.compare(bad, plain), trimtab.compare(plain, bad)
    assert one.gone
    assert (one.gone, one.new) == (other.new, other.gone)
    assert [(s.where, s.a, s.b) for s in one.settings] == [(s.where, s.b, s.a) for s in other.settings]


def test_diagnoses_are_taken_as_they_are(plain):
    a, b = trimtab.diagnose(plain), trimtab.diagnose(run(lr=0.01))
    found = trimtab.compare(a, b, names=("x", "y"))
    assert found.a is a
    assert found.names == ("x", "y")
    assert [s.what for s in found.settings] == ["lr"]
    copies = trimtab.compare(pickle.loads(pickle.dumps(a)), pickle.loads(pickle.dumps(b)))
    assert copies.settings == ()
    assert "not known what was set differently" in copies.notes[0]
    assert [panel.key for panel in copies.charts] == [panel.key for panel in found.charts]
    assert trimtab.compare(Diagnosis(), Diagnosis()).layers == ()


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (("train-20260101-120000", "train-20260101-130500"), ("120000", "130500")),
        (("train-20260101-120000", "train-20260102-120000"), ("20260101", "20260102")),
        (("before", "after"), ("before", "after")),
        (("run", "run-2"), ("run", "run-2")),
        (("net_bad", "net_good"), ("bad", "good")),
        (("a/record", "b/record"), ("a", "b")),
        (("x" * 90, "y" * 90), ("x" * 20 + "…" + "x" * 19, "y" * 20 + "…" + "y" * 19)),
    ],
)
def test_runs_are_called_what_their_files_differ_in(tmp_path, files, names):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        run(tmp_path / f"{file}.db", steps=1)
    assert trimtab.compare(*(tmp_path / f"{file}.db" for file in files)).names == names


def test_the_same_file_twice(tmp_path):
    run(tmp_path / "a.db", steps=2)
    found = trimtab.compare(tmp_path / "a.db", str(tmp_path / "a.db"))
    assert found.names == ("first", "second")
    assert found.settings == ()


def test_bad_input(plain, tmp_path):
    with pytest.raises(UsageError, match="each a Record, the path of one, or a Diagnosis, but it was given a int"):
        trimtab.compare(plain, 3)
    with pytest.raises(RecordError, match="no record at"):
        trimtab.compare(plain, tmp_path / "none.db")
    with pytest.raises(UsageError, match="names must be two strings"):
        trimtab.compare(plain, plain, names="ab")
    with pytest.raises(UsageError, match="no code 'nonsense'"):
        trimtab.compare(plain, plain, ignore=["nonsense"])


def test_ignored_findings_are_left_out(plain):
    bad = run(lr=1e3)
    code = trimtab.compare(bad, plain).gone[0].code
    assert code not in [f.code for f in trimtab.compare(bad, plain, ignore=[code]).gone]

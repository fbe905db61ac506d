"""A record within its budget: the file stays below it at every moment, what is left lies evenly, and what matters is kept."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from recording_cases import Net, record_of

from trimtab.recording import Record, Recorder, Schedule, Store
from trimtab.recording.store import size_of
from trimtab.recording.thinning import FIRST, LAST

SITES = 40
INFO = {
    "passes": 1,
    "optimizers": 1,
    "uncleared": [],
    "training": True,
    "rates": [[0.1]],
    "loss_scale": 1.0,
    "sampled": [],
}


def loss_of(step):
    return {5000: float("nan"), 5001: float("inf"), 7000: 99.0, 7001: -99.0}.get(step, 1.0 + 0.1 * np.sin(step))


def fill(
    store, steps, every=1, optimizers=lambda step: 1, details=lambda step: step < 8 or step % 500 == 0, watch=None
):
    """Write steps as a recorder would: every loss, and every so many steps the readings, which hold the step's number."""
    losses, sites = [], [(i, 0, f"m{i}", "output") for i in range(SITES)]
    for step in range(steps):
        losses.append((step, loss_of(step), 0.1, optimizers(step)))
        if step % every and step >= 10:
            continue
        rows = np.full((SITES, 7), float(step))
        more = {}
        if details(step):
            more = {
                "units": [(step, i, 1, np.zeros(6)) for i in range(SITES)],
                "channels": [(step, 0, np.full((16, 7), float(step)))],
                "details": [(step, "links", {"a": step})],
            }
        logged = [(s, "acc", float(s)) for s, _, _, _ in losses]
        store.commit(sites=sites, step=(step, 0.1 * step, INFO, rows), losses=losses, logged=logged, **more)
        losses, sites = [], []
        if watch is not None:
            watch(step)
    store.commit(losses=losses)
    return store


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """12,000 steps in one megabyte, which would take seventeen; the record, its file's largest size and its path."""
    path = tmp_path_factory.mktemp("budget") / "a.db"
    sizes = []
    store = fill(Store(path, budget=1), 12_000, watch=lambda step: sizes.append(size_of(path)))
    store.close()
    return Record.open(path), max(sizes), path


def test_the_file_stays_within_its_budget_at_every_moment(filled):
    record, largest, path = filled
    assert largest <= 1_000_000
    assert path.stat().st_size <= 1_000_000
    assert record.step_count == 12_000
    assert record.facts["thinned"]["removed"]["steps"] == 12_000 - len(record.steps)
    assert record.facts["thinned"]["removed"]["losses"] == 12_000 - len(record.losses)
    assert record.facts["thinned"]["left_out"] == 0
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_what_is_left_lies_evenly_and_is_what_was_written(filled):
    record, _, _ = filled
    gap = record.facts["thinned"]["gaps"]["steps"]
    assert record.steps[:FIRST].tolist() == list(range(FIRST))
    middle = record.steps[FIRST:]
    middle = middle[(middle > gap) & (middle < 12_000 - 2 * gap)]
    assert len(middle) > 5
    wide = np.diff(middle)
    assert wide.max() <= gap
    np.testing.assert_array_equal(record.readings[:, :, 1], np.repeat(record.steps[:, None], SITES, axis=1))
    assert [step for step, _ in record.channels[0]] == sorted({step for step, _ in record.channels[0]})
    assert all((rows[:, 1] == step).all() for step, rows in record.channels[0])
    assert all(value == {"a": step} for step, value in record.details["links"])
    assert len(record.channels[0]) == len(record.details["links"]) == len(record.units[3])
    steps, values = record.logged["acc"]
    np.testing.assert_array_equal(steps, values)


def test_losses_that_say_something_stay(filled):
    record, _, _ = filled
    kept = dict(zip(record.loss_steps.tolist(), record.losses.tolist(), strict=True))
    assert len(kept) < 11_000
    assert kept[7000] == 99.0
    assert kept[7001] == -99.0
    assert np.isnan(kept[5000]) or np.isinf(kept[5001])
    assert set(range(1000)) <= kept.keys()
    assert set(range(12_000 - 900, 12_000)) <= kept.keys()
    assert set(record.steps.tolist()) <= kept.keys()
    usual = [s for s in kept if 1000 <= s < 11_000 and s not in (5000, 5001, 7000, 7001)]
    assert all(kept[s] == loss_of(s) for s in usual)


def test_optimizers_that_take_turns_are_all_left():
    """A stretch of an even number of steps must not leave the steps of one optimizer alone."""
    store = fill(Store(budget=1), 6000, optimizers=lambda step: 1 + step % 2)
    record = Record.of(store)
    turns = record.steps[FIRST:-LAST] % 2
    assert record.facts["thinned"]["gaps"]["steps"] > 2
    assert 0.3 < turns.mean() < 0.7


def test_what_a_diagnosis_rests_on_stays():
    store = Store(budget=1)
    store.telling = lambda: [777]
    fill(store, 5000)
    steps = Record.of(store).steps.tolist()
    assert {777, 770, 780} <= set(steps)
    assert 1777 not in steps or record_gap(store) == 1


def record_gap(store):
    return Record.of(store).facts["thinned"]["gaps"]["steps"]


def test_a_reader_sees_whole_records_while_it_is_thinned(tmp_path):
    path = tmp_path / "a.db"

    def look(step):
        if step % 97 == 0:
            record = Record.open(path)
            assert record.steps[-1] == step
            np.testing.assert_array_equal(record.readings[:, 0, 1], record.steps)

    fill(Store(path, budget=1), 2500, watch=look).close()


def test_a_reader_that_does_not_let_go_cannot_make_the_file_grow(tmp_path):
    """SQLite's log cannot be emptied as long as somebody reads an old state: readings are then left out, losses are not."""
    path = tmp_path / "a.db"
    store = Store(path, budget=1)
    fill(store, 20)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM steps").fetchone()
    sizes = []
    for step in range(20, 1500):
        rows = np.full((SITES, 7), float(step))
        store.commit(step=(step, 0.0, INFO, rows), losses=[(step, 1.0, 0.1, 1)] if step % 10 == 0 else [])
        sizes.append(size_of(path))
    assert max(sizes) <= 1_300_000  # the losses, which are few, are written all the same
    reader.close()
    for step in range(1500, 1600):
        store.commit(step=(step, 0.0, INFO, np.full((SITES, 7), float(step))))
    store.close()
    record = Record.open(path)
    assert record.facts["thinned"]["left_out"] > 0
    assert record.steps[-1] == 1599
    assert path.stat().st_size <= 1_000_000


def test_a_step_larger_than_the_budget_is_left_out_and_the_rest_goes_on():
    store = Store(budget=1)
    big = np.ones((60_000, 7))
    for step in range(4):
        store.commit(step=(step, 0.0, INFO, big), losses=[(step, 1.0, 0.1, 1)])
    record = Record.of(store)
    assert len(record.steps) == 0
    assert record.loss_steps.tolist() == [0, 1, 2, 3]
    assert record.facts["thinned"]["left_out"] == 4


@pytest.mark.parametrize("budget", [None, 0, 0.0, float("inf")])
def test_no_budget(budget):
    store = fill(Store(budget=budget), 3000)
    assert len(Record.of(store).steps) == 3000
    assert "thinned" not in Record.of(store).facts


@pytest.mark.parametrize("budget", [0.5, -1, "200", True, float("nan"), [1]])
def test_a_budget_that_makes_no_sense(budget, tmp_path):
    with pytest.raises(ValueError, match="budget must be megabytes, at least 1"):
        Store(tmp_path / "a.db", budget=budget)
    assert not (tmp_path / "a.db").exists()


def test_a_killed_thinning_leaves_a_whole_record(tmp_path, monkeypatch):
    """Thinning goes piece by piece, each of which is done or not."""
    from trimtab.recording import thinning

    path = tmp_path / "a.db"
    store = Store(path, budget=1)
    real, calls = thinning._thin_piece, []

    def dies(*arguments):
        calls.append(0)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(thinning, "_thin_piece", dies)
    with pytest.raises(KeyboardInterrupt):
        fill(store, 5000)
    record = Record.open(path)
    assert len(record.steps) > 20
    np.testing.assert_array_equal(record.readings[:, 0, 1], record.steps)
    store.close()


def test_a_recorder_within_its_budget_has_no_fault_and_the_readings_of_the_last_step():
    net = Net(wide=64)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    recorder = Recorder(Store(budget=1), Schedule(1))
    recorder.add_model(net)
    recorder.add_optimizer(optimizer)
    recorder.start()
    resident = []
    for step in range(2400):
        if step >= 800 and step % 100 == 0:
            resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
        optimizer.zero_grad()
        net(torch.randn(8, 5)).square().mean().backward()
        optimizer.step()
    recorder.close()
    assert recorder.fault is None
    record = record_of(recorder)
    assert max(resident) - resident[0] < 5  # MiB, while a record of eight megabytes was written
    assert record.step_count == 2400
    assert record.steps[-1] == 2399
    assert record.facts["thinned"]["removed"]["steps"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--budget", "1"], ["--budget", "200"], ["--in-memory"]])
def test_a_soak(options):
    """200,000 steps: memory flat within 5 MiB, the file within its budget."""
    script = Path(__file__).parents[2] / "benchmarks" / "soak.py"
    done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

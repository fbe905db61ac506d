"""The record on disk: killed runs, readers beside the writer, files that are no record, and what comes back."""

import random
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from recording_cases import Net, reading, record_of, watching

from trimtab.errors import RecordError
from trimtab.recording import Record, Schedule, Store, is_record
from trimtab.recording.store import FORMAT


def trained(path=None, steps=12, every=1):
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer, every, path) as recorder:
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.randn(8, 5)).square().mean().backward()
            optimizer.step()
            recorder.log("mine", recorder.step)
    recorder.store.close()
    return recorder


def contiguous(record):
    return record.steps.tolist() == list(range(len(record.steps))) == record.loss_steps.tolist()


def test_killed_at_twenty_random_moments(tmp_path):
    """Nothing but the step in flight is lost; half of the runs have readers open and polling."""
    script = Path(__file__).with_name("recording_kills.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path, "20"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.split("\n")[:-1]
    assert len(told) == 20
    lengths = []
    for i, last in enumerate(told):
        assert last.isdecimal(), last
        record = Record.open(tmp_path / f"{i}.db")
        assert contiguous(record)
        assert len(record.steps) >= int(last)  # steps 0 .. last - 1: each is written when the next one begins
        assert not record.finished
        lengths.append(len(record.steps))
        if len(record.steps):
            assert reading(record, "2", "output", step=int(record.steps[-1]))[0] == 16 * 4
    assert sum(length > 0 for length in lengths) > 10  # most were killed with steps behind them


def test_a_live_record_can_be_read(tmp_path):
    path = tmp_path / "live.db"
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    trouble, lengths, stop = [], [], threading.Event()

    def poll():
        while not stop.is_set():
            try:
                record = Record.open(path)
                assert contiguous(record)
                assert all(site < len(record.sites) for site in (*record.units, *record.channels))
                assert record.readings.shape == (len(record.steps), len(record.sites), 7)
                lengths.append(len(record.steps))
            except Exception as error:
                trouble.append(error)

    with watching(net, optimizer, 1, path) as recorder:
        reader = threading.Thread(target=poll)
        reader.start()
        for step in range(150):
            optimizer.zero_grad()
            net(torch.randn(8, 5)).square().mean().backward()
            optimizer.step()
            assert len(Record.open(path).steps) == step if step % 50 == 0 else True
        stop.set()
        reader.join()
    recorder.store.close()
    assert trouble == []
    assert lengths == sorted(lengths)
    record = Record.open(path)
    assert len(record.steps) == 150
    assert record.finished


def test_memory_and_file_hold_the_same(tmp_path):
    memory, file = Record.of(trained().store), Record.of(trained(tmp_path / "a" / "b.db").store)
    assert memory.sites == file.sites
    assert np.array_equal(memory.readings, file.readings)
    assert np.array_equal(memory.losses, file.losses)
    assert memory.logged.keys() == file.logged.keys() == {"mine"}
    assert memory.units == file.units
    assert memory.details.keys() == file.details.keys()
    assert file.path == tmp_path / "a" / "b.db"
    assert is_record(file.path)


def test_a_closed_record_is_one_file(tmp_path):
    trained(tmp_path / "one.db")
    assert [p.name for p in tmp_path.iterdir()] == ["one.db"]
    shutil.copy(tmp_path / "one.db", tmp_path / "two.db")
    assert len(Record.open(tmp_path / "two.db").steps) == 12


def test_nonfinite_losses_round_trip(tmp_path):
    store = Store(tmp_path / "x.db")
    values = [0.5, float("nan"), float("inf"), float("-inf"), None, 1e300]
    logged = [(i, "a", v or 0.0) for i, v in enumerate(values)]
    store.commit(losses=[(i, v, 0.1, 1) for i, v in enumerate(values)], logged=logged)
    rows = np.array([[4.0, np.inf, np.inf, 1e300, np.inf, 0.0, 2.0], [0, 0, 0, 0, 0, 0, 9.0]])
    store.commit(sites=[(0, 0, "a", "output"), (1, 0, "b", "output")], step=(0, 0.1, {}, rows))
    store.close()
    record = Record.open(tmp_path / "x.db")
    np.testing.assert_array_equal(record.losses[[0, 2, 3, 5]], [0.5, np.inf, -np.inf, 1e300])
    assert np.isnan(record.losses[[1, 4]]).all()
    assert record.loss_seen.tolist() == [True, True, True, True, False, True]
    assert np.isnan(record.logged["a"][1][1])
    assert record.readings[0, 0, 1] == np.inf
    assert record.series(record.sites[1]).nonfinite.tolist() == [9.0]


# ------------------------------------------------------------------------------------------------------------- bad files


def foreign(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE steps (a)")
    connection.commit()
    connection.close()


def newer(path):
    trained(path)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {FORMAT + 1}")
    connection.commit()
    connection.close()


def truncated(path):
    trained(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def corrupted(path):
    trained(path)
    data = bytearray(path.read_bytes())
    data[4096:-4096] = b"\xff" * (len(data) - 8192)
    path.write_bytes(data)


def without_a_table(path):
    trained(path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE steps")
    connection.commit()
    connection.close()


BAD = [
    (lambda path: None, "no record at .*give the .db file"),
    (lambda path: path.mkdir(), "no record at .*give the .db file"),
    (lambda path: path.write_bytes(b""), "is not a record of trimtab"),
    (lambda path: path.write_text("step,loss\n0,1.0\n"), "is not a record of trimtab"),
    (lambda path: path.write_bytes(b"SQLite format 3\x00"), "is damaged"),
    (lambda path: path.write_bytes(b"SQLite format 3\x00" + bytes(range(256)) * 40), "is damaged|of another program"),
    (foreign, "is a SQLite file of another program"),
    (newer, "was written by a newer trimtab .*upgrade"),
    (truncated, "is damaged"),
    (corrupted, "is damaged"),
    (without_a_table, "is damaged"),
]


@pytest.mark.parametrize(
    ("make", "message"),
    BAD,
    ids=[
        "missing",
        "folder",
        "empty",
        "text",
        "header",
        "noise",
        "foreign",
        "newer",
        "truncated",
        "corrupted",
        "table",
    ],
)
def test_what_is_no_record_is_refused_in_one_line(tmp_path, make, message):
    path = tmp_path / "bad.db"
    make(path)
    with pytest.raises(RecordError, match=message) as caught:
        Record.open(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_any_damage_is_read_or_refused(tmp_path):
    """Bytes changed at random: never another exception."""
    trained(tmp_path / "good.db")
    good, dice = (tmp_path / "good.db").read_bytes(), random.Random(0)
    path, refused = tmp_path / "bad.db", 0
    for _ in range(150):
        data = bytearray(good)
        for _ in range(dice.choice((1, 10, 200))):
            data[dice.randrange(100, len(data))] = dice.randrange(256)
        path.write_bytes(data)
        try:
            Record.open(path)
        except RecordError:
            refused += 1
    assert refused > 10


def test_a_store_never_overwrites(tmp_path):
    path = tmp_path / "a.db"
    path.write_text("mine")
    with pytest.raises(RecordError, match="exists already: choose another name"):
        Store(path)
    assert path.read_text() == "mine"
    with pytest.raises(RecordError, match=r"cannot write the record to .*choose another place"):
        Store(path / "b.db")


@pytest.mark.parametrize("every", [0, -1, 1.5, "2"])
def test_a_schedule_takes_whole_numbers_only(every):
    with pytest.raises(ValueError, match="every must be a whole number of steps"):
        Schedule(every)


def test_the_record_of_a_sparse_run_has_every_loss(tmp_path):
    record = record_of(trained(tmp_path / "a.db", steps=180, every=None))
    assert record.loss_steps.tolist() == list(range(180))
    assert np.isfinite(record.losses).all()
    assert len(record.steps) < 40

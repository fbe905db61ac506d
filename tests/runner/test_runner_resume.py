"""A record that a restarted run goes on writing."""

import os
import signal
import time

import numpy as np
import pytest
import torch
from torch import nn

import trimtab
from trimtab.recording import Record, Store


def made(width=8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, optimizer, steps):
    x, y = torch.randn(16, 4), torch.randint(0, 2, (16,))
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def session(path, steps, width=8, **options):
    model, optimizer = made(width)
    with trimtab.watch(model, optimizer, every=1, store=path, **options) as watch:
        train(model, optimizer, steps)
    return watch


def test_steps_go_on_and_sites_are_the_same(tmp_path):
    path = tmp_path / "a.db"
    first = session(path, 12).record
    watch = session(path, 5, resume=True)
    record = watch.record
    assert record.steps.tolist() == record.loss_steps.tolist() == list(range(17))
    assert record.sites == first.sites
    np.testing.assert_array_equal(record.readings[:12], first.readings)
    assert [(s["first"], s["replaced"]) for s in record.facts["sessions"]] == [(0, 0), (12, 0)]
    assert record.finished
    assert record.seconds[12] > record.seconds[11]
    assert record.facts["predictions"] == first.facts["predictions"]  # of the weights as they were drawn
    assert "written in 2 sessions, joined at step 12" in str(watch.diagnose())


def test_a_run_that_starts_from_an_earlier_checkpoint_replaces_what_came_after(tmp_path):
    path = tmp_path / "a.db"
    first = session(path, 12).record
    record = session(path, 9, resume=7).record
    assert record.steps.tolist() == record.loss_steps.tolist() == list(range(16))
    np.testing.assert_array_equal(record.losses[:7], first.losses[:7])
    assert record.facts["sessions"][1]["replaced"] == 5
    assert max(step for step, _ in record.details["loss"]) < 16
    assert "joined at step 7 (5 steps replaced)" in str(trimtab.diagnose(path))


def test_another_model_is_refused_and_nothing_is_changed(tmp_path):
    path = tmp_path / "a.db"
    session(path, 5)
    before = path.read_bytes()
    with pytest.raises(
        trimtab.RecordError, match=r"the record of another model \(0.weight is of shape \(8, 4\) there and"
    ):
        session(path, 5, width=9, resume=True)
    with pytest.raises(trimtab.RecordError, match="another model"):
        session(path, 5, width=9, resume=2)
    assert Record.open(path).step_count == 5
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.db"]


@pytest.mark.parametrize(
    ("resume", "kind", "words"),
    [
        (6, trimtab.RecordError, "it ends before, with 5 steps"),
        (-1, ValueError, "resume must be True or the step"),
        ("yes", ValueError, "resume must be True or the step"),
        (1.5, ValueError, "resume must be True or the step"),
    ],
)
def test_a_place_that_is_none(tmp_path, resume, kind, words):
    path = tmp_path / "a.db"
    session(path, 5)
    with pytest.raises(kind, match=words):
        session(path, 1, resume=resume)
    assert Record.open(path).step_count == 5


def test_what_cannot_be_resumed(tmp_path):
    with pytest.raises(trimtab.RecordError, match="there is no such record"):
        session(tmp_path / "no.db", 1, resume=True)
    with pytest.raises(trimtab.RecordError, match="name it with store="):
        session(None, 1, resume=True)
    (tmp_path / "text.db").write_text("mine")
    with pytest.raises(trimtab.RecordError, match="it is no record of trimtab"):
        session(tmp_path / "text.db", 1, resume=True)
    assert (tmp_path / "text.db").read_text() == "mine"
    model, optimizer = made()
    with (
        trimtab.watch(model, optimizer, store=tmp_path / "a.db"),
        pytest.raises(trimtab.RecordError, match="another watch of this process writes it"),
    ):
        trimtab.watch(*made(), store=tmp_path / "a.db", resume=True)


def test_a_smaller_budget_shrinks_the_file(tmp_path):
    path = tmp_path / "a.db"
    session(path, 1200, budget=None)
    assert path.stat().st_size > 1_000_000
    record = session(path, 5, resume=True, budget=1).record
    assert path.stat().st_size <= 1_000_000
    assert record.step_count == 1205
    assert record.steps[-1] == 1204


def test_a_session_that_never_steps_changes_nothing(tmp_path):
    path = tmp_path / "a.db"
    session(path, 5)
    before = Record.open(path).facts
    session(path, 0, resume=2)
    assert Record.open(path).facts == before
    assert Record.open(path).step_count == 5


SCRIPT = "import sys\ntrain(int(sys.argv[1]))"


def test_a_script_twice_and_resumed(shell, net):
    shell.write("s.py", net, SCRIPT)
    for _ in range(2):
        assert shell.trimtab("run", "--every", "1", "s.py", "8").status == 0
    first, second = shell.records
    done = shell.trimtab("run", "--every", "1", "--resume", first, "--stop-after", "3", "s.py", "8")
    assert done.status == 0, done.err
    assert "written in 2 sessions" in done.err
    assert shell.records == [first, second]
    assert Record.open(first).steps.tolist() == list(range(11))
    assert Record.open(second).steps.tolist() == list(range(8))
    assert shell.trimtab("run", "--every", "1", "--resume", first, "--resume-at", "4", "s.py", "2").status == 0
    assert Record.open(first).steps.tolist() == list(range(6))


def test_a_script_with_another_model_is_refused(shell, net):
    shell.write("s.py", net, "train(5)")
    shell.write("other.py", net.replace("8", "9"), "train(5)\nprint('trained')")
    shell.trimtab("run", "s.py")
    (record,) = shell.records
    done = shell.trimtab("run", "--resume", record, "other.py")
    assert done.status == 2
    assert done.out == ""
    assert "is the record of another model" in done.err
    assert "Traceback" not in done.err
    assert Record.open(record).step_count == 5
    assert shell.trimtab("run", "--resume", "no.db", "s.py").status == 2


def test_a_killed_script_is_told_and_resumed_and_a_running_one_refused(shell, net):
    shell.write("s.py", net, "print(train(20), flush=True)\nimport time\ntime.sleep(60)")
    process = shell.start("-m", "trimtab", "run", "--every", "1", "s.py")
    process.stdout.readline()
    (record,) = shell.records
    shell.write("short.py", net, "train(5)")
    refused = shell.trimtab("run", "--resume", record, "short.py")
    assert refused.status == 2
    assert f"(process {process.pid}) has not ended" in refused.err
    assert not Record.open(record).abandoned
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM
    found = Record.open(record)
    assert found.abandoned
    assert len(found.steps) == 19  # all but the one that the next step would have closed
    assert "its process has ended without closing it" in shell.trimtab("diagnose", record).out
    assert shell.trimtab("run", "--every", "1", "--resume", record, "short.py").status == 0
    assert Record.open(record).steps.tolist() == list(range(24))
    assert Record.open(record).finished


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--resume", "a.db", "--no-store"], "leave --store and --no-store out"),
        (["--resume-at", "3"], "name it with --resume"),
        (["--diagnose-every", "3"], "--stop-on"),
        (["--budget", "0.5"], "at least 1 megabyte"),
        (["--budget", "-1"], "--budget"),
        (["--stop-on", "note"], "--stop-on"),
    ],
)
def test_options_that_make_no_sense(shell, arguments, words):
    shell.write("s.py", "print('ran')")
    done = shell.trimtab("run", *arguments, "s.py")
    assert (done.status, done.out) == (2, "")
    assert words in done.err


def test_a_record_of_a_machine_that_is_gone_can_be_resumed(tmp_path):
    path = tmp_path / "a.db"
    store = Store(path)
    store.facts({"pid": 1, "host": "another-node", "sessions": [{"began": time.time(), "first": 0, "replaced": 0}]})
    store.commit(losses=[(0, 1.0, 0.1, 1)])
    store.close()
    assert not Record.open(path).abandoned
    assert session(path, 3, resume=True).record.step_count == 4
    assert os.getpid() == Record.open(path).facts["pid"]

"""Disks that are full, files that are locked, signals: training goes on bit for bit, one warning says so, the record can be read."""

import signal
import sqlite3
import subprocess
import sys
import time
import warnings

import pytest
import torch
from torch import nn

import trimtab
from trimtab.recording import Record
from trimtab.recording import store as store_module


class Run:
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.losses = []

    def train(self, steps, at=None, do=None):
        for step in range(steps):
            if step == at:
                do()
            x = torch.randn(32, 8)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), x[:, :4].argmax(1))
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())


def full(watch, path):
    """SQLite says what it says on a full disk."""
    pages = watch._store.connection.execute("PRAGMA page_count").fetchone()[0]
    watch._store.connection.execute(f"PRAGMA max_page_count = {pages}")


def locked(watch, path):
    """Another program writes to the file and does not end."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


def closed(watch, path):
    watch._store.connection.close()


def gone(watch, path):
    """A hook of ours has a bug."""
    watch._recorder._tape.measure = lambda *_: 1 / 0


@pytest.mark.parametrize("fault", [full, locked, closed, gone])
def test_training_goes_on_with_one_warning_and_a_record_that_can_be_read(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(store_module, "PATIENCE", 0.05)
    path, plain, run, held = tmp_path / "a.db", Run(), Run(), []
    torch.manual_seed(1)
    plain.train(120)
    torch.manual_seed(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with trimtab.watch(run.model, run.optimizer, every=1, store=path) as watch:
            run.train(120, at=20, do=lambda: held.append(fault(watch, path)))
            for other in held:
                if other is not None:
                    other.close()
    assert [str(w.message).count("trimtab stopped watching") for w in caught] == [1]
    assert run.losses == plain.losses
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), run.model.parameters(), strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in run.model.modules())
    record = Record.open(path)
    assert 18 <= len(record.steps) < 120
    assert record.steps.tolist() == list(range(len(record.steps)))
    assert record.finished == (fault is not closed)
    assert trimtab.diagnose(path).run.steps >= 18


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, 4_000_000))
"""


def test_a_disk_that_is_full_in_truth(shell, net):
    """A limit on the size of files, which stops SQLite in the middle of a write."""
    body = "print(train(600))"
    shell.write("s.py", LIMITED, net, body)
    plain = shell.plain("s.py")
    done = shell.trimtab("run", "--every", "1", "s.py")
    assert (done.out, done.status) == (plain.out, 0), done.err
    assert done.err.count("RuntimeWarning: trimtab stopped watching") == 1
    assert "Traceback" not in done.err
    (path,) = shell.records
    record = Record.open(path)
    assert 10 < len(record.steps) < 600
    assert record.steps.tolist() == list(range(len(record.steps)))


def test_a_folder_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    folder = tmp_path / "file"
    folder.write_text("not a folder")
    run = Run()
    with pytest.raises(trimtab.RecordError, match=r"cannot write the record to .*choose another place"):
        trimtab.watch(run.model, run.optimizer, store=folder / "a.db")
    run.train(2)


ENDLESS = "print('trains', flush=True)\nwhile True:\n    train(1)"


def test_sigterm_ends_a_script_as_under_python_and_leaves_what_was_written(shell, net):
    shell.write("s.py", net, ENDLESS)
    process = shell.start("-m", "trimtab", "run", "--every", "1", "s.py")
    process.stdout.readline()
    wait_for_steps(shell, 20)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM
    record = Record.open(shell.records[0])
    assert record.steps.tolist() == list(range(len(record.steps)))
    assert record.abandoned


def test_a_script_that_ends_at_sigterm_by_itself_closes_its_record(shell, net):
    shell.write("s.py", net, "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))", ENDLESS)
    process = shell.start("-m", "trimtab", "run", "--every", "1", "s.py")
    process.stdout.readline()
    wait_for_steps(shell, 20)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 7
    assert Record.open(shell.records[0]).finished


def test_a_second_ctrl_c_does_not_leave_the_record_open(shell, net):
    """It comes while the record is being closed, and skips the diagnosis."""
    slow = """
    import os, signal, sys
    if 'watched' in sys.argv:
        from trimtab.recording import Store
        real = Store.close
        def close(self):
            os.kill(os.getpid(), signal.SIGINT)
            real(self)
        Store.close = close
    """
    shell.write("s.py", net, slow, "train(20)\nraise KeyboardInterrupt")
    done = shell.trimtab("run", "--every", "1", "s.py", "watched")
    assert "trimtab: interrupted" in done.err
    record = Record.open(shell.records[0])
    assert record.finished
    assert len(record.steps) == 20
    assert [path.name for path in shell.records[0].parent.glob("*.db*")] == [shell.records[0].name]


def wait_for_steps(shell, steps):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if shell.records and shell.records[0].stat().st_size and len(Record.open(shell.records[0]).steps) >= steps:
            return
        time.sleep(0.05)
    raise AssertionError("nothing is recorded")


def test_a_second_writer_is_kept_out(tmp_path):
    """A record that another process is writing can be read, and is neither overwritten nor gone on with."""
    path = tmp_path / "a.db"
    code = (
        "import sys, torch, trimtab; m = torch.nn.Linear(2, 2); o = torch.optim.SGD(m.parameters(), .1)\n"
        f"w = trimtab.watch(m, o, store={str(path)!r})\n"
        "for _ in range(3): o.zero_grad(); m(torch.ones(1, 2)).sum().backward(); o.step()\n"
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        other.stdout.readline()
        run = Run()
        with pytest.raises(trimtab.RecordError, match="exists already"):
            trimtab.watch(run.model, run.optimizer, store=path)
        with pytest.raises(trimtab.RecordError, match=rf"\(process {other.pid}\) has not ended"):
            trimtab.watch(run.model, run.optimizer, store=path, resume=True)
        assert Record.open(path).step_count >= 2
        other.communicate("")

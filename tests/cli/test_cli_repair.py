"""`trimtab repair` on a setup."""

import json
import os
import signal
import time

import pytest

SETUPS = """
import torch
import trimtab
from torch import nn
torch.set_num_threads(1)
def make(seed, lr, steps=60, **more):
    torch.manual_seed(seed)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(2, 16), nn.Linear(16, 2)
        def forward(self, x):
            return self.last(torch.relu(self.first(x)))
    model = Net()
    x = torch.randn(64, 2)
    y = (x[:, 0] > 0).long()
    parts = dict(batches=lambda: [(x, y)], loss=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]))
    return trimtab.Setup(model, torch.optim.SGD(model.parameters(), lr), steps=steps, **(parts | more))
def slow(seed):
    return make(seed, 1e-4, steps=100)
def unseeded():
    return make(torch.initial_seed() % 2**31, 1e-4, steps=100)
def healthy(seed):
    return make(seed, 1.0)
def fails(seed):
    raise ArithmeticError("in my factory")
def loss_fails(seed):
    def loss(m, b):
        raise ArithmeticError("in my loss")
    return make(seed, 1.0, loss=loss)
def nonsense():
    return 3
"""


@pytest.fixture
def folder(shell):
    shell.write("setups.py", SETUPS)
    return shell


def journal(shell, name):
    path = shell.folder / ".trimtab" / f"{name}.repair.jsonl"
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:  # the one that was being written
            continue
    return found


@pytest.mark.parametrize("factory", ["slow", "unseeded"])
def test_a_fault_is_named_and_its_repair_proved(folder, factory):
    ended = folder.trimtab(
        "repair", f"setups.py:{factory}", "--workers", 1, "--format", "json", "--output", "found.json"
    )
    assert (ended.status, ended.out) == (0, ""), ended.err
    found = json.loads((folder.folder / "found.json").read_text())
    assert next(f["code"] for f in found["diagnosis"]["findings"]) == "learning-rate-too-low"
    assert found["best"]["proved"]
    assert found["steps"] <= 25 * 100
    assert ended.err.startswith("trimtab: at most 25 training runs of 100 steps, 1 worker")
    jobs = [entry["job"] for entry in journal(folder, f"setups-{factory}")]
    assert len(jobs) == len(set(jobs)) > 9
    again = folder.trimtab("repair", f"setups.py:{factory}", "--workers", 1, "--format", "json")
    assert f"{len(jobs)} finished runs are kept" in again.err
    assert json.loads(again.out) == found
    page = folder.trimtab("repair", f"setups.py:{factory}", "--workers", 1, "--format", "html")
    assert "repair proved" in page.out
    assert 'data-chart="loss"' in page.out
    assert [entry["job"] for entry in journal(folder, f"setups-{factory}")] == jobs  # nothing was run again


def test_a_healthy_setup_is_said_to_be_healthy(folder):
    ended = folder.trimtab("repair", "--workers", 1, "setups.py:healthy")
    assert ended.status == 0, ended.err
    assert "nothing to repair" in ended.out


def test_a_fault_without_a_proved_repair_ends_with_1(folder):
    ended = folder.trimtab("repair", "--workers", 1, "--seeds", 2, "--budget", 8, "setups.py:slow")
    assert ended.status == 1, ended.err
    assert "no repair proved" in ended.out


def test_fresh_and_a_changed_file_begin_anew(folder):
    folder.trimtab("repair", "--workers", 1, "setups.py:healthy")
    assert len(journal(folder, "setups-healthy")) == 1
    assert "1 finished run is kept" in folder.trimtab("repair", "--workers", 1, "setups.py:healthy").err
    assert "finished runs are kept" in folder.trimtab("repair", "--workers", 1, "--fresh", "setups.py:healthy").err
    before = journal(folder, "setups-healthy")
    folder.write("setups.py", SETUPS, "# changed")
    ended = folder.trimtab("repair", "--workers", 1, "setups.py:healthy")
    assert "the file has changed since its runs were kept" in ended.err
    after = journal(folder, "setups-healthy")
    assert [entry["job"] for entry in after] == [entry["job"] for entry in before]
    assert after[0]["name"] != before[0]["name"]


def test_a_file_in_the_place_of_its_folder_is_named(folder):
    folder.write(".trimtab", "")
    ended = folder.trimtab("repair", "--workers", 1, "setups.py:healthy")
    assert ended.status == 2
    assert "cannot write" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["setups.py:absent"], "setups.py has no absent"),
        (["none.py:slow"], "no file none.py"),
        (["setups.py:nonsense"], "must return a trimtab.Setup"),
        (["setups.py:slow", "--lr", "1"], "No such option"),
        (["setups.py:slow", "extra"], "takes no arguments"),
        (["--steps", "5", "setups.py:slow"], "--steps is for scripts"),
        (["--workers", "2", "--dask", "tcp://x:1", "setups.py:slow"], "exclude each other"),
        (["--ignore", "nothing", "setups.py:slow"], "no code 'nothing'"),
        (["--budget", "3", "setups.py:slow"], "budget must be at least 11"),
        (["--budget", "inf", "setups.py:slow"], "and finite, but it is inf"),
        (["--seeds", "1", "setups.py:slow"], "--seeds"),
        (["--output", "no/such/file", "setups.py:slow"], "no such folder"),
        (["absent.py"], "no script absent.py"),
    ],
)
def test_bad_input_ends_with_2(folder, arguments, message):
    ended = folder.trimtab("repair", *arguments)
    assert ended.status == 2
    assert message in ended.err
    assert "Traceback" not in ended.err


def test_the_users_own_error_is_shown_whole(folder):
    ended = folder.trimtab("repair", "--workers", 1, "setups.py:fails")
    assert ended.status == 2
    assert ended.err.rstrip().endswith("ArithmeticError: in my factory")
    assert [os.path.basename(file) for file in ended.frames] == ["setups.py"]


@pytest.mark.slow
def test_so_is_one_that_came_about_in_a_worker(folder):
    ended = folder.trimtab("repair", "--workers", 2, "setups.py:loss_fails", real=True)
    assert ended.status == 2
    assert ended.err.rstrip().endswith("ArithmeticError: in my loss")
    assert [os.path.basename(file) for file in ended.frames] == ["setups.py"]


def _interrupted(folder, how):
    process = folder.start("-m", "trimtab", "repair", "--workers", 1, "setups.py:slow")
    try:
        deadline = time.monotonic() + 120
        while len(journal(folder, "setups-slow")) < 3:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, err, [entry["job"] for entry in journal(folder, "setups-slow")]


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on_and_no_run_is_repeated(folder):
    status, err, done = _interrupted(folder, signal.SIGINT)
    assert status == 130
    assert "the same command goes on from there" in err
    assert "Traceback" not in err
    resumed = folder.trimtab("repair", "--workers", 1, "setups.py:slow")
    assert resumed.status == 0
    jobs = [entry["job"] for entry in journal(folder, "setups-slow")]
    assert jobs[: len(done)] == done
    assert len(jobs) == len(set(jobs)) > len(done)


def test_so_it_is_after_kill_9(folder):
    status, _, done = _interrupted(folder, signal.SIGKILL)
    assert status == -signal.SIGKILL
    resumed = folder.trimtab("repair", "--workers", 1, "--format", "json", "setups.py:slow")
    assert resumed.status == 0
    jobs = [entry["job"] for entry in journal(folder, "setups-slow")]
    assert jobs[: len(done)] == done
    assert len(jobs) == len(set(jobs)) > len(done)
    assert json.loads(
        folder.trimtab("repair", "--workers", 1, "--fresh", "--format", "json", "setups.py:slow").out
    ) == (json.loads(resumed.out))


@pytest.mark.slow
@pytest.mark.parametrize("factory", ["slow", "unseeded"])
def test_one_process_several_and_a_dask_cluster_give_the_same_prescription(folder, factory):
    from distributed import LocalCluster

    def prescription(*options):
        ended = folder.trimtab("repair", "--fresh", "--format", "json", *options, f"setups.py:{factory}", real=True)
        assert ended.status == 0, ended.err
        return json.loads(ended.out)

    serial = prescription("--workers", 1)
    assert serial["best"]["proved"]
    assert prescription("--workers", 2) == serial
    with LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None, local_directory=folder.folder
    ) as cluster:
        assert prescription("--dask", cluster.scheduler_address) == serial


def test_a_cluster_that_does_not_answer_is_bad_input(folder):
    ended = folder.trimtab("repair", "--dask", "nonsense", "setups.py:healthy")
    assert ended.status == 2
    assert "no Dask scheduler answers at nonsense" in ended.err

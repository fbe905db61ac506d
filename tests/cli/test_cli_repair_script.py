"""`trimtab repair` on a script."""

import json
import os
import signal
import time

import pytest

HEALTHY = """
    import sys
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]) if sys.argv[1:] else 0.5)
    x = torch.randn(64, 4)
    y = (x[:, 0] > 0).long()
    print("data", open("data.txt").read(), sys.argv)
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    open("out.txt", "w").write("done")
"""


def journal(shell, name):
    path = shell.folder / ".trimtab" / f"{name}.repair.jsonl"
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line)["job"])
        except ValueError:  # the one that was being written
            continue
    return found


def test_a_healthy_script_is_run_once_more_to_its_end_and_its_folder_stays_as_it_was(shell):
    shell.write("data.txt", "mine")
    script = shell.write("train.py", HEALTHY)
    before = script.read_bytes()
    ended = shell.trimtab("repair", "--workers", 1, "train.py", "0.5", "--format", "mine")
    assert ended.status == 0, ended.err
    assert "nothing to repair" in ended.out
    assert "at most 25 training runs of 200 steps, 1 worker" in ended.err
    assert script.read_bytes() == before
    assert sorted(os.listdir(shell.folder)) == sorted([".trimtab", "data.txt", "train.py", ".out-1", ".err-1"])
    log = (shell.folder / ".trimtab" / "train.repair.log").read_text()
    assert "data mine" in log
    assert "'0.5', '--format', 'mine']" in log
    assert journal(shell, "train") == ["[] 0 1 True"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import torch\nraise LookupError('mine')", "LookupError: mine"),
        ("print('no training here')", "took no training step"),
        pytest.param("import sys\nsys.exit('not today')", "not today", marks=pytest.mark.slow),
    ],
)
def test_a_script_that_does_not_come_to_train_is_bad_input(shell, script, message):
    shell.write("train.py", script)
    ended = shell.trimtab("repair", "--workers", 1, "train.py")
    assert ended.status == 2
    assert message in ended.err
    assert "trimtab/runner" not in ended.err
    if "LookupError" in message:
        assert [os.path.basename(file) for file in ended.frames] == ["train.py"]


def test_a_script_that_breaks_down_is_not_healthy_though_nothing_is_found(shell):
    shell.write("data.txt", "mine")
    shell.write("train.py", HEALTHY + "    raise LookupError('mine')\n")
    ended = shell.trimtab("repair", "--workers", 1, "train.py")
    assert ended.status == 1, ended.err
    assert "nothing to repair" not in ended.out
    assert "broke down at step 60: LookupError: mine" in " ".join(ended.out.split())


def processes(mark):
    """Numbers of processes with a word in their environment."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/environ", "rb") as file:
                if mark.encode() in file.read():
                    found.append(int(number))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_repair_goes_on_and_leaves_no_process_behind(shell, how):
    shell.write("data.txt", "mine")
    shell.write("slow.py", HEALTHY.replace("optimizer.zero_grad()", "pass"))
    mark = f"MARK={shell.folder}"
    temporary = shell.folder / "temporary"
    temporary.mkdir()
    settings = {"MARK": str(shell.folder), "TMPDIR": str(temporary)}
    process = shell.start("-m", "trimtab", "repair", "--workers", 2, "slow.py", env=os.environ | settings)
    try:
        deadline = time.monotonic() + 200
        while len(journal(shell, "slow")) < 4:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(processes(mark)) > 2
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    if how != signal.SIGKILL:
        assert process.returncode == 128 + how
        assert not list(temporary.glob("trimtab-*"))
        assert "the same command goes on from there" in err
        assert "Traceback" not in err
    deadline = time.monotonic() + 30
    while processes(mark):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    done = journal(shell, "slow")
    resumed = shell.trimtab("repair", "--workers", 2, "slow.py")
    assert resumed.status in (0, 1), resumed.err
    assert f"{len(done)} finished runs are kept" in resumed.err
    jobs = journal(shell, "slow")
    assert jobs[: len(done)] == done
    assert len(jobs) == len(set(jobs)) > len(done)


DIVERGES = """
    import torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    x = torch.randn(64, 2)
    for _ in range(30):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        assert loss < 1e6, "diverged"
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_run_that_breaks_down_after_a_few_steps_does_not_shorten_the_others(shell):
    shell.write("diverges.py", DIVERGES)
    ended = shell.trimtab(
        "repair", "--workers", 1, "--seeds", 2, "--budget", 8, "--steps", 12, "--format", "json", "diverges.py"
    )
    found = json.loads(ended.out)
    assert found["run_steps"] == 12
    assert found["diagnosis"]["run"]["steps"] < 12
    assert found["steps"] > 2 * 12  # those that are mended go on to their end


def test_a_run_that_breaks_down_without_a_finding_is_not_passed_over(shell):
    shell.write("diverges.py", DIVERGES.replace("loss < 1e6", "_ < 2"))
    ended = shell.trimtab("repair", "--workers", 1, "diverges.py")
    assert "the run broke down at step 2: AssertionError: diverged" in " ".join(ended.out.split())

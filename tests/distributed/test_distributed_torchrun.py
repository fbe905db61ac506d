"""An unmodified script under `torchrun -m trimtab run`."""

import os

import pytest

from trimtab.recording import Record

SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(30, 64, 10), torch.randint(0, 3, (30, 64))
for step in range(30):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x[step, rank::size]), y[step, rank::size])
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(step, loss.item().hex())
    if step == DIES and rank == 1:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
"""
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}


@pytest.fixture
def torchrun(shell):
    def run(*arguments):
        process = shell.start(*LAUNCH, *arguments, env=os.environ | QUIET)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    return run


def test_the_script_prints_what_it_would_and_one_rank_reports(shell, torchrun):
    shell.write("train.py", SCRIPT.replace("DIES", "None"))
    plain_status, plain_out, _ = torchrun("train.py")
    status, out, err = torchrun("-m", "trimtab", "run", "train.py")
    assert (status, out) == (plain_status, plain_out) == (0, plain_out)
    assert err.count("trimtab: watching") == 1
    assert err.count("Optimizer") == 1
    (record,) = map(Record.open, shell.records)
    assert record.facts["ranks"]["size"] == 2
    assert all(info["ranks"]["missing"] == [] for info in record.info)
    assert record.step_count == 30
    site = record.site(0, "0", "output")
    assert record.series(site).count.tolist() == [64 * 32] * len(record.steps)


def test_a_rank_that_is_killed_ends_the_run_and_leaves_a_record(shell, torchrun):
    shell.write("train.py", SCRIPT.replace("DIES", "20"))
    status, out, err = torchrun("-m", "trimtab", "run", "train.py")
    assert status != 0
    assert len(out.splitlines()) >= 20
    (record,) = map(Record.open, shell.records)
    assert record.steps.tolist()[:9] == list(range(9))
    assert "SIGKILL" in err
    shown = shell.trimtab("diagnose", shell.records[0])
    assert "rank 1 of 2 was not heard from after step" in " ".join(shown.out.split()) or record.finished is False

"""What goes wrong on one rank: it is named, it stops nobody, and a record is left."""

import os
import signal
import sqlite3
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import Died, on_ranks
from torch import nn
from trainings import BATCH, ddp, fsdp_cpu, net, train

import trimtab
from trimtab.recording import Record


def loses_weights(model, step):
    if dist.get_rank() == 1 and step == 4:
        with torch.no_grad():
            model.module.body[0].weight.mul_(1.5)


def test_weights_that_differ_are_named_with_the_step_and_the_layer(tmp_path):
    first, _ = on_ranks(tmp_path, train, ddp, before=loses_weights)
    assert first.codes[0] == "rank-divergence"
    apart = [info["ranks"]["apart"] for info in first.info]
    assert [bool(entry) for entry in apart] == [step >= 4 for step in range(12)]
    assert "At step 4 the ranks hold different weights" in first.words
    assert "body.0.weight" in first.words
    assert "1 of 2: rank 1" in first.words


def test_no_divergence_where_ranks_train_models_of_their_own(tmp_path):
    def own(model):
        torch.manual_seed(dist.get_rank())
        for part in model.modules():
            if isinstance(part, nn.Linear):
                part.reset_parameters()
        return model.double()

    first, _ = on_ranks(tmp_path, train, own)
    assert "rank-divergence" not in first.codes
    assert any(info["ranks"]["apart"] for info in first.info)


def averaged_by_hand(model, step):
    """Gradients averaged without a wrapper, after a start that nobody has made equal."""
    if step == 0:
        if dist.get_rank() == 1:
            with torch.no_grad():
                model.first.weight.add_(0.1)
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(_average)


def _average(p):
    dist.all_reduce(p.grad)
    p.grad /= dist.get_world_size()


def test_weights_that_differ_where_gradients_are_averaged_by_hand(tmp_path):
    first, _ = on_ranks(tmp_path, train, before=averaged_by_hand)
    assert first.codes[0] == "rank-divergence"
    assert "first.weight" in first.words


def test_the_same_batch_on_every_rank(tmp_path):
    first, _ = on_ranks(tmp_path, train, ddp, batch=lambda tensor, step: tensor[:16])
    assert "duplicated-batches" in first.codes
    healthy, _ = on_ranks(tmp_path, train, ddp)
    assert "duplicated-batches" not in healthy.codes


def uneven(tensor, step):
    return tensor[:32] if dist.get_rank() == 0 else tensor[40:]


def test_batches_of_different_size(tmp_path):
    first, _ = on_ranks(tmp_path, train, ddp, batch=uneven)
    assert "unequal-batches" in first.codes
    assert "8 to 32 samples" in first.words
    last_short = lambda tensor, step: tensor[:16] if dist.get_rank() == 0 or step < 11 else tensor[:4]  # noqa: E731
    healthy, _ = on_ranks(tmp_path, train, ddp, batch=last_short)
    assert "unequal-batches" not in healthy.codes


def one_bad_value(tensor, step):
    mine = tensor[dist.get_rank() :: dist.get_world_size()].clone()
    if step == 5 and dist.get_rank() == 1 and mine.is_floating_point():
        mine[0, 0] = float("nan")
    return mine


def test_the_rank_with_the_bad_value_is_named(tmp_path):
    first, _ = on_ranks(tmp_path, train, ddp, batch=one_bad_value)
    assert first.codes[0] == "nonfinite-data"
    assert "1 of 2: rank 1" in first.words


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(10), nn.Linear(10, 5)

    def forward(self, x):
        return self.head(self.norm(x))


def sorted_over_ranks(tensor, step):
    mine = tensor[dist.get_rank() :: dist.get_world_size()]
    return mine + 2.0 * dist.get_rank() if mine.is_floating_point() else mine


def without_broadcast(model):
    torch.manual_seed(0)
    return ddp(Normed().double(), forward_sync_buffers=False)


def test_running_statistics_of_sorted_data(tmp_path):
    first, _ = on_ranks(tmp_path, train, without_broadcast, batch=sorted_over_ranks)
    assert "rank-divergence" in first.codes
    assert "running statistics of norm on rank 1" in first.words
    healthy, _ = on_ranks(tmp_path, train, without_broadcast)
    assert "rank-divergence" not in healthy.codes


# ------------------------------------------------------------------------------------------------ nobody is held up


def watched_by_the_first_alone(steps=12):
    model = ddp(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trimtab.watch(model, optimizer, every=1) if dist.get_rank() == 0 else None
    x = torch.randn(16, 10, dtype=torch.float64)
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    dist.barrier()
    begin = time.monotonic()
    if watch is None:
        return None
    watch.close()
    return time.monotonic() - begin, watch.record.steps.tolist(), str(watch.diagnose())


def test_a_run_that_only_the_first_rank_watches(tmp_path):
    (seconds, steps, text), _ = on_ranks(tmp_path, watched_by_the_first_alone)
    assert steps == list(range(12))
    assert seconds < 3
    assert "rank 1 of 2 was not watched" in text


def looks_at_more(model, step):
    """The first rank alone runs passes of its own: a saliency map, an evaluation, a loss that nobody uses."""
    if dist.get_rank() == 0 and step % 3 == 1:
        inner = model.module
        x = torch.randn(4, 10, dtype=torch.float64, requires_grad=True)
        torch.autograd.grad(inner(x).sum(), x)
        with torch.no_grad():
            inner(x)
        inner(x)
    if step % 3 == 1:
        dist.barrier()


def test_passes_of_one_rank_alone_stop_nobody(tmp_path):
    first, _second = on_ranks(tmp_path, train, ddp, before=looks_at_more)
    plain, _ = on_ranks(tmp_path, train, ddp, watched=False, before=looks_at_more)
    assert first.losses == plain.losses
    assert all(info["ranks"]["missing"] == [] for info in first.info)


def group_ends_before_the_watch():
    model = ddp(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(16, 10, dtype=torch.float64)
    with trimtab.watch(model, optimizer, every=1) as watch:
        for _ in range(5):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        dist.destroy_process_group()
    return watch.record.steps.tolist(), watch.record.facts


def test_a_group_that_ends_before_the_watch(tmp_path):
    (steps, facts), _ = on_ranks(tmp_path, group_ends_before_the_watch)
    assert steps == list(range(5))
    assert "fault" not in facts


def dies(model, step, rank=1):
    if dist.get_rank() == rank and step == 6:
        os.kill(os.getpid(), signal.SIGKILL)


def run_to_the_death(store, rank):
    begin = time.monotonic()
    try:
        train(ddp, steps=12, store=store, before=lambda model, step: dies(model, step, rank))
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - begin


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_leaves_a_record(tmp_path, rank):
    store = tmp_path / "run.db"
    answers = on_ranks(tmp_path, run_to_the_death, str(store), rank)
    assert answers[rank] is Died
    error, seconds = answers[1 - rank]
    assert "Connection closed" in error or "reset" in error.lower()
    assert seconds < 30
    record = Record.open(store)
    assert record.steps.tolist()[:4] == list(range(4))
    assert all(info["ranks"]["missing"] == [] for info in record.info[:4])
    text = " ".join(str(trimtab.diagnose(record)).split())
    if rank == 1:
        assert record.facts["how"].startswith(("RuntimeError", "DistBackendError"))
        assert "rank 1 of 2 was not heard from after step 4" in text
    else:
        assert "unfinished" in text.lower() or "how" not in record.facts


def stores_on_all_ranks(store):
    train(ddp, store=store)
    return os.path.exists(store), dist.get_rank()


def test_one_file_for_all_ranks(tmp_path):
    on_ranks(tmp_path, stores_on_all_ranks, str(tmp_path / "run.db"))
    assert sorted(path.name for path in tmp_path.glob("*.db*")) == ["run.db"]
    with sqlite3.connect(tmp_path / "run.db") as connection:
        assert connection.execute("SELECT COUNT(*) FROM steps").fetchone() == (12,)


def test_a_sharded_model_that_loses_a_rank_of_its_data(tmp_path):
    first, _ = on_ranks(tmp_path, train, fsdp_cpu, batch=one_bad_value)
    assert first.codes[0] == "nonfinite-data"
    assert "1 of 2: rank 1" in first.words
    assert first.info[5]["ranks"]["batch"] == [BATCH // 2] * 2
    assert np.isnan(first.recorded[5:]).all()


# ------------------------------------------------------------------------------------------------ stopping and going on


def stopped_for_what_is_found():
    model = ddp(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(40, 16, 10, dtype=torch.float64)
    x[20] = float("nan")
    done = 0
    with trimtab.watch(model, optimizer, every=1, on_finding="stop", diagnose_every=5):
        for batch in x:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            done += 1
    dist.barrier()  # nobody is left behind
    return done


def test_all_ranks_stop_at_the_same_step(tmp_path):
    first, second = on_ranks(tmp_path, stopped_for_what_is_found)
    assert first == second
    assert 20 <= first <= 25


def two_sessions(store):
    for resume in (False, True):
        model = ddp(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with trimtab.watch(model, optimizer, every=3, store=store, resume=resume):
            for batch in torch.randn(20, 16, 10, dtype=torch.float64):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
        dist.barrier()


def test_a_resumed_run_goes_on_on_all_ranks(tmp_path):
    on_ranks(tmp_path, two_sessions, str(tmp_path / "run.db"))
    record = Record.open(tmp_path / "run.db")
    assert record.step_count == 40
    assert [step for step in record.steps.tolist() if step >= 20] == [21, 24, 27, 30, 33, 36, 39]
    assert all(info["ranks"]["missing"] == [] for info in record.info)
    assert record.series(record.site(0, "first", "output")).count.tolist() == [2 * 16 * 17] * len(record.steps)

"""Runs on several ranks: the record is that of one process with the whole batch, and the run is what it would be unwatched."""

import numpy as np
import pytest
import torch
from ranks import on_ranks
from trainings import (
    BATCH,
    both_parallel,
    ddp,
    fsdp_cpu,
    fsdp_half,
    fsdp_offloaded,
    hsdp,
    tensor_parallel,
    train,
)

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def alone():
    return train()


def same(a, b):
    assert a.losses == b.losses
    assert all(map(torch.equal, a.weights, b.weights))
    assert torch.equal(a.random, b.random)


def agree(merged, alone, tolerance=TOLERANCE, kinds=None):
    """Count, mean and spread of each site at each step, relative to the root mean square."""
    assert merged.rows.keys() == alone.rows.keys()
    for (name, kind), (steps, rows) in merged.rows.items():
        if kinds and kind not in kinds:
            continue
        expected_steps, expected = alone.rows[name, kind]
        np.testing.assert_array_equal(steps, expected_steps, err_msg=f"{name} {kind}")
        np.testing.assert_array_equal(rows[:, [0, 5, 6]], expected[:, [0, 5, 6]], err_msg=f"{name} {kind}")
        scale = np.hypot(expected[:, 1], expected[:, 2])[:, None]
        off = np.abs(rows[:, 1:5] - expected[:, 1:5]) / np.maximum(scale, 1e-12)
        assert off.max() < tolerance, (name, kind, off.max())


@pytest.mark.parametrize(
    ("wrap", "size", "share"),
    [
        pytest.param(ddp, 2, 0, id="ddp"),
        pytest.param(fsdp_cpu, 2, 0, id="fsdp"),
        pytest.param(fsdp_cpu, 3, 0, id="fsdp on three, unevenly"),
        pytest.param(fsdp_offloaded, 2, 0, id="fsdp, offloaded"),
        pytest.param(hsdp, 4, 0, id="copies of shards"),
        pytest.param(tensor_parallel, 2, 2, id="tensor parallel"),
        pytest.param(both_parallel, 4, 2, id="tensor and data parallel"),
    ],
)
def test_the_record_is_that_of_one_process(tmp_path, alone, wrap, size, share):
    clip = not share
    alone = alone if clip else train(clip=False)
    unwatched = on_ranks(tmp_path, train, wrap, watched=False, share=share, size=size, clip=clip)
    watched = on_ranks(tmp_path, train, wrap, share=share, size=size, clip=clip)
    for a, b in zip(watched, unwatched, strict=True):
        same(a, b)
    first = watched[0]
    assert "fault" not in first.facts
    agree(first, alone)
    np.testing.assert_allclose(first.recorded, alone.recorded, rtol=TOLERANCE)
    assert first.codes == alone.codes
    assert first.facts["ranks"]["size"] == size
    assert all(info["ranks"]["missing"] == [] and info["ranks"]["apart"] == [] for info in first.info)


def test_mixed_precision_under_sharding(tmp_path, alone):
    unwatched = on_ranks(tmp_path, train, fsdp_half, watched=False)
    watched = on_ranks(tmp_path, train, fsdp_half)
    for a, b in zip(watched, unwatched, strict=True):
        same(a, b)
    assert "fault" not in watched[0].facts
    agree(watched[0], alone, kinds={"input"})
    _, rows = watched[0].rows["first", "output"]
    expected = alone.rows["first", "output"][1]
    np.testing.assert_array_equal(rows[:, 0], expected[:, 0])
    np.testing.assert_allclose(rows[:, 2], expected[:, 2], rtol=2e-2)


@pytest.mark.parametrize(
    "options", [{"static_graph": True}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}]
)
def test_the_ways_of_data_parallelism(tmp_path, alone, options):
    wrap = lambda model: ddp(model, **options)  # noqa: E731
    first, _second = on_ranks(tmp_path, train, wrap)
    plain, _ = on_ranks(tmp_path, train, wrap, watched=False)
    same(first, plain)
    agree(first, alone)


def test_compiled_data_parallelism(tmp_path, alone):
    wrap = lambda model: torch.compile(ddp(model), backend="eager")  # noqa: E731
    first, _ = on_ranks(tmp_path, train, wrap)
    plain, _ = on_ranks(tmp_path, train, wrap, watched=False)
    same(first, plain)
    agree(first, alone)


def test_accumulated_micro_batches(tmp_path):
    whole = train(accumulate=2)
    first, _ = on_ranks(tmp_path, train, ddp, accumulate=2)
    agree(first, whole, kinds={"parameter", "parameter-gradient", "update"})
    assert first.info[0]["passes"] == 2


def test_most_steps_are_not_recorded(tmp_path):
    whole = train(every=5, steps=40)
    first, _second = on_ranks(tmp_path, train, ddp, every=5, steps=40)
    agree(first, whole)
    np.testing.assert_allclose(first.recorded, whole.recorded, rtol=TOLERANCE)
    assert len(first.recorded) == 40


def test_other_ranks_keep_what_they_saw_themselves(tmp_path):
    first, second = on_ranks(tmp_path, train, ddp)
    assert first.rows["first", "output"][1][0, 0] == BATCH * 17
    assert second.rows["first", "output"][1][0, 0] == BATCH * 17 / 2
    assert second.recorded == second.losses

"""The exchange between ranks, in one process: many ranks over one store, late ones, absent ones, a store that has gone."""

import time

import numpy as np
import pytest
import torch.distributed as dist

from trimtab.recording.parts import SPREAD, Part
from trimtab.recording.ranks import FAN, WAITING, Ranks, children, parent
from trimtab.recording.sites import SiteTable
from trimtab.stats import FIELDS


def crew(size, store=None):
    store = store or dist.HashStore()
    tables = [SiteTable() for _ in range(size)]
    for rank, table in enumerate(tables):
        for name in ("a", "b") if rank % 2 else ("b", "a"):  # not everybody meets the sites in the same order
            table.index(0, name, "output")
    return [Ranks(store, rank, size, table) for rank, table in enumerate(tables)]


def put(ranks, step):
    rank = ranks.rank
    rows = np.zeros((2, len(FIELDS)))
    a, b = (0, 1) if rank % 2 else (1, 0)
    rows[a, :2], rows[b, :2] = (1, rank), (2, -rank)  # count and mean
    about = {rank: {"batch": 1, "loss": float(rank), "copies": 1, "halves": False, "place": rank, "running": {}}}
    losses = [(step, float(rank), None, 1)]
    ranks.put(Part(str(step), [rank], losses, rows, np.full(2, SPREAD, np.int32), about=about), step)


@pytest.mark.parametrize("size", [1, 2, 16, 17, 256, 300, 5000])
def test_everybody_reports_to_somebody_and_in_the_end_to_the_first(size):
    assert parent(0) == 0
    for rank in range(1, size):
        assert parent(rank) < rank
        assert rank in children(parent(rank), size) if size < 400 else True
        steps = 0
        while rank:
            rank, steps = parent(rank), steps + 1
        assert steps <= 1 + np.log(size) / np.log(FAN)


@pytest.mark.parametrize("size", [2, 3, 16, 40, 300])
def test_the_first_rank_gets_all_parts(size):
    everybody = crew(size)
    for step in range(3):
        for ranks in everybody:
            put(ranks, step)
    for ranks in reversed(everybody[1:]):
        assert len(list(ranks.take())) == 3
    whole = list(everybody[0].take())
    assert [extra for _, extra in whole] == [0, 1, 2]
    for part, step in whole:
        assert sorted(part.ranks) == list(range(size))
        assert part.rows[0, 0] == 2 * size  # "b" is the first rank's first site
        assert part.rows[0, 1] == pytest.approx(-np.mean(range(size)))
        assert part.rows[1, 1] == pytest.approx(np.mean(range(size)))
        assert part.losses == [(step, pytest.approx(np.mean(range(size))), None, 1)]
    assert not everybody[0].pending


def test_nobody_waits_for_a_late_rank():
    first, second = crew(2)
    put(first, 0)
    begin = time.monotonic()
    assert list(first.take()) == []
    assert time.monotonic() - begin < 0.5
    assert first.pending
    put(second, 0)
    list(second.take())
    assert [part.ranks for part, _ in first.take()] == [[0, 1]]


def test_a_rank_that_has_left_is_not_waited_for():
    first, second = crew(2)
    put(second, 0)
    list(second.take())
    second.leave()
    for step in (0, 1):
        put(first, step)
    assert [part.ranks for part, _ in first.take()] == [[0, 1], [0]]
    assert first.last == {1: "0"}


def test_a_rank_that_is_further_on_is_not_waited_for():
    first, second = crew(2)
    put(second, 1)
    list(second.take())
    for step in (0, 1):
        put(first, step)
    assert [part.ranks for part, _ in first.take()] == [[0], [0, 1]]


def test_a_rank_that_died_is_waited_for_only_so_long():
    first, second = crew(2)
    put(second, 0)
    list(second.take())
    for step in range(WAITING + 3):
        put(first, step)
    found = list(first.take())
    assert found[0][0].ranks == [0, 1]
    assert len(found) >= 2, "the oldest are taken as they are"
    begin = time.monotonic()
    rest = list(first.take(patience=0.3))
    assert 0.2 < time.monotonic() - begin < 2
    assert all(part.ranks == [0] for part, _ in rest)
    assert not first.pending


def test_a_rank_that_nobody_watches_is_not_waited_for_at_the_end():
    first = Ranks(dist.HashStore(), 0, 4, SiteTable())
    put_alone = Part("0", [0], [])
    first.put(put_alone, None)
    begin = time.monotonic()
    assert len(list(first.take(patience=30))) == 1
    assert time.monotonic() - begin < 1


def test_what_nobody_takes_does_not_pile_up():
    store = dist.HashStore()
    second = Ranks(store, 1, 2, SiteTable())
    for step in range(500):
        second.put(Part(str(step), [1], []), None)
        list(second.take())
    assert store.num_keys() <= 2 * WAITING + 2


def test_a_store_that_has_gone_ends_the_exchange_and_nothing_else():
    class Gone:
        def __getattr__(self, name):
            def fail(*args):
                raise dist.DistNetworkError("connection reset")

            return fail

    first = Ranks(Gone(), 0, 2, SiteTable())
    first.put(Part("0", [0], []), "kept")
    assert [extra for _, extra in first.take(patience=30)] == ["kept"]
    assert "connection reset" in first.error
    first.leave()


def test_a_process_that_is_alone_has_no_ranks():
    assert Ranks.of_this_process(SiteTable()) is None

"""Parts of ranks: joined they are what one process would have seen, and they travel as bytes."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.recording.parts import COPIED, SHARED, SPREAD, Part, join, pack, unpack
from trimtab.recording.sites import SiteTable
from trimtab.stats import FIELDS, empty, update

INFINITE = float("inf")


def row(values) -> np.ndarray:
    return np.asarray(update(empty(), torch.as_tensor(values, dtype=torch.float64)))


def part(rank, rows, modes=SPREAD, losses=(), **about) -> Part:
    rows = np.array(rows).reshape(-1, len(FIELDS))
    bad = {int(site): ([rank], 1) for site in np.flatnonzero(rows[:, 6])}
    facts = {"batch": 4, "loss": 1.0, "copies": 2, "halves": False, "place": rank, "running": {}} | about
    return Part("3", [rank], list(losses), rows, np.full(len(rows), modes, np.int32), bad, about={rank: facts})


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), min_size=2, max_size=6))
def test_spread_sites_join_to_the_moments_of_all_values(shards):
    whole = join([part(rank, row(values)) for rank, values in enumerate(shards)])
    expected = row(list(itertools.chain(*shards)))
    np.testing.assert_allclose(whole.rows[0], expected, rtol=1e-9, atol=1e-6)
    assert whole.ranks == list(range(len(shards)))


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=9), st.integers(2, 5))
def test_shared_sites_count_once(values, ranks):
    whole = join([part(rank, row(values), SHARED) for rank in range(ranks)])
    np.testing.assert_array_equal(whole.rows[0], row(values))
    assert whole.apart == {}


def test_copied_sites_count_once_where_they_are_equal():
    same = join([part(0, row([1.0, 2.0]), COPIED, place=0), part(1, row([1.0, 2.0]), COPIED, place=0)])
    other = join([part(0, row([1.0, 2.0]), COPIED, place=0), part(1, row([3.0, 4.0]), COPIED, place=0)])
    assert same.rows[0, 0] == 2
    np.testing.assert_allclose(other.rows[0], row([1.0, 2.0, 3.0, 4.0]))


def test_copied_sites_of_ranks_with_other_data_count_each():
    values = [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]
    whole = join([part(rank, row(v), COPIED, place=rank // 2) for rank, v in enumerate(values)])
    np.testing.assert_allclose(whole.rows[0], row([1.0, 2.0, 3.0, 4.0]))


def test_of_groups_with_all_shards_each_the_first_stands_for_all():
    shards = [[1.0], [1.0], [5.0], [5.0]]  # ranks 0 and 2 share it out, and so do ranks 1 and 3
    for order in ([0, 1, 2, 3], [1, 0, 3, 2]):
        whole = join([part(rank, row(shards[rank]), rank % 2) for rank in order])
        np.testing.assert_allclose(whole.rows[0], row([1.0, 5.0]))


def test_a_site_that_only_one_rank_knows():
    known, unknown = part(0, [row([1.0]), row([2.0, 4.0])], SHARED), part(1, [row([1.0])], SHARED)
    for parts in ([known, unknown], [unknown, known]):
        whole = join(parts)
        np.testing.assert_array_equal(whole.rows[1], row([2.0, 4.0]))
        assert whole.apart == {}


@pytest.mark.parametrize("grouped", [False, True])
def test_ranks_that_differ_are_counted_once_each(grouped):
    a, b = row([1.0, -1.0]), row([1.5, -1.0])
    parts = [part(rank, b if rank in (2, 3) else a, SHARED) for rank in range(4)]
    whole = join([join(parts[:2]), join(parts[2:])] if grouped else parts)
    assert whole.apart == {0: ([2, 3], 2)}
    scale = np.sqrt((1.5**2 + 1) / 2)
    assert whole.off[0] == pytest.approx(0.25 / scale)  # of the means: 0.25; of the deviations as much
    np.testing.assert_array_equal(whole.rows[0], a)


def test_a_rank_that_differs_within_a_group_is_not_counted_again():
    a, b, c = row([1.0]), row([2.0]), row([3.0])
    group = join([part(2, b, SHARED), part(3, c, SHARED)])
    whole = join([part(0, a, SHARED), group])
    assert sorted(whole.apart[0][0]) == [2, 3]
    assert whole.apart[0][1] == 2


def test_values_that_are_no_numbers_name_their_ranks():
    whole = join([part(0, row([1.0])), part(1, row([float("nan"), 1.0])), part(2, row([INFINITE]))])
    assert whole.bad == {0: ([1, 2], 2)}
    assert whole.rows[0, 6] == 2
    assert whole.rows[0, 0] == 2


def test_the_loss_of_a_step_is_the_mean_over_the_ranks():
    parts = [part(rank, row([0.0]), losses=[(7, loss, 0.1, 1)]) for rank, loss in enumerate([1.0, 2.0, 6.0])]
    assert join(parts).losses == [(7, 3.0, 0.1, 1)]
    grouped = join([parts[0], join(parts[1:])])
    assert grouped.losses[0][1] == pytest.approx(3.0)


def test_a_loss_that_a_rank_has_not_seen_is_left_out():
    parts = [
        part(0, row([0.0]), losses=[(7, None, None, 0)]),
        part(1, row([0.0]), losses=[(7, 2.0, 0.1, 1), (8, 4.0, 0.1, 1)]),
    ]
    assert join(parts).losses == [(7, 2.0, 0.1, 1), (8, 4.0, 0.1, 1)]


def test_running_statistics_are_compared_with_the_first_ranks():
    running = [
        {"0:bn": [[0.0, 1.0], [1.0, 4.0]]},
        {"0:bn": [[0.5, 2.0], [4.0, 16.0]]},
        {"0:bn": [[0.0, 1.0], [1.0, 4.0]]},
    ]
    whole = join([part(rank, row([0.0]), running=entry) for rank, entry in enumerate(running)])
    ((layer, rank, shift, ratio),) = whole.into({"step": (3, 0.0, {}, None), "losses": []}, 3)["step"][2]["ranks"][
        "running"
    ]
    assert (layer, rank, ratio) == ("0:bn", 1, pytest.approx(4.0))
    assert shift == pytest.approx((0.5 / np.sqrt(2.5) + 1 / np.sqrt(10)) / 2)


def test_a_part_travels_as_bytes_into_another_numbering():
    theirs, mine = SiteTable(), SiteTable()
    for name in ("a", "b", "c"):
        theirs.index(0, name, "output")
    for name in ("c", "x", "a"):
        mine.index(0, name, "output")
    sent = part(5, [row([1.0, 2.0]), empty(), row([float("nan"), 3.0])], losses=[(3, float("nan"), None, 1)])
    sent.apart, sent.off = {2: ([5], 1)}, {2: 0.25}
    known: list[int] = []

    def number(new):
        known.extend(mine.index(model, name, kind) for _, model, name, kind in new)
        return known

    read = unpack(pack(sent, theirs.since(0)), number)
    assert (read.key, read.ranks, read.about) == (sent.key, sent.ranks, sent.about)
    np.testing.assert_array_equal(read.rows[2], sent.rows[0])
    np.testing.assert_array_equal(read.rows[0], sent.rows[2])
    assert not read.rows[1].any()
    assert read.bad == {0: ([5], 1)}
    assert read.apart == {0: ([5], 1)}
    assert read.off == {0: 0.25}
    assert np.isnan(read.losses[0][1])
    assert read.losses[0][2:] == (None, 1)
    again = unpack(pack(sent, []), number)  # the sites are known by now
    np.testing.assert_array_equal(again.rows, read.rows)


ROWS = (
    st.one_of(  # unseen, equal to others' as likely as not, with values that are no numbers, with a mean that is none
        st.just(empty()),
        st.sampled_from([row([1.0, 2.0]), row([1.0, 2.5]), row([float("nan"), 1.0]), row([INFINITE])]),
        st.just(np.array([2.0, float("nan"), 1.0, 1.0, 1.0, 0.0, 0.0])),
    )
)


@settings(deadline=None)
@given(st.data(), st.integers(2, 5), st.integers(1, 6), st.booleans())
def test_what_has_travelled_joins_as_what_has_not(data, ranks, sites, tree):
    modes = data.draw(st.lists(st.sampled_from([SPREAD, SHARED, COPIED, 1]), min_size=sites, max_size=sites))
    parts = []
    for rank in range(ranks):
        known = data.draw(st.integers(0, sites))  # the others appear later
        rows = [data.draw(ROWS) for _ in range(known)]
        parts.append(part(rank, rows, np.array(modes[:known], np.int32), place=data.draw(st.integers(0, 1))))

    def sent(one):
        return unpack(pack(one, []), lambda new: list(range(len(one.rows))))

    if tree:
        expected = join([parts[0], join(parts[1:])])
        found = join([parts[0], sent(join([parts[1], *map(sent, parts[2:])]))])
    else:
        expected, found = join(parts), join([parts[0], *map(sent, parts[1:])])
    assert found.ranks == expected.ranks
    assert (found.bad, found.apart) == (expected.bad, expected.apart)
    assert found.off == pytest.approx(expected.off, nan_ok=True)
    np.testing.assert_array_equal(found.rows, expected.rows)
    seen = found.rows[:, 0] + found.rows[:, 6] > 0
    np.testing.assert_array_equal(found.modes[seen], expected.modes[seen])


def test_shared_rows_that_are_no_numbers_on_both_ranks_are_equal():
    same = np.array([2.0, float("nan"), 1.0, 1.0, 1.0, 0.0, 0.0])
    other = np.array([2.0, float("nan"), 2.0, 1.0, 1.0, 0.0, 0.0])
    assert join([part(0, same, SHARED), part(1, same, SHARED)]).apart == {}
    assert join([part(0, same, SHARED), part(1, other, SHARED)]).apart == {0: ([1], 1)}


def test_a_part_without_a_step_travels_too():
    read = unpack(pack(Part("9-losses", [1], [(8, 1.0, 0.1, 1), (9, 2.0, 0.1, 1)]), []), lambda new: [])
    assert read.losses == [(8, 1.0, 0.1, 1), (9, 2.0, 0.1, 1)]
    assert len(read.rows) == 0

"""Any split of the data, merged in any order or as a tree, over threads, Dask tasks or ranks, is one pass over all of it."""

import functools
import pickle
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

from trimtab.errors import NormalizationError
from trimtab.norms.standardizer import LostVarianceWarning, Standardizer


def same(a, b, rtol=1e-11):
    np.testing.assert_array_equal(a.counts_, b.counts_)
    np.testing.assert_allclose(a.n_samples_seen_, b.n_samples_seen_, rtol=1e-13)
    scale = np.where(b.var_ > 0, np.sqrt(b.var_), 1)
    rounding = 1e-12 * scale + np.finfo(float).eps * np.abs(b.mean_)  # float64 holds the mean no better
    assert (np.abs(a.mean_ - b.mean_) <= rounding).all()
    np.testing.assert_allclose(a.var_, b.var_, rtol=rtol)


def exact(x, weight):
    wide = x.astype(np.longdouble)
    shares = (weight[:, None] * ~np.isnan(x)).astype(np.longdouble)
    mean = np.nansum(shares * wide, 0) / shares.sum(0)
    return mean, np.nansum(shares * np.square(wide - mean), 0) / shares.sum(0)


@st.composite
def splits(draw):
    """Rows of some scale and offset, with gaps and weights, and a random tree that merges parts of them."""
    n = draw(st.integers(2, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = draw(st.sampled_from([0.0, -3.0, 1e4, 1e8])) + draw(st.sampled_from([1.0, 1e-3, 50.0])) * rng.standard_normal((
        n,
        3,
    ))
    x[rng.random(x.shape) < draw(st.sampled_from([0.0, 0.3]))] = np.nan
    x[0] = x[1] = np.nan_to_num(x[0], nan=draw(st.sampled_from([0.0, 7.0])))  # no column without a value
    weight = rng.random(n) + 0.1 if draw(st.booleans()) else np.ones(n)
    owner = rng.integers(0, draw(st.integers(1, 8)), n)  # parts may interleave, and some may be empty
    return x, weight, owner, rng


@settings(max_examples=150, deadline=None)
@given(splits())
def test_any_split_merges_to_one_pass(case):
    x, weight, owner, rng = case
    whole = Standardizer().fit(x, sample_weight=weight)
    parts = []
    for part in range(owner.max() + 1):
        rows = owner == part
        one = Standardizer()
        parts.append(one.fit(x[rows], sample_weight=weight[rows]) if rows.any() else one)
    same(parts[0].merge(*parts[1:]), whole)
    while len(parts) > 1:  # a random tree
        i, j = rng.choice(len(parts), 2, replace=False)
        if all(not hasattr(one, "mean_") for one in (parts[i], parts[j])):
            parts.pop(i)
            continue
        merged = parts[i].merge(parts[j])
        parts = [one for k, one in enumerate(parts) if k not in {i, j}] + [merged]
    same(parts[0], whole)
    mean, variance = exact(x, weight)
    spread = np.where(parts[0].constant_, 1, np.sqrt(parts[0].var_))
    rounding = 1e-12 + np.finfo(float).eps * np.abs(parts[0].mean_) / spread
    assert (np.abs(parts[0].mean_ - mean) / spread <= rounding).all()
    np.testing.assert_allclose(parts[0].var_, np.asarray(variance, float), rtol=1e-9, atol=1e-22)


def test_naive_merges_lose_what_ours_keeps():
    rng = np.random.default_rng(0)
    x = 1e8 + rng.standard_normal((3000, 1))
    parts = np.split(x, [10, 500, 900])
    variance = float(exact(x, np.ones(3000))[1][0])
    by_squares = sum((one**2).sum() for one in parts) / 3000 - (sum(one.sum() for one in parts) / 3000) ** 2
    assert abs(by_squares / variance - 1) > 0.5
    assert Standardizer().merge(*(Standardizer().fit(one) for one in parts)).var_[0] == pytest.approx(
        variance, rel=1e-12
    )

    drifting = [x[k * 100 : k * 100 + 100] + k for k in range(30)]
    whole = float(exact(np.concatenate(drifting), np.ones(3000))[1][0])
    assert (
        np.mean([one.var() for one in drifting]) < 0.05 * whole
    )  # an average of variances forgets the spread of the means
    assert Standardizer().merge(*(Standardizer().fit(one) for one in drifting)).var_[0] == pytest.approx(
        whole, rel=1e-12
    )


def test_merging_changes_nobody_and_keeps_the_parameters_of_the_first():
    rng = np.random.default_rng(0)
    a = Standardizer(with_mean=False).fit(rng.standard_normal((10, 2)))
    b = Standardizer().fit(rng.standard_normal((20, 2)))
    before = pickle.dumps((a, b))
    merged = a.merge(b)
    assert pickle.dumps((a, b)) == before
    assert merged.get_params() == a.get_params() != b.get_params()
    merged.partial_fit(rng.standard_normal((5, 2)))
    assert pickle.dumps((a, b)) == before
    assert (merged.n_samples_seen_, a.n_samples_seen_, b.n_samples_seen_) == (35, 10, 20)


def test_one_that_has_seen_nothing_is_neutral():
    a = Standardizer().fit(np.random.default_rng(0).standard_normal((10, 2)))
    for merged in (
        a.merge(),
        a.merge(Standardizer()),
        Standardizer().merge(a),
        Standardizer().merge(Standardizer(), a),
    ):
        np.testing.assert_array_equal(merged.mean_, a.mean_)
        np.testing.assert_array_equal(merged.var_, a.var_)
    with pytest.raises(NotFittedError):
        Standardizer().merge(Standardizer())


def test_what_cannot_be_merged():
    a, b = Standardizer().fit(np.eye(2)), Standardizer().fit(np.eye(3))
    with pytest.raises(NormalizationError, match=r"over \[2, 3\] features"):
        a.merge(b)
    with pytest.raises(NormalizationError, match="given a ndarray; another Standardizer"):
        a.merge(np.eye(2))
    named, other = Standardizer().fit(np.eye(2)), Standardizer().fit(np.eye(2))
    named.feature_names_in_ = np.array(["a", "b"], dtype=object)
    other.feature_names_in_ = np.array(["b", "a"], dtype=object)
    with pytest.raises(NormalizationError, match=r"\['a', 'b'\] and \['b', 'a'\]"):
        named.merge(other)
    assert list(a.merge(named).feature_names_in_) == ["a", "b"]


def test_the_warning_belongs_to_the_caller_of_merge():
    with pytest.warns(LostVarianceWarning):
        part = Standardizer().fit((1e8 + 3 * np.random.default_rng(0).standard_normal((500, 1))).astype(np.float32))
    with pytest.warns(LostVarianceWarning) as seen:
        part.merge(Standardizer())
    assert seen[0].filename == __file__


def partitions(n=9, rows=400):
    rng = np.random.default_rng(4)
    return [1e5 * k + rng.standard_normal((rows + k, 4)) * [1, 2, 3, 4] for k in range(n)]


def test_partitions_in_threads():
    parts = partitions()
    with ThreadPoolExecutor(3) as pool:
        fitted = list(pool.map(lambda part: Standardizer().fit(part), parts))
    same(functools.reduce(Standardizer.merge, fitted), Standardizer().fit(np.concatenate(parts)))


# ---------------------------------------------------------------------------------------------------- ranks


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_group_of_one(alone):
    a = Standardizer().fit(np.random.default_rng(0).standard_normal((10, 2)))
    np.testing.assert_array_equal(a.merge_ranks().var_, a.var_)
    with pytest.raises(NotFittedError):
        Standardizer().merge_ranks()


def test_no_group():
    with pytest.raises(NormalizationError, match="init_process_group"):
        Standardizer().fit(np.eye(2)).merge_ranks()


RANK = """
import sys
import numpy as np, torch
import torch.distributed as dist
from trimtab.errors import NormalizationError
from trimtab.norms.standardizer import Standardizer
torch.set_num_threads(1)
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
x = torch.load(f"{folder}/x.pt")
mine = Standardizer()
for part in x[rank::2].split(7):
    mine.partial_fit(part)
merged = mine.merge_ranks()
np.testing.assert_array_equal(merged.merge_ranks().mean_, merged.merge(merged).mean_)
assert mine.merge_ranks().n_samples_seen_ == len(x)  # calling it again counts nothing twice
late = Standardizer() if rank == 0 else mine  # a rank without data
try:
    (mine if rank else Standardizer().fit(np.eye(5))).merge_ranks()
    raise SystemExit("no error")
except NormalizationError as error:
    assert "cannot be merged" in str(error)
np.savez(f"{folder}/{rank}.npz", mean=merged.mean_, var=merged.var_, only=late.merge_ranks().mean_)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_agree_to_the_bit_and_with_one_pass(tmp_path):
    x = 1e6 + torch.randn(101, 3, dtype=torch.float64)
    torch.save(x, tmp_path / "x.pt")
    program = textwrap.dedent(RANK)
    ranks = [
        subprocess.Popen([sys.executable, "-c", program, str(rank), str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for rank in ranks:
        _, err = rank.communicate(timeout=200)
        assert rank.returncode == 0, err
    first, second = (np.load(tmp_path / f"{rank}.npz") for rank in range(2))
    for name in ("mean", "var", "only"):
        assert first[name].tobytes() == second[name].tobytes()
    np.testing.assert_allclose(first["var"], x.var(0, correction=0).numpy(), rtol=1e-9)
    np.testing.assert_allclose(first["mean"], x.mean(0).numpy(), rtol=1e-14)
    np.testing.assert_allclose(first["only"], x[1::2].mean(0).numpy(), rtol=1e-14)

"""Digits: large means, float32 storage, constant features, far-off shifts; on both paths, against long double arithmetic."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from trimtab.norms.standardizer import LostVarianceWarning, Standardizer, estimator
from trimtab.norms.standardizer._dense import compiled, sample
from trimtab.norms.standardizer._tensors import device_sums

CHUNK = 8192


@pytest.fixture(params=["numba", "numpy", "device"])
def path(request, monkeypatch):
    """How sums are taken; the path of other devices runs on the CPU here."""
    if request.param == "numba":
        pytest.importorskip("numba")
    monkeypatch.setenv("TRIMTAB_NO_NUMBA", "0" if request.param == "numba" else "1")
    assert (compiled() is not None) == (request.param == "numba")
    if request.param == "device":

        def on_device(values, weight, grain):
            return device_sums(torch.from_numpy(np.array(values)), weight, grain)

        monkeypatch.setattr("trimtab.norms.standardizer.estimator.dense_sums", on_device)
    return request.param


def streamed(values):
    fitted = Standardizer()
    for start in range(0, len(values), CHUNK):
        fitted.partial_fit(values[start : start + CHUNK, None])
    return fitted


def truth(values):
    wide = values.astype(np.longdouble)
    return float(wide.mean()), float(np.square(wide - wide.mean()).mean())


def in_dtype(values):
    return float((values * values).mean() - values.mean() ** 2)


def pooled_by_torch(values):
    norm = torch.nn.BatchNorm1d(1, momentum=None, affine=False, dtype=torch.from_numpy(values[:1]).dtype)
    for start in range(0, len(values), CHUNK):
        norm(torch.from_numpy(values[start : start + CHUNK, None]))
    return float(norm.running_var)


BASE = np.random.default_rng(0).standard_normal(200_000)
TABLE = {  # offset, dtype: the variance of the stored numbers, and who is how far off
    "1e8 f64": (1e8, "float64", 1.002401, {in_dtype: 0.9, pooled_by_torch: 1e-3}),
    "1e6 f32": (1e6, "float32", 1.002854, {in_dtype: 1e5, pooled_by_torch: 800, np.var: 3e-3}),
    "1e8 f32": (1e8, "float32", 0.00383999, {in_dtype: 1e8, pooled_by_torch: 1e9, np.var: 6e4}),
}


@pytest.mark.filterwarnings("ignore::trimtab.norms.standardizer.LostVarianceWarning")
@pytest.mark.parametrize("row", TABLE)
def test_the_precision_table(row, path):
    offset, kind, known, wrong = TABLE[row]
    values = (offset + BASE).astype(kind)
    mean, variance = truth(values)
    assert variance == pytest.approx(known, rel=1e-6)
    for method, error in wrong.items():  # first that the data is hard
        assert abs(method(values) / variance - 1) > error
    fitted = streamed(values)
    assert fitted.var_[0] == pytest.approx(variance, rel=1e-8)
    assert fitted.mean_[0] == pytest.approx(mean, rel=1e-15)
    assert fitted.merge(streamed(values[::-1])).var_[0] == pytest.approx(variance, rel=1e-8)


def test_the_standardized_mean_is_zero_where_float32_cannot_hold_the_mean():
    values = (1e6 + BASE[:, None]).astype(np.float32)
    ours = Standardizer().fit(values)
    theirs = StandardScaler().fit(values).transform(values)
    for z in (ours.transform(values), ours.transform(torch.from_numpy(values)).numpy()):
        assert abs(z.mean(dtype=np.float64)) < 1e-7
        assert z.std(dtype=np.float64) == pytest.approx(1, abs=1e-6)
    shifted = (1e6 + 0.03 + BASE[:, None]).astype(np.float32)  # the mean now lies between two float32
    again = StandardScaler().fit(shifted).transform(shifted)
    assert max(abs(theirs.mean(dtype=np.float64)), abs(again.mean(dtype=np.float64))) > 1e-2
    assert abs(Standardizer().fit(shifted).transform(shifted).mean(dtype=np.float64)) < 1e-7
    np.testing.assert_array_equal(ours.inverse_transform(ours.transform(values)), values)


# ---------------------------------------------------------------------------------------------------- the warning


def test_float32_that_has_lost_the_variance_is_told_once(path):
    values = (1e8 + 2 * BASE[: 4 * CHUNK]).astype(np.float32)[:, None]
    fine = np.hstack([values * 0 + 1, BASE[: 4 * CHUNK, None]]).astype(np.float32)
    data = np.hstack([fine, values])
    fitted = Standardizer()
    with pytest.warns(LostVarianceWarning, match=r"1 feature\(s\), first number 2.* lie 8 apart .* only 1.7") as seen:
        fitted.partial_fit(data[:CHUNK])
    for start in range(CHUNK, len(values), CHUNK):
        fitted.partial_fit(data[start : start + CHUNK])  # every warning is an error here
    assert len(seen) == 1
    assert seen[0].filename == __file__
    np.testing.assert_array_equal(
        fitted.constant_, [True, False, True]
    )  # a few values one spacing off are not a signal
    assert fitted.scale_[2] == 1


def test_the_warning_comes_at_one_hundredth_of_the_variance():
    # 1e7 + N(0, s): float32 stores whole numbers there. Sheppard: the variance grows by 1/12, a hundredth of it at s = 2.87.
    for std, expected in ((2.7, True), (3.1, False)):
        values = (1e7 + std * BASE[:50_000, None]).astype(np.float32)
        grown = values.astype(np.float64).var() - np.var(std * BASE[:50_000])
        assert grown == pytest.approx(1 / 12, rel=0.15)
        if expected:
            with pytest.warns(LostVarianceWarning):
                fitted = Standardizer().fit(values)
        else:
            fitted = Standardizer().fit(values)  # every warning is an error here
        assert not fitted.constant_.any()


@pytest.mark.parametrize(
    "make",
    [lambda: 1e8 + BASE, lambda: (1e6 + BASE).astype("f4"), lambda: BASE.astype("f4")],
)
def test_no_warning_where_nothing_was_lost(make):
    fitted = Standardizer().fit(make()[:, None])  # every warning is an error here
    assert fitted.var_[0] == pytest.approx(BASE.var(), rel=0.01)


@pytest.mark.parametrize(("mean", "rows"), [(1e8, 1000), (-1e8, 1000), (1e12, 2)])
def test_one_number_left_of_a_unit_variance_is_told(mean, rows, path):
    stored = (mean + BASE[:rows, None]).astype(np.float32)
    assert len(np.unique(stored)) == 1
    data = np.hstack([BASE[:rows, None].astype(np.float32), stored])
    fitted = Standardizer()
    with pytest.warns(
        LostVarianceWarning, match=r"1 feature\(s\), first number 1: .* If .* not constant before"
    ) as seen:
        fitted.partial_fit(data)
    fitted.partial_fit(data)  # every warning is an error here
    assert len(seen) == 1
    assert fitted.constant_.tolist() == [False, True]


@pytest.mark.parametrize("value", [0, 1, -1, 255, 4095, 1e6, 6e7, 20261231])
@pytest.mark.parametrize("kind", ["f4", "f8", "i8"])
def test_ordinary_constants_are_no_reason_to_warn(value, kind, path):
    assert Standardizer().fit(np.full((100, 1), value, kind)).constant_.all()  # every warning is an error here


def test_nor_is_one_value_or_one_that_float64_holds(path):
    for data in (np.full((1, 1), 1e8, "f4"), np.full((100, 1), 1e8), np.full((100, 1), 4095, "f2")):
        assert Standardizer().fit(data).constant_.all()


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_counts_with_its_own_spacing(kind):
    x = torch.from_numpy(BASE[:4096, None])
    stored = (x + 100).to(kind)
    with pytest.warns(LostVarianceWarning, match=r"every value is stored as 16384"):
        Standardizer().fit((torch.from_numpy(BASE[:100, None]) + 16384).to(kind))
    if kind == torch.bfloat16:  # half a unit apart at 100: 2 % of the variance
        with pytest.warns(LostVarianceWarning, match=r"lie 0.5 apart"):
            fitted = Standardizer().fit(stored)
    else:
        fitted = Standardizer().fit(stored)
    assert fitted.var_[0] == pytest.approx(stored.double().var(correction=0).item(), rel=1e-6)


# ---------------------------------------------------------------------------------------------------- constants


@pytest.mark.filterwarnings("ignore::trimtab.norms.standardizer.LostVarianceWarning")  # of 1e30
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("value", [0.0, 0.1, -1 / 3, 1e8 / 3, 1e-30, 1e30, 255.0])
def test_a_constant_has_no_variance_at_all(value, kind, path):
    fitted = Standardizer()
    for rows in (1, 7, 1000, 33):
        fitted.partial_fit(np.full((rows, 3), value, kind))
    np.testing.assert_array_equal(fitted.var_, 0)
    np.testing.assert_array_equal(fitted.mean_, np.asarray(value, kind).astype(float))
    np.testing.assert_array_equal(fitted.scale_, 1)
    assert fitted.constant_.all()
    np.testing.assert_array_equal(fitted.transform(np.full((2, 3), value, kind)), 0)


@pytest.mark.filterwarnings("ignore::trimtab.norms.standardizer.LostVarianceWarning")
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_one_number_rounded_in_two_ways_is_constant_and_three_are_not(kind, path):
    rng = np.random.default_rng(0)
    one = kind(0.3)
    above = np.nextafter(one, kind(1))
    for share in (0.5, 0.01):
        two = np.where(rng.random((5000, 1)) < share, one, above)
        assert Standardizer().fit(two).constant_.all()
    grid = one + (above - one) * rng.integers(-4, 5, (5000, 1)).astype(kind)
    fitted = Standardizer().fit(grid)
    assert not fitted.constant_.any()
    assert fitted.var_[0] == pytest.approx(truth(grid)[1], rel=1e-6)


def test_what_float64_resolves_is_not_called_constant_however_long_the_stream(path):
    # scikit-learn's bound n * eps * mean grows with n: it calls this feature constant.
    values = 1e8 + 1e-7 * BASE[:50_000]
    assert StandardScaler().fit(values[:, None]).scale_[0] == 1
    fitted = streamed(values)
    assert fitted.scale_[0] == pytest.approx(np.sqrt(truth(values)[1]), rel=1e-9)
    z = fitted.transform(values[:, None])
    assert abs(z.mean()) < 1e-9
    assert z.std() == pytest.approx(1, abs=1e-9)


# ---------------------------------------------------------------------------------------------------- hard data


def hard_cases():
    rng = np.random.default_rng(3)
    n = 40_000
    outlier = rng.standard_normal(n)
    outlier[0] = 1e8  # row 0 is among those that the shift is taken from
    sampled = rng.standard_normal(n)
    for start in range(0, n, CHUNK):  # only the rows that the shift is taken from are far off, in every chunk
        sampled[start + sample(min(CHUNK, n - start))] += 1e7
    jump = rng.standard_normal(n)
    jump[: n // 2] = 0
    jump[n // 2 :] += 1e6
    return {
        "an outlier in the sample": outlier,
        "outliers for a sample": sampled,
        "sorted": np.sort(rng.standard_normal(n)) * 1e3 + 1e4,
        "a clock": 1.7e9 + 60.0 * np.arange(n),
        "zeros first": jump,
        "rare": (rng.random(n) < 1e-3).astype(float),
        "tiny": 1e-30 * rng.standard_normal(n),
        "huge": 1e30 * rng.standard_normal(n),
        "tiny about one": 1 + 1e-6 * rng.standard_normal(n),
        "heavy tails": rng.standard_t(1.5, n),
    }


@pytest.mark.filterwarnings("ignore::trimtab.norms.standardizer.LostVarianceWarning")
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("case", hard_cases())
def test_hard_columns(case, kind, path):
    values = hard_cases()[case].astype(kind)
    mean, variance = truth(values)
    fitted = streamed(values)
    assert fitted.var_[0] == pytest.approx(variance, rel=1e-7)
    assert fitted.mean_[0] == pytest.approx(mean, rel=1e-7, abs=1e-8 * np.sqrt(variance))


@pytest.mark.parametrize(
    ("n", "d"), [(1, 1), (1, 40), (2, 3), (7, 5), (513, 1), (1031, 3), (4099, 17), (1500, 64), (300, 3000)]
)
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_every_shape(n, d, kind, path):
    rng = np.random.default_rng(n + d)
    x = (rng.standard_normal((n, d)) + rng.integers(-50, 50, d)).astype(kind)
    x[rng.random(x.shape) < (0.001 if n > 100 else 0.3)] = np.nan
    weight = rng.random(n)
    wide = x.astype(np.float64)
    for weights, order in itertools.product((None, weight), "CF"):
        sums = estimator.dense_sums(np.asarray(x, order=order), weights, 0.0)
        shares = (np.ones(n) if weights is None else weights)[:, None] * ~np.isnan(wide)
        total = shares.sum(0)
        safe = np.where(total > 0, total, 1)
        mean = np.where(total > 0, np.nansum(shares * wide, 0) / safe, np.nan)
        variance = np.where(total > 0, np.nansum(shares * np.square(wide - mean), 0) / safe, np.nan)
        np.testing.assert_array_equal(sums.count, (~np.isnan(x)).sum(0))
        np.testing.assert_allclose(sums.weight, total, rtol=1e-12)
        np.testing.assert_allclose(sums.mean, mean, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(sums.variance, variance, rtol=1e-6, atol=1e-12)

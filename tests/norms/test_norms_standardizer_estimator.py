"""`Standardizer` as an estimator: scikit-learn's own checks, its own scaler's numbers, and errors that say what to do."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from trimtab.errors import NormalizationError, TrimtabError
from trimtab.norms.standardizer import LostVarianceWarning, Standardizer

# What scikit-learn's checks need besides scikit-learn; the slow test below has the second.
LEFT_OUT = ("pandas is not installed", "SCIPY_ARRAY_API is not set")
OPTIONS = [{}, {"with_mean": False}, {"with_std": False}, {"with_mean": False, "with_std": False}]


def failures(results, allowed):
    return [
        (one["check_name"], repr(one["exception"]))
        for one in results
        if one["status"] != "passed" and not (one["status"] == "skipped" and str(one["exception"]).startswith(allowed))
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")  # the checks fit data that deserves a warning
@pytest.mark.parametrize("options", OPTIONS[:3])
def test_scikit_learns_checks_pass(options):
    results = check_estimator(Standardizer(**options), on_fail=None, on_skip=None)
    assert len(results) > 40
    assert failures(results, LEFT_OUT) == []


@pytest.mark.slow
def test_scikit_learns_checks_pass_whole():
    program = """
import json
from sklearn.utils.estimator_checks import check_estimator
from trimtab.norms.standardizer import Standardizer
for options in ({}, {"with_mean": False}):
    results = check_estimator(Standardizer(**options), on_fail=None, on_skip=None)
    print(json.dumps([[one["check_name"], one["status"], str(one["exception"])] for one in results]))
"""
    environment = os.environ | {"SCIPY_ARRAY_API": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        results = [{"check_name": a, "status": b, "exception": c} for a, b, c in json.loads(line)]
        assert failures(results, LEFT_OUT[:1]) == []
        assert sum(one["status"] == "skipped" for one in results) <= 1


def data(rng, kind, n=300, d=5):
    x = rng.standard_normal((n, d)) * np.arange(1, d + 1) + 10 * np.arange(d)
    return (np.round(x) if np.dtype(kind).kind == "i" else x).astype(kind)


@pytest.mark.parametrize("kind", ["float64", "float32", "int32"])
@pytest.mark.parametrize("options", OPTIONS)
def test_numbers_are_those_of_scikit_learn(options, kind):
    rng = np.random.default_rng(0)
    x = data(rng, kind)
    ours, theirs = Standardizer(**options).fit(x), StandardScaler(**options).fit(x)
    if theirs.mean_ is not None:
        np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=1e-6)
    if theirs.scale_ is None:
        assert ours.scale_ is None
    else:
        np.testing.assert_allclose(ours.var_, theirs.var_, rtol=1e-6)
        np.testing.assert_allclose(ours.scale_, theirs.scale_, rtol=1e-6)
    assert ours.n_samples_seen_ == theirs.n_samples_seen_ == 300
    z = ours.transform(x)
    assert z.dtype == theirs.transform(x).dtype
    tolerance = 1e-5 if kind == "float32" else 1e-12
    np.testing.assert_allclose(z, theirs.transform(x), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(ours.inverse_transform(z), x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("no_numba", ["0", "1"])
def test_missing_values_and_weights_are_those_of_scikit_learn(monkeypatch, no_numba):
    monkeypatch.setenv("TRIMTAB_NO_NUMBA", no_numba)
    rng = np.random.default_rng(1)
    x = data(rng, "float64", n=2000)
    x[rng.random(x.shape) < 0.2] = np.nan
    weight = rng.integers(0, 4, 2000) / 2
    for extra in ({}, {"sample_weight": weight}):
        ours, theirs = Standardizer().fit(x, **extra), StandardScaler().fit(x, **extra)
        np.testing.assert_allclose(ours.mean_, theirs.mean_, rtol=1e-12)
        np.testing.assert_allclose(ours.var_, theirs.var_, rtol=1e-12)
        np.testing.assert_allclose(ours.n_samples_seen_, theirs.n_samples_seen_)
        np.testing.assert_allclose(ours.transform(x), theirs.transform(x), atol=1e-12)
    assert ours.counts_.dtype == np.int64
    np.testing.assert_array_equal(ours.counts_, ((weight > 0)[:, None] & ~np.isnan(x)).sum(0))


def test_weights_mean_repetition():
    rng = np.random.default_rng(2)
    x, repeats = rng.standard_normal((50, 3)), rng.integers(0, 5, 50)
    weighted = Standardizer().fit(x, sample_weight=repeats)
    repeated = Standardizer().fit(np.repeat(x, repeats, axis=0))
    np.testing.assert_allclose(weighted.mean_, repeated.mean_, rtol=1e-13)
    np.testing.assert_allclose(weighted.var_, repeated.var_, rtol=1e-13)
    scaled = Standardizer().fit(x, sample_weight=0.1 * repeats)  # the unit of the weights is free
    np.testing.assert_allclose(scaled.scale_, repeated.scale_, rtol=1e-12)


def test_a_feature_without_any_value_stays_unknown():
    x = np.array([[1.0, np.nan], [3.0, np.nan]])
    fitted = Standardizer().fit(x)
    np.testing.assert_array_equal(fitted.counts_, [2, 0])
    np.testing.assert_array_equal(fitted.mean_, [2.0, np.nan])
    np.testing.assert_array_equal(fitted.transform(x)[:, 0], [-1.0, 1.0])
    fitted.partial_fit(np.array([[np.nan, 5.0], [np.nan, 7.0]]))  # and is known once there are values
    np.testing.assert_array_equal(fitted.mean_, [2.0, 6.0])
    np.testing.assert_array_equal(fitted.n_samples_seen_, 2)


def test_standardizing_in_place():
    x = np.random.default_rng(0).standard_normal((20, 3))
    before = x.copy()
    fitted = Standardizer(copy=False).fit(x)
    np.testing.assert_array_equal(x, before)
    z = fitted.transform(x)
    assert z is x
    assert fitted.inverse_transform(z) is x
    np.testing.assert_allclose(x, before, atol=1e-14)
    assert fitted.transform(x, copy=True) is not x


def test_names_clones_and_pickles():
    x = np.random.default_rng(0).standard_normal((20, 2))
    fitted = Standardizer(feature_dim=-1).fit(x)
    assert list(fitted.get_feature_names_out(["a", "b"])) == ["a", "b"]
    assert clone(fitted).get_params() == fitted.get_params()
    assert not hasattr(clone(fitted), "mean_")
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(x), fitted.transform(x))
    np.testing.assert_array_equal(again.partial_fit(x + 1).mean_, fitted.partial_fit(x + 1).mean_)


def test_fit_forgets_and_partial_fit_does_not():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((30, 2)), 5 + rng.standard_normal((20, 2))
    both = np.concatenate([a, b])
    np.testing.assert_allclose(Standardizer().fit(a).partial_fit(b).mean_, both.mean(0), rtol=1e-13)
    np.testing.assert_allclose(Standardizer().fit(a).fit(b).mean_, b.mean(0), rtol=1e-13)
    assert Standardizer().fit(a).fit(np.ones((3, 7))).n_features_in_ == 7


def test_targets_in_a_regressor():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 3)) * [1, 100, 1e4] + [0, 5, -1e5]
    y = x @ [1.0, 0.2, 0.003] + 1e6
    model = TransformedTargetRegressor(make_pipeline(Standardizer(), Ridge(1e-9)), transformer=Standardizer()).fit(x, y)
    np.testing.assert_allclose(model.predict(x), y, rtol=1e-9)
    np.testing.assert_allclose(model.predict(x), LinearRegression().fit(x, y).predict(x), rtol=1e-9)


def test_before_fitting():
    unfitted = Standardizer()
    for use in (
        lambda: unfitted.transform(np.ones((2, 2))),
        lambda: unfitted.inverse_transform(np.ones((2, 2))),
        lambda: unfitted.mean_,
        lambda: unfitted.scale_,
        lambda: unfitted.merge(),
        lambda: unfitted.fold_into(torch.nn.Linear(2, 1)),
        lambda: unfitted.unfold(torch.nn.Linear(2, 1)),
        lambda: unfitted.transform(torch.ones(2, 2)),
    ):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            use()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.partial_fit(np.ones((4, 3))), "X has 3 features, but Standardizer is expecting 2 features"),
        (lambda s: s.partial_fit(torch.ones(4, 3)), "has 3 features, but Standardizer is expecting 2 features"),
        (lambda s: s.transform(np.ones((4, 3))), "X has 3 features, but Standardizer is expecting 2 features"),
        (lambda s: s.inverse_transform(np.ones((4, 3))), "X has 3 features, but Standardizer is expecting 2 features"),
        (lambda s: s.transform(torch.ones(4, 3)), r"shape \(4, 3\); 2 features are expected on axis 1"),
        (lambda s: s.transform(torch.ones(4)), "2 features are expected on axis 1"),
        (lambda s: s.transform(torch.ones(4, 3, 2)), "2 features are expected on axis 1"),
        (lambda s: s.transform(iter([np.ones((4, 2))])), "transform each batch as it comes"),
        (lambda s: s.partial_fit(np.ones(4)), "Expected 2D array, got 1D array"),
        (lambda s: s.partial_fit(np.ones((2, 2, 2))), "dim 3"),
        (lambda s: s.partial_fit(np.array([["a", "b"]])), "convert string to float|numeric"),
        (lambda s: s.partial_fit(np.ones((2, 2), complex)), "Complex data not supported"),
        (lambda s: s.partial_fit(torch.ones(2, 2, dtype=torch.complex64)), "Complex data not supported"),
        (lambda s: s.partial_fit(torch.tensor(1.0)), "without axes"),
        (lambda s: s.partial_fit(torch.ones(0, 2)), "at least one sample"),
        (lambda s: s.partial_fit(torch.eye(2).to_sparse()), "strided tensor or a SciPy sparse matrix"),
        (lambda s: s.partial_fit(np.array([[1.0, np.inf]])), r"infinite values in feature\(s\) \[1\]"),
        (lambda s: s.partial_fit(torch.tensor([[-torch.inf, 1.0]])), r"infinite values in feature\(s\) \[0\]"),
        (lambda s: s.partial_fit(np.array([[1e200, 1], [-1e200, 2]])), "leaves the range of float64"),
        (
            lambda s: s.partial_fit(np.ones((4, 2)), sample_weight=np.ones(3)),
            r"shape \(3,\); one weight for each of the 4",
        ),
        (lambda s: s.partial_fit(np.ones((4, 2)), sample_weight=[1, 1, -1, 1]), "negative, NaN or infinite"),
        (lambda s: s.partial_fit(np.ones((4, 2)), sample_weight=[1, 1, np.nan, 1]), "negative, NaN or infinite"),
        (lambda s: s.partial_fit(iter([np.ones((4, 2))]), sample_weight=[1.0]), "call partial_fit batch by batch"),
        (lambda s: s.partial_fit(iter([])), "gave no batch"),
        (lambda s: s.partial_fit(iter([np.ones((4, 2)), np.ones((4, 3))])), "3 features"),
        (lambda s: s.partial_fit(iter([{"x": np.ones((4, 2))}])), r"part is 0, but batch 0 is a dict \(\['x'\]\)"),
        (lambda s: s.partial_fit(iter([()])), r"part is 0, but batch 0 is a tuple \(0 elements\)"),
        (lambda s: s.partial_fit(iter([3])), "part is 0, but batch 0 is a int"),
        (lambda s: s.set_params(with_mean="yes").partial_fit(np.ones((4, 2))), "with_mean is 'yes'; True or False"),
        (lambda s: s.set_params(feature_dim=1.5).partial_fit(np.ones((4, 2))), "feature_dim is 1.5"),
        (lambda s: s.partial_fit(torch.ones(2, 2, 2), sample_weight=[1, 2, 3]), "one weight for each of the 2"),
        (lambda s: s.set_params(feature_dim=3).partial_fit(torch.ones(2, 2, 2)), "feature_dim is 3"),
        (lambda s: s.set_params(feature_dim=0).partial_fit(torch.ones(2, 2, 2)), "feature_dim is 0"),
    ],
)
def test_wrong_use_says_what_is_expected_and_changes_nothing(call, words):
    x = np.array([[0.0, 1.0], [2.0, 5.0]])
    fitted = Standardizer().fit(x)
    with pytest.raises(ValueError, match=words):
        call(fitted)
    np.testing.assert_array_equal(fitted.mean_, [1.0, 3.0])
    assert fitted.n_samples_seen_ == 2


FAILING = {
    "weights of another number": lambda fit: fit(np.ones((4, 2)), sample_weight=[1, 2, 3]),
    "infinity": lambda fit: fit(np.array([[0.0, np.inf], [1.0, 2.0]])),
    "sparse data and a mean": lambda fit: fit(sparse.eye_array(2, format="csr")),
    "weights of a tensor": lambda fit: fit(torch.ones(4, 2), sample_weight=-torch.ones(4)),
    "an infinite tensor": lambda fit: fit(torch.tensor([[0.0, torch.inf]])),
    "features that change in a stream": lambda fit: fit(iter([torch.ones(4, 2), torch.ones(4, 3)])),
    "a stream that breaks": lambda fit: fit(1 // 0 if i else np.ones((4, 2)) for i in range(2)),
}


@pytest.mark.parametrize("how", ["fit", "partial_fit"])
@pytest.mark.parametrize("case", FAILING)
@pytest.mark.parametrize("fitted", [False, True])
def test_a_fit_that_raises_leaves_the_estimator_as_it_was(how, case, fitted):
    standardizer = Standardizer()
    if fitted:
        standardizer.fit(np.array([[0.0, 1.0], [2.0, 5.0]]))
    before = dict(vars(standardizer))
    columns = pickle.dumps(before.get("_columns"))
    with pytest.raises((ValueError, ZeroDivisionError)):
        FAILING[case](getattr(standardizer, how))
    assert vars(standardizer) == before
    assert pickle.dumps(vars(standardizer).get("_columns")) == columns
    assert hasattr(standardizer, "n_features_in_") is fitted


def test_a_warning_that_is_raised_leaves_the_estimator_as_it_was():
    standardizer = Standardizer()
    with pytest.raises(LostVarianceWarning):
        standardizer.partial_fit(np.float32(1e8) + 8 * np.eye(2, dtype=np.float32))
    assert vars(standardizer) == vars(Standardizer())


def test_own_errors_belong_to_trimtab():
    with pytest.raises(TrimtabError):
        Standardizer().fit(np.array([[np.inf]]))
    with pytest.raises(NormalizationError, match="every sample_weight is zero"):
        Standardizer().fit(np.ones((3, 1)), sample_weight=np.zeros(3))


def test_importing_the_package_needs_no_scikit_learn():
    program = (
        "import sys, trimtab.norms.standardizer as s; s.FoldReport; s.conditioning; "
        "print([m for m in ('sklearn', 'scipy', 'numba') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

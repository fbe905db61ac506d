"""Linear regression: what is predicted from the spectrum is what gradient descent does."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import datasets

from trimtab.errors import NormalizationError
from trimtab.norms.standardizer import Standardizer, conditioning

KNOWN = json.loads((Path(__file__).parent.parent / "reference" / "linear_regression.json").read_text())["rows"]
LOADERS = {
    "wine": datasets.load_wine,
    "breast_cancer": datasets.load_breast_cancer,
    "diabetes": lambda **options: datasets.load_diabetes(scaled=False, **options),
}
TABLE = {  # condition numbers raw, centred, standardized; steps to 1e-1, 1e-2, 1e-3 of the excess
    "wine": (4.589e8, 1.21e7, 45.52, (1, 20, 67)),
    "breast_cancer": (2.377e12, 6.3e11, 9.983e4, (4, 485, 17891)),
    "diabetes": (5.237e7, 7.6e4, 470.1, (3, 10, 467)),
}


def load(name):
    return LOADERS[name](return_X_y=True)


@pytest.mark.parametrize("name", TABLE)
def test_condition_numbers(name):
    x, y = load(name)
    found = conditioning(x, y)
    raw, centred, standard, _ = TABLE[name]
    assert found.raw.condition == pytest.approx(raw, rel=5e-4)
    assert found.centred.condition == pytest.approx(centred, rel=5e-3)
    assert found.standardized.condition == pytest.approx(standard, rel=5e-4)
    for mine, key in ((found.raw, "raw"), (found.centred, "centred_only"), (found.standardized, "standardised")):
        largest, smallest, ratio = KNOWN[name][key]
        assert mine.eigenvalues[0] == pytest.approx(largest, rel=1e-12)
        assert mine.eigenvalues[-1] == pytest.approx(smallest, rel=1e-9)
        assert mine.condition == pytest.approx(ratio, rel=1e-9)
    correlation = np.linalg.eigvalsh(np.corrcoef(x.T))
    assert found.standardized.condition == pytest.approx(max(correlation[-1], 1) / correlation[0], rel=1e-8)
    assert found.gain == pytest.approx(found.raw.condition / found.standardized.condition)


@pytest.mark.parametrize("name", TABLE)
def test_centring_decouples_and_scaling_makes_the_diagonal_one(name):
    x, y = load(name)
    found = conditioning(x, y)
    assert np.abs(found.raw.hessian[-1, :-1]).max() > 1
    scale = np.sqrt(np.diag(found.centred.hessian))
    np.testing.assert_allclose(found.centred.hessian[-1, :-1] / scale[:-1], 0, atol=1e-10)
    np.testing.assert_allclose(np.diag(found.standardized.hessian), 1, rtol=1e-12)
    np.testing.assert_allclose(found.standardized.hessian[:-1, :-1], np.corrcoef(x.T), atol=1e-10)


def test_in_one_dimension_one_step_solves_it():
    rng = np.random.default_rng(0)
    x = 1e3 + 50 * rng.standard_normal((100, 1))
    found = conditioning(x, 3 * x[:, 0] - 7 + rng.standard_normal(100), start="zero")
    np.testing.assert_allclose(found.standardized.hessian, np.eye(2), atol=1e-10)
    assert found.standardized.iterations(1e-12, step=1.0) == 1


def descend(z, y, step, until, tolerance):
    """Real gradient descent: the excess after `until` steps, or the number of steps to a tolerance."""
    design = np.column_stack([z, np.ones(len(z))])
    best = np.linalg.lstsq(design, y, rcond=None)[0]

    def excess(theta):
        return 0.5 * np.mean(np.square(design @ (theta - best)))

    theta = np.zeros(design.shape[1])
    theta[-1] = y.mean()
    first, count = excess(theta), 0
    hessian, slope = design.T @ design / len(z), design.T @ y / len(z)
    while count < until and not excess(theta) <= tolerance * first:
        theta -= step * (hessian @ theta - slope)
        count += 1
    return count, excess(theta) / first


@pytest.mark.parametrize("name", TABLE)
def test_predicted_iterations_are_those_of_gradient_descent(name):
    x, y = load(name)
    standard = conditioning(x, y).standardized
    z = (x - x.mean(0)) / x.std(0)
    for tolerance, known in zip((1e-1, 1e-2, 1e-3), TABLE[name][3], strict=True):
        assert standard.iterations(tolerance) == known == KNOWN[name]["iters"][f"{tolerance:g}"]["measured"]
        assert descend(z, y, 1 / standard.eigenvalues[0], 20_000, tolerance)[0] == known
        assert known < standard.condition / 2 * math.log(1 / tolerance)  # the rule of thumb is a loose bound


@pytest.mark.parametrize("name", TABLE)
def test_the_largest_step_divides_convergence_from_divergence(name):
    x, y = load(name)
    standard = conditioning(x, y).standardized
    z = (x - x.mean(0)) / x.std(0)
    for factor, key in ((0.99, "excess_after_300_at_0p99"), (1.01, "at_1p01")):
        step = factor * standard.largest_step
        predicted = standard.excess(300, step)
        assert predicted == pytest.approx(KNOWN[name][key], rel=1e-8)
        assert descend(z, y, step, 300, 0.0)[1] == pytest.approx(predicted, rel=1e-5)
    assert standard.iterations(0.1, 1.01 * standard.largest_step) == math.inf
    assert standard.iterations(0.1, 0.99 * standard.largest_step) > standard.iterations(0.1)


def test_the_gradient_is_that_of_torch_and_its_loss_is_twice_ours():
    x, y = load("wine")
    found = conditioning(x, y)
    w, b = (
        torch.zeros(13, dtype=torch.float64, requires_grad=True),
        torch.zeros((), dtype=torch.float64, requires_grad=True),
    )
    tx, ty = torch.from_numpy(x), torch.from_numpy(y).double()
    torch.nn.functional.mse_loss(tx @ w + b, ty).backward()
    np.testing.assert_allclose(2 * found.raw.gradient_w[:, 0], w.grad, rtol=1e-12)
    np.testing.assert_allclose(2 * found.raw.gradient_b, b.grad, rtol=1e-12)

    def loss(theta):
        return torch.nn.functional.mse_loss(tx @ theta[:-1] + theta[-1], ty)

    hessian = torch.autograd.functional.hessian(loss, torch.zeros(14, dtype=torch.float64))
    np.testing.assert_allclose(2 * found.raw.hessian, hessian, rtol=1e-10)


def test_the_gradient_of_raw_features_lies_in_w_alone():
    x, y = load("wine")
    found = conditioning(x, y)
    raw_w, raw_b = found.raw.gradient_split
    unit_w, unit_b = found.standardized.gradient_split
    assert raw_w > 500 * raw_b  # the first note: the step that suits w leaves b slow
    assert 1 < unit_w / unit_b < 2


def test_starting_at_zero_counts_the_bias_too():
    x, y = load("wine")
    zero = conditioning(x, y, start="zero").standardized
    same = conditioning(x, y - y.mean(), start="zero").standardized
    np.testing.assert_allclose(same.shares, conditioning(x, y).standardized.shares, atol=1e-12)
    z = (x - x.mean(0)) / x.std(0)
    design, theta = np.column_stack([z, np.ones(len(z))]), np.zeros(14)
    best = np.linalg.lstsq(design, y, rcond=None)[0]
    start = np.mean(np.square(design @ best))
    for _ in range(40):
        theta -= design.T @ (design @ theta - y) / len(z) / zero.eigenvalues[0]
    assert zero.excess(40) == pytest.approx(np.mean(np.square(design @ (theta - best))) / start, rel=1e-9)


def test_several_targets_and_tensors():
    x, y = load("diabetes")
    both = np.column_stack([y, x[:, 0]])
    one = conditioning(torch.from_numpy(x), torch.from_numpy(both))
    np.testing.assert_allclose(one.standardized.eigenvalues, conditioning(x).standardized.eigenvalues)
    np.testing.assert_allclose(one.raw.gradient_w[:, :1], conditioning(x, y).raw.gradient_w)
    assert one.standardized.shares.sum() == pytest.approx(1)


def test_the_statistics_of_a_standardizer_may_be_used():
    x, y = load("wine")
    fitted = Standardizer().fit(x)
    np.testing.assert_allclose(
        conditioning(x, y, standardizer=fitted).standardized.eigenvalues, conditioning(x, y).standardized.eigenvalues
    )
    stale = Standardizer().fit(x[:60])  # of one class only
    assert conditioning(x, y, standardizer=stale).standardized.condition > conditioning(x, y).standardized.condition
    halfway = conditioning(x, y, standardizer=Standardizer(with_std=False).fit(x))
    assert halfway.standardized.condition == pytest.approx(halfway.centred.condition)


def test_dependent_and_constant_features():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 2))
    y = x @ [1.0, 2.0] + 3
    doubled = conditioning(np.column_stack([x, x[:, 0]]), y)
    assert doubled.standardized.condition > 1e14
    assert doubled.standardized.iterations(1e-3) < 100  # a direction that no data has holds no error
    constant = conditioning(np.column_stack([x, np.full(50, 0.1)]), y)
    assert np.isfinite(constant.standardized.hessian).all()
    wide = conditioning(rng.standard_normal((3, 6)), rng.standard_normal(3))
    assert wide.raw.condition == math.inf
    assert len(wide.raw.eigenvalues) == 7
    assert wide.raw.iterations(1e-6) > 0


def test_what_is_printed():
    text = str(conditioning(*load("wine")))
    for part in ("178 samples, 13 features", "4.589e+08", "45.52", "67", "largest stable step"):
        assert part in text
    assert "steps to" not in str(conditioning(load("wine")[0]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        conditioning(load("wine")[0]).samples = 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: conditioning(np.ones(3)), r"X has shape \(3,\)"),
        (lambda: conditioning(np.ones((3, 0))), r"X has shape \(3, 0\)"),
        (lambda: conditioning(np.ones((3, 2)), np.ones(4)), "y has 4 samples, X has 3"),
        (lambda: conditioning(np.full((3, 2), np.nan)), "X holds NaN"),
        (lambda: conditioning(np.ones((3, 2)), [1, np.inf, 2]), "y holds NaN"),
        (lambda: conditioning(np.ones((3, 2)), [1, 2, 3], start="best"), "start is 'best'"),
        (lambda: conditioning(np.ones((3, 2)), standardizer=Standardizer().fit(np.eye(3))), "fitted on 3"),
        (lambda: conditioning(np.eye(3)).raw.excess(3), "depends on the targets"),
        (lambda: conditioning(np.eye(3), [1, 2, 3]).raw.iterations(0), "tolerance is 0"),
    ],
)
def test_wrong_use(call, words):
    with pytest.raises(NormalizationError, match=words):
        call()

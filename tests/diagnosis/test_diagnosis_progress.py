"""The course of the loss: rising, lost; and what counts as learning."""

import math

import numpy as np
import pytest
from diagnosis_cases import Made

from trimtab.diagnosis.progress import progress


def of(losses, **more):
    return progress(Made(loss=losses, steps=4).record, **more)


def noisy(start, end, steps=100, noise=0.02, seed=0):
    return np.linspace(start, end, steps) + noise * np.random.default_rng(seed).normal(size=steps)


def settling(start, end, steps=100):
    """Down within the first half, then there."""
    return np.concatenate([np.linspace(start, end, steps // 2), np.full(steps - steps // 2, end)])


def test_no_loss_at_all():
    found = of([])
    assert found.steps == 0
    assert found.nonfinite is None
    assert math.isnan(found.first)
    assert not found.rose


def test_losses_that_were_not_seen_do_not_count():
    found = of([2.0, None, 1.0, None])
    assert found.steps == 2
    assert found.nonfinite is None


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_the_first_nonfinite_loss(lost):
    found = of([2.0] * 7 + [lost] * 3 + [2.0] * 5)
    assert found.nonfinite == 7
    assert found.steps == 12


def test_a_run_that_is_lost_from_the_start():
    found = of([math.nan] * 20)
    assert found.nonfinite == 0
    assert found.steps == 0


def test_rose():
    assert of(noisy(1.0, 3.0)).rose
    assert not of(noisy(1.0, 1.05)).rose
    assert not of(noisy(1.0, 1.3, noise=0.5)).rose
    assert not of(noisy(3.0, 1.0)).rose


def test_noise_is_the_spread_from_step_to_step():
    losses = noisy(5, 5, steps=4000, noise=0.1)
    assert of(losses).noise == pytest.approx(math.sqrt(2) * 0.1 * 1.4826 * 0.6745, rel=0.05)


def test_the_first_loss_is_not_fooled_by_a_peak_behind_it():
    assert of([2.0, 90.0, 80.0, 70.0, *noisy(2, 1, 60)]).first == 2.0
    assert of([9.0, 2.0, 2.0, 2.0, 2.0, *noisy(2, 1, 60)]).first == 2.0


def test_the_baseline_is_the_best_constant_answer_where_it_is_known():
    losses = settling(30.0, 2.3)
    assert of(losses).gained > 0.9
    assert of(losses, constant_answer=math.log(10)).gained < 0.05
    assert of(losses, constant_answer=100.0).baseline == of(losses).baseline


def test_a_log_likelihood_may_be_negative():
    found = of(settling(-1.0, -3.0))
    assert not found.rose
    assert found.gained == pytest.approx(2.0, abs=0.3)


def test_a_loss_of_zero_from_the_start_gains_nothing():
    assert of([0.0] * 20).gained == 0.0


def test_worst_and_best():
    found = of([2.0, 50.0, *noisy(2, 0.5, 98, noise=0)])
    assert found.worst == 50.0
    assert found.best == pytest.approx(0.5, abs=0.1)


def test_learned_asks_for_half_of_the_baseline():
    assert Made(loss=settling(2.3, 1.1), steps=4).view.learned
    assert not Made(loss=settling(2.3, 1.2), steps=4).view.learned
    assert not Made(loss=[*settling(2.3, 0.1), math.nan], steps=4).view.learned


def test_constant_answers():
    made = Made()
    assert made.view.constant_answer == pytest.approx(math.log(10))
    made.details["loss"] = {"operations": ["MseLoss"], "kind": "MseLoss", "target": {"mean": 5.0, "std": 3.0}}
    assert made.view.constant_answer == 9.0
    made.details["loss"] = {"operations": ["Add", "MseLoss"], "kind": "MseLoss", "target": {"mean": 5.0, "std": 3.0}}
    assert made.view.constant_answer == math.inf
    made.details["loss"] = {"operations": ["Mean", "Abs"], "kind": ""}
    assert made.view.constant_answer == math.inf

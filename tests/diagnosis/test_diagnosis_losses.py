"""`loss-spike` and `loss-at-init-off` on records made by hand."""

import math

import numpy as np
import pytest
from diagnosis_cases import Made, evidence, findings, only, row

from trimtab.diagnosis.rules import loss_at_init_off, loss_spike


def falling(steps=200, noise=0.02):
    return np.geomspace(2.3, 0.3, steps) * (1 + noise * np.random.default_rng(0).standard_normal(steps))


def jumping(at=120, peak=2.0, back=100, steps=200, grows=10.0):
    """A falling loss that jumps at a step and decays within `back` steps, after an update of layer b that was larger."""
    losses = falling(steps)
    for i in range(at, steps):
        losses[i] += peak * (1.0 if back is None else max(1 - (i - at) / back, 0.0))
    made = Made(steps=steps, loss=losses)
    sizes = [1e-3 * (grows if i == at - 1 else 1.0) for i in range(steps)]
    made.set("b.weight", "update", [row(size, count=256) for size in sizes])
    return made


@pytest.mark.parametrize(("back", "severity"), [(10, "note"), (60, "warning"), (None, "error")])
def test_a_spike_weighs_what_it_costs(back, severity):
    finding, begins = only(loss_spike, jumping(back=back))
    assert (finding.severity, finding.where, begins) == (severity, ("optimizer", "b"), 119)
    assert "step 120 of 200" in finding.summary
    assert evidence(finding, "update of the layer").measured == pytest.approx(10)
    assert evidence(finding, "jump").measured > loss_spike.DEVIATIONS


def test_noise_one_bad_batch_and_other_data_are_no_spikes():
    assert findings(loss_spike, Made(steps=200, loss=falling(noise=0.3))) == []
    heavy = falling() * (1 + np.random.default_rng(1).pareto(1.5, 200))
    assert findings(loss_spike, Made(steps=200, loss=heavy)) == []
    assert findings(loss_spike, jumping(back=1)) == []
    assert findings(loss_spike, jumping(grows=1.0)) == []  # no step did it


def test_a_bad_batch_whose_step_did_it_is_not_the_beginning():
    made = jumping(at=121)
    made.losses[120] = 30.0
    assert "step 121" in only(loss_spike, made).finding.summary


def test_a_schedule_that_starts_anew_is_no_spike():
    made = jumping()
    made.rates = [0.01] * 119 + [0.1] * 81
    assert findings(loss_spike, made) == []


def test_a_jump_that_gives_back_little_is_none():
    assert findings(loss_spike, jumping(peak=0.2)) == []


def test_losses_of_optimizers_that_take_turns_are_not_compared():
    made = jumping()
    made.stepped = [1 + i % 2 for i in range(200)]
    assert findings(loss_spike, made) == []


# loss-at-init-off -----------------------------------------------------------------------------------------------------


def starting(at, size=4.0, last=2.0):
    made = Made(loss=np.geomspace(at, last, 30))
    made.set("c", "output", row(size))
    return made


def test_the_first_loss_beside_that_of_a_guess():
    finding, begins = only(loss_at_init_off, starting(8.0))
    assert (finding.severity, finding.where, begins) == ("warning", ("c", "loss"), 0)
    first = evidence(finding, "first loss")
    assert (first.measured, first.expected) == (8.0, pytest.approx(math.log(10)))
    assert evidence(finding, "size of the outputs").measured == pytest.approx(4)


def test_a_run_that_learns_gets_a_note():
    assert only(loss_at_init_off, starting(8.0, last=0.1)).finding.severity == "note"


@pytest.mark.parametrize("quiet", [{"at": 4.0}, {"at": 8.0, "size": 1.0}, {"at": 0.1, "last": 0.05}])
def test_a_first_loss_that_needs_no_word(quiet):
    assert findings(loss_at_init_off, starting(**quiet)) == []


@pytest.mark.parametrize(("at", "found"), [(12.0, 1), (8.0, 0)])
def test_squares_are_judged_by_the_spread_of_the_targets(at, found):
    made = starting(at, last=1.5)
    made.details["loss"] |= {
        "operations": ["MseLoss"], "kind": "MseLoss", "prediction": {"shape": [64, 1], "mean": 0.5, "std": 3.0},
        "target": {"shape": [64, 1], "mean": 0.0, "std": 1.0},
    }  # fmt: skip
    assert len(findings(loss_at_init_off, made)) == found


@pytest.mark.parametrize(("at", "found"), [(1.5, 1), (1.2, 0)])
def test_yes_or_no_is_judged_by_ln_2(at, found):
    made = starting(at, last=1.1)
    made.details["loss"] |= {
        "operations": ["BinaryCrossEntropyWithLogits"],
        "kind": "BinaryCrossEntropyWithLogits",
        "prediction": {"shape": [64, 1], "mean": 0.0, "std": 5.0},
    }
    assert len(findings(loss_at_init_off, made)) == found

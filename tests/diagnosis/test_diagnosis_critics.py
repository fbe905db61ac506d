"""`lipschitz-blowup` on records made by hand: what it needs to speak, and what keeps it silent."""

import numpy as np
import pytest
from diagnosis_cases import Made, evidence, findings, only, row

from trimtab.diagnosis.rules import lipschitz_blowup


def critic(operations=("Sub", "Mean", "Mean"), outputs=100.0, weights=2.0, steps=30):
    """Three layers, each weight `weights` times and the outputs `outputs` times what they were."""
    made = Made(steps=steps)
    made.details["loss"] = {"operations": list(operations), "sources": ["0:c"], "kind": "", "softmax": None}
    made.set("c", "output", [row(size) for size in np.geomspace(1, outputs, steps)])
    for name in "abc":
        made.set(
            f"{name}.weight", "parameter", [row(size, count=256) for size in np.geomspace(0.1, 0.1 * weights, steps)]
        )
    return made


def test_the_growth_of_outputs_and_slope():
    finding, begins = only(lipschitz_blowup, critic())
    assert (finding.severity, finding.where, begins) == ("warning", ("a", "b", "c"), 0)
    assert evidence(finding, "product of").measured == pytest.approx(8)  # 2 cubed
    assert evidence(finding, "size of").measured == pytest.approx(
        100 / 100 ** (1 / 29)
    )  # over the second of 30 readings
    assert "autograd.grad" in finding.repairs[0].code


def test_it_breaks_where_outputs_are_lost_or_huge():
    assert only(lipschitz_blowup, critic(outputs=1e5)).finding.severity == "error"
    made = critic(outputs=5)
    made.series["c", "output"][-1] = row(nonfinite=64)
    assert only(lipschitz_blowup, made).finding.severity == "error"


@pytest.mark.parametrize(
    "operations",
    [
        ("Mean", "Relu", "Add"),
        ("Add", "Sub", "Mean", "Mean", "Mul", "Mean", "Pow", "Sub"),
        ("NllLoss", "LogSoftmax"),
        (),
    ],
)
def test_a_loss_that_is_not_linear_is_not_looked_at(operations):
    assert findings(lipschitz_blowup, critic(operations)) == []


@pytest.mark.parametrize("quiet", [{"outputs": 20.0}, {"weights": 1.5}])
def test_bounded_critics_are_left_alone(quiet):
    assert findings(lipschitz_blowup, critic(**quiet)) == []


def test_clipped_weights_are_left_alone():
    made = critic()
    for name in "abc":
        made.series[f"{name}.weight", "parameter"][1:, 4] = 0.1
    assert findings(lipschitz_blowup, made) == []


def test_weights_that_stand_still_after_the_end_are_not_clipped():
    made = critic()
    made.series["c", "output"][6:, 6] = 1
    for name in "abc":
        made.series[f"{name}.weight", "parameter"][6:, 4] = 7.0
    assert findings(lipschitz_blowup, made) != []


def test_the_loss_of_another_optimizer_says_nothing():
    made = critic()
    made.stepped = [2] * len(made.losses)  # the second one, which does not hold these layers
    assert findings(lipschitz_blowup, made) == []


def test_a_bounded_output_is_left_alone():
    made = critic()
    made.modules["c"]["class"] = "Tanh"
    assert findings(lipschitz_blowup, made) == []

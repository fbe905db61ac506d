"""Ranked roots: how they stand, what a standing is worth, and the trial that tells two apart."""

import math

import pytest
import torch
from problems import build, digits, mlp, passes
from test_diagnosis_check import assert_unchanged, deep, started, state
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

import trimtab
from trimtab import Setup
from trimtab.diagnosis import probes
from trimtab.diagnosis.causes import explain
from trimtab.diagnosis.confidence import RIGHT, confidence, standing, weighed
from trimtab.diagnosis.probes.removal import MENDS, decided, rivals, start_of
from trimtab.report import Finding, codes

RIVALS = ("symmetric-init", "learning-rate-too-high")
REMOVAL = {
    "steps": 20,
    "first": 2.3,
    "plain": 2.3,
    "ends": {"symmetric-init": 0.3, "learning-rate-too-high": 2.2},
    "words": {code: MENDS[code].words for code in RIVALS},
    "decided": "symmetric-init",
}


def found(code, severity="error", causes=()):
    return Finding(code, severity, ("here",), code, causes=causes)


@pytest.mark.parametrize(
    ("code", "roots", "removal", "stands"),
    [
        ("dead-units", ["dead-units"], {}, "alone"),
        ("symmetric-init", RIVALS, {}, "first"),
        ("learning-rate-too-high", RIVALS, {}, "beside"),
        ("symmetric-init", RIVALS, REMOVAL | {"decided": None}, "first"),
        ("symmetric-init", RIVALS, REMOVAL, "decided"),
        ("learning-rate-too-high", RIVALS, REMOVAL, "ruled out"),
        ("dead-units", [*RIVALS, "dead-units"], REMOVAL, "beside"),
        ("symmetric-init", ["symmetric-init"], REMOVAL, "alone"),
    ],
)
def test_how_a_root_stands(code, roots, removal, stands):
    assert standing(code, roots, removal) == stands


def test_a_confidence_is_the_share_that_was_right_by_laplaces_rule():
    for stands, (right, of) in RIGHT.items():
        assert 0 <= right <= of
        assert confidence(stands) == pytest.approx((right + 1) / (of + 2), abs=0.005)


def test_a_surer_standing_has_the_higher_confidence():
    assert confidence("alone") >= confidence("first") > confidence("beside")
    assert confidence("decided") > confidence("first")
    assert confidence("beside") >= confidence("ruled out")


def test_roots_get_a_confidence_and_nothing_else_does():
    findings = (
        found("symmetric-init"),
        found("dead-units", causes=("symmetric-init",)),
        found("learning-rate-too-high", "warning"),
        found("vanishing-gradient", "note"),
    )
    said = weighed(findings, {})
    assert [f.code for f in said] == [f.code for f in findings]
    assert [f.confidence for f in said] == [confidence("first"), None, confidence("beside"), None]
    assert all(f.evidence == () for f in said)


def test_a_trial_is_evidence_of_both_that_were_tried():
    first, second, third = weighed((*map(found, RIVALS), found("dead-units", "warning")), REMOVAL)
    assert [(e.name, e.measured) for e in first.evidence] == [
        ("loss of a copy after 20 steps with weights drawn by He's rule", 0.3),
        ("the same, as the run is", 2.3),
    ]
    assert second.evidence[0].measured == 2.2
    assert third.evidence == ()


def test_what_trials_decide_on_comes_first_with_what_it_explains():
    given = [
        (found("symmetric-init"), 0),
        (found("learning-rate-too-high", "warning"), 0),
        (found("loss-spike", "warning"), 9),
    ]
    assert [f.code for f in explain(given)] == ["symmetric-init", "learning-rate-too-high", "loss-spike"]
    assert [f.code for f in explain(given, first="learning-rate-too-high")] == [
        "learning-rate-too-high",
        "loss-spike",
        "symmetric-init",
    ]


@pytest.mark.parametrize(
    ("first", "plain", "ends", "who"),
    [
        (2.0, 2.0, {"a": 1.0, "b": 2.0}, "a"),
        (2.0, math.inf, {"a": math.inf, "b": 0.5}, "b"),  # what breaks has taken nothing off
        (
            2.0,
            9.0,
            {"a": 2.0, "b": 1.9},
            None,
        ),  # a run that rises takes nothing off: less than a tenth of the first loss
        (2.0, 2.0, {"a": 1.0, "b": 1.5}, None),  # both help
        (2.0, 1.0, {"a": 1.0, "b": 1.1}, None),  # neither helps
        (-2.0, -2.0, {"a": -3.0, "b": -2.0}, "a"),
        (math.nan, math.nan, {"a": 1.0, "b": 2.0}, None),
        (0.0, 0.0, {"a": -1.0, "b": 0.0}, None),
    ],
)
def test_a_trial_decides_where_one_mend_helps_and_the_other_does_not(first, plain, ends, who):
    assert decided(first, plain, ends) == who


def test_rivals_have_mends_that_differ():
    assert set(MENDS) <= set(codes())
    assert rivals(RIVALS) == list(RIVALS)
    assert rivals(["symmetric-init", "dead-units"]) == []
    assert rivals(["symmetric-init", "dead-units", "learning-rate-too-high"]) == list(RIVALS)
    assert rivals(["nonfinite-data", "learning-rate-too-high"]) == []
    assert rivals(["dead-units"]) == []


def classifier(model, optimizer, x=None, steps=60):
    pictures, y = digits()
    return Setup(
        model, optimizer, passes(pictures if x is None else x, y), lambda m, b: F.cross_entropy(m(b[0]), b[1]), steps
    )


def constant(rate):
    """All units alike, which no rate mends."""
    model = mlp(2, 32)
    for p in model.parameters():
        nn.init.constant_(p, 0.05)
    return classifier(model, SGD(model.parameters(), lr=rate))


def at_a_rate_of(rate):
    """A sound net, which no new draw mends."""
    model = mlp(2, 32)
    for layer in model[::2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return classifier(model, SGD(model.parameters(), lr=rate))


def pixels(rate):
    """Inputs in the thousands, at a rate that suits them once they are standardized."""
    model = mlp(1, 32)
    x, _ = digits()
    return classifier(model, SGD(model.parameters(), lr=rate), 1000 * x)


def decayed():
    """A decay that keeps every weight at zero."""
    model = mlp(1, 32)
    return classifier(model, SGD(model.parameters(), lr=0.1, weight_decay=9.0))


@pytest.mark.parametrize(
    ("make", "roots", "truth"),
    [
        (lambda: constant(0.1), RIVALS, "symmetric-init"),
        (lambda: at_a_rate_of(3.0), RIVALS, "learning-rate-too-high"),
        (lambda: at_a_rate_of(1e-3), ("vanishing-gradient", "learning-rate-too-low"), "learning-rate-too-low"),
        (lambda: pixels(0.1), ("unscaled-inputs", "vanishing-gradient"), "unscaled-inputs"),
        (decayed, ("excessive-weight-decay", "learning-rate-too-low"), "excessive-weight-decay"),
    ],
)
def test_a_trial_from_the_start_tells_the_fault_from_its_rival(make, roots, truth):
    setup = build(make)
    start = start_of(setup)
    for _ in setup.train():
        pass
    before = deep([setup.model.state_dict(), setup.optimizer.state_dict(), torch.get_rng_state()])
    found = probes.removal.probe(setup, start, roots)
    assert found.get("decided") == truth, found
    torch.testing.assert_close(
        [setup.model.state_dict(), setup.optimizer.state_dict(), torch.get_rng_state()],
        before,
        rtol=0,
        atol=0,
        equal_nan=True,
    )
    assert probes.removal.probe(setup, start, roots) == found


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_bit_identical_after_a_trial(fails):
    """Also the state of an optimizer that a step of the setup's own takes from around it, and after an exception."""
    setup = started()
    start, mine, calls = start_of(setup), setup, 0

    def step(given, batch):
        nonlocal calls
        calls += 1
        mine.optimizers[0].zero_grad()
        loss = mine.loss(mine.model, batch)
        loss.backward()
        mine.optimizers[0].step()
        if fails and calls > 2:
            raise ZeroDivisionError("mine")
        return loss

    setup.step = step
    before = deep(state(setup))
    found = probes.removal.probe(setup, start, RIVALS)
    assert "ZeroDivisionError" in found["declined"] if fails else "another model" in found["declined"]
    assert calls
    assert_unchanged(before, state(setup))


def test_what_has_no_start_is_not_tried():
    lazy = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 10))
    model = nn.Linear(64, 10)
    assert start_of(classifier(lazy, SGD(model.parameters(), lr=0.1))) is None
    setup = classifier(model, SGD(model.parameters(), lr=0.1))
    start = start_of(setup)
    setup.model.register_buffer("late", torch.zeros(3))
    assert "other parameters" in probes.removal.probe(setup, start, RIVALS)["declined"]


def test_a_diagnosis_of_several_roots_is_decided_and_the_same_twice(tmp_path):
    """Units that are all alike, at a rate too high for them: two errors that do not explain each other."""

    def diagnosed(store=None):
        return trimtab.diagnose(build(constant, 1.0), store=store)

    diagnosis = diagnosed(tmp_path / "run.db")
    roots = [f for f in diagnosis.roots if f.severity != "note"]
    assert [f.code for f in roots] == ["symmetric-init", "learning-rate-too-high"]
    assert [f.confidence for f in roots] == [confidence("decided"), confidence("ruled out")]
    assert "with weights drawn by He's rule" in roots[0].evidence[0].name
    again = diagnosed()
    assert [f.to_dict() for f in again] == [f.to_dict() for f in diagnosis]
    read = trimtab.diagnose(tmp_path / "run.db")
    assert [(f.code, f.confidence) for f in read.roots] == [(f.code, f.confidence) for f in diagnosis.roots]

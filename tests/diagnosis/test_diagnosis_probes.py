"""Probes: what they find against closed forms and autograd, what they decline, and everything as it was afterwards."""

import random

import numpy as np
import pytest
import torch
from diagnosis_cases import Made, findings, only
from problems import build, mlp
from problems_probes import (
    Waves,
    answers_within_one_for_targets_beyond,
    attention_over_samples,
    from_a_loader,
    sentences,
    transformer_without_a_mask,
)
from test_diagnosis_check import assert_unchanged, deep, started, state
from torch import nn
from torch.nn import functional as F

import trimtab
from trimtab.diagnosis import probes, recipe
from trimtab.diagnosis.causes import without_mere_symptoms
from trimtab.diagnosis.probes.calls import Call
from trimtab.diagnosis.probes.spread import astray
from trimtab.diagnosis.probes.targets import elements_ahead
from trimtab.diagnosis.procedures import Plan, follow
from trimtab.diagnosis.rules import cannot_overfit_one_batch, cross_sample_leak, future_leak, input_ignored
from trimtab.errors import UsageError
from trimtab.report import Finding
from trimtab.report.procedure import ProcedureStep

EVERY = {
    "input-ignored": probes.input_ignored.probe,
    "before": probes.input_ignored.probe_before_training,
    "cross-sample-leak": probes.cross_sample_leak.probe,
    "future-leak": probes.future_leak.probe,
    "cannot-overfit-one-batch": probes.cannot_overfit_one_batch.probe,
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_bit_identical_afterwards(name, fails):
    setup = started()
    drawn = probes.drawn(setup, 2)
    calls = 0

    def fails_later(model, batch):
        nonlocal calls
        calls += 1
        value = F.cross_entropy(model(batch[0]), batch[1])
        if calls > 1:
            raise ZeroDivisionError("mine")
        return value

    if fails:
        setup.loss = fails_later
    before = deep(state(setup))
    found = EVERY[name](setup, drawn)
    assert_unchanged(before, state(setup))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in setup.model.modules())
    if fails and name in ("input-ignored", "cannot-overfit-one-batch"):
        assert "ZeroDivisionError" in found["declined"]


def test_an_interrupt_puts_everything_back_too():
    setup = started()
    drawn = probes.drawn(setup, 1)

    def stop(done, of):
        if done == 3:
            raise KeyboardInterrupt

    before = deep(state(setup))
    with pytest.raises(KeyboardInterrupt):
        probes.cannot_overfit_one_batch.probe(setup, drawn, told=stop)
    assert_unchanged(before, state(setup))


def test_a_loaders_own_generator_stays():
    setup = build(from_a_loader)
    loader = setup.batches()
    before = loader.generator.get_state()
    states = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    recipe(setup)
    probes.after_training(setup, probes.drawn(setup, 4))
    assert torch.equal(before, loader.generator.get_state())
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all()
    assert states[2] == random.getstate()


def test_a_model_that_cannot_be_copied_says_so():
    setup = build(from_a_loader)
    setup.model.held = (torch.ones(1, requires_grad=True) * 2,)
    drawn = probes.drawn(setup, 1)
    assert "cannot be copied" in probes.cannot_overfit_one_batch.probe(setup, drawn)["declined"]
    assert probes.cross_sample_leak.probe(setup, drawn) == {"mixed": False}


@pytest.mark.parametrize("broken", [True, False])
def test_the_leak_between_samples_is_autograds(broken):
    setup = build(attention_over_samples, broken)
    x = setup.batches()[0][0][:7].clone().requires_grad_()
    setup.model.eval()
    slope = torch.autograd.grad(setup.model(x)[0].sum(), x)[0]
    assert (slope[1:].abs().max() > 0) == broken
    assert probes.cross_sample_leak.probe(setup, probes.drawn(setup, 1))["mixed"] == broken


@pytest.mark.parametrize("broken", [True, False])
def test_the_leak_from_the_future_is_autograds(broken):
    net = Waves(broken)
    x = torch.randn(2, 1, 24, requires_grad=True)
    slope = torch.autograd.grad(net(x)[..., 10].sum(), x)[0]
    assert (slope[..., 11:].abs().max() > 0) == broken
    setup = trimtab.Setup(
        net,
        torch.optim.SGD(net.parameters(), 0.1),
        lambda: [torch.randn(8, 1, 25)],
        lambda m, b: ((m(b[..., :-1]) - b[..., 1:]) ** 2).mean(),
    )
    drawn = probes.drawn(setup, 1)
    assert probes.future_leak.probe(setup, drawn)["ahead"] is None  # by hand, and the batch holds no target of its own
    setup.loss = lambda m, b: F.mse_loss(m(b[..., :-1]), b[..., 1:])
    assert probes.future_leak.probe(setup, drawn)["leaks"] == broken


@pytest.mark.parametrize("layout", ["rows", "flat", "columns", "short", "ignored"])
@pytest.mark.parametrize("shift", [1, 3])
def test_shifted_targets_are_seen_in_any_layout(layout, shift):
    text = sentences()[:8]
    x, y = text[:, :-shift], text[:, shift:]
    if layout == "flat":
        y = y.flatten()
    elif layout == "columns":
        y = y.T.contiguous()
    elif layout == "short":
        x = text
    elif layout == "ignored":
        y = y.clone()
        y[:, :5] = -100
    found = elements_ahead(Call((x,), {}), y)
    assert [(a.time, a.shift) for a in found] == [(1, shift)]


def test_other_targets_are_not_taken_for_shifted_ones():
    dice = torch.Generator().manual_seed(0)
    x, y = (torch.randint(12, (8, 16), generator=dice) for _ in range(2))
    assert elements_ahead(Call((x,), {}), y) == []
    assert elements_ahead(Call((torch.zeros(8, 16, dtype=torch.long),), {}), torch.zeros(8, 16, dtype=torch.long)) == []
    assert {a.shift for a in elements_ahead(Call((x,), {}), x)} == {0}


def test_astray_knows_rows_columns_and_flattened_axes():
    before = torch.randn(7, 5)
    own = before.clone()
    own[2] += 1
    assert astray(before, own, 7, slice(2, 3)) == 0
    assert astray(before.T, own.T, 7, slice(2, 3)) == 0
    assert astray(before.flatten(), own.flatten(), 7, slice(2, 3)) == 0
    assert astray(before, own, 7, slice(3, 4)) == 1
    pairs = torch.randn(7, 7)
    cross = pairs.clone()
    cross[2] += 1
    cross[:, 2] += 1
    assert astray(pairs, cross, 7, slice(2, 3)) == 0
    other = own.clone()
    other[0] += 0.25
    assert astray(before, other, 7, slice(2, 3)) == pytest.approx(0.25, rel=1e-5)


def test_zeros_at_the_start_are_no_ignored_input():
    net = mlp(2)
    nn.init.zeros_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)
    setup = build(from_a_loader)
    setup.model, setup.optimizer = net, torch.optim.SGD(net.parameters(), 0.1)
    facts = probes.input_ignored.probe_before_training(setup, probes.drawn(setup, 1))
    assert facts["tried"] == probes.input_ignored.TRIAL
    assert facts["moved"] > 0
    assert trimtab.check(setup).healthy


def test_check_sees_leaks_before_training():
    assert trimtab.check(build(attention_over_samples, True)).roots[0].code == "cross-sample-leak"
    assert trimtab.check(build(transformer_without_a_mask, True)).roots[0].code == "future-leak"
    assert trimtab.check(build(transformer_without_a_mask, False)).healthy


def view_with(name, facts, steps=120, loss=None):
    view = Made(steps=steps, loss=loss).view
    view.record.facts["probes"] = {name: facts}
    return view.record


RULES = {
    "input-ignored": input_ignored,
    "cross-sample-leak": cross_sample_leak,
    "future-leak": future_leak,
    "cannot-overfit-one-batch": cannot_overfit_one_batch,
}
IGNORED = {"loss": 2.3, "exchanged": 2.31, "zeroed": 2.3, "scatter": 0.01, "batches": 4, "moved": 0.2, "tells": True}
STUCK = {"verdict": "stuck", "first": 2.0, "lowest": 1.8, "constant": 1.9, "rate": 1e-3, "steps": 240, "samples": 12}


@pytest.mark.parametrize(
    ("name", "facts", "severity"),
    [
        ("input-ignored", IGNORED, "error"),
        ("input-ignored", IGNORED | {"exchanged": 3.0}, None),
        ("input-ignored", IGNORED | {"exchanged": 3.0, "moved": 0.0}, "error"),
        ("input-ignored", IGNORED | {"scatter": 0.2}, None),
        ("input-ignored", IGNORED | {"tells": False}, None),
        ("cross-sample-leak", {"mixed": True, "others": 0.5, "at": "b", "inside": True}, "error"),
        ("cross-sample-leak", {"mixed": True, "others": 1e-4, "at": "b", "inside": False}, "warning"),
        ("cross-sample-leak", {"mixed": False}, None),
        ("cross-sample-leak", {"declined": "the batch has one sample"}, None),
        ("future-leak", {"ahead": 1, "leaks": True, "others": 0.5, "at": "b", "inside": True}, "error"),
        ("future-leak", {"ahead": None, "leaks": False}, None),
        ("cannot-overfit-one-batch", STUCK, "error"),
        ("cannot-overfit-one-batch", STUCK | {"verdict": "open"}, None),
    ],
)
def test_rules_on_made_facts(name, facts, severity):
    record = view_with(name, facts)
    if severity is None:
        assert findings(RULES[name], record) == []
    else:
        found = only(RULES[name], record).finding
        assert (found.code, found.severity) == (name, severity)


def test_a_short_run_is_not_judged():
    assert findings(input_ignored, view_with("input-ignored", IGNORED, steps=50)) == []


def test_a_symptom_that_something_explains_is_left_out():
    def said(code, *causes):
        return Finding(code, "error", ("a",), "s", causes=causes)

    both = (said("input-ignored"), said("cannot-overfit-one-batch", "input-ignored"))
    assert without_mere_symptoms(both) == both
    other = (said("dead-units"), said("input-ignored", "dead-units"))
    assert without_mere_symptoms(other) == other[:1]


def test_the_same_twice():
    setup = build(answers_within_one_for_targets_beyond, True)
    drawn = probes.drawn(setup, 4)
    assert [EVERY[n](setup, drawn) for n in EVERY] == [EVERY[n](setup, drawn) for n in EVERY]


def test_an_interrupted_procedure_keeps_the_steps_that_were_done():
    def steps(setup, progress):
        yield ProcedureStep("first", "good", "1", "1", "")
        raise KeyboardInterrupt

    plan, setup = Plan("a plan", "nobody", steps), build(attention_over_samples, False)
    found = follow(plan, setup, keep_interrupted=True)
    assert ([step.name for step in found.steps], found.finished) == (["first"], False)
    with pytest.raises(KeyboardInterrupt):
        follow(plan, setup)
    with pytest.raises(UsageError, match="a plan takes a Setup, but it was given a NoneType"):
        follow(plan, None)

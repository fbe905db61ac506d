"""The series: the names that every tracker gets, each step once, and numbers that are those of the run."""

import math
import subprocess
import sys

import pytest
import torch
from integrations_cases import Run

import trimtab
from trimtab.integrations import series as room
from trimtab.integrations._sink import FunctionSink
from trimtab.integrations.series import Series, series


def test_nothing_is_imported_until_it_is_used():
    program = (
        "import sys, trimtab.integrations; "
        "print([m for m in ('lightning', 'transformers', 'accelerate', 'tensorboard', 'wandb', 'mlflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'clearml'"):
        trimtab.integrations.clearml  # noqa: B018


def test_the_numbers_are_those_of_the_run():
    run = Run()
    weights, gradients, updates = [], [], []
    with trimtab.watch(run.model, run.optimizer, every=1) as watch:
        for _ in range(3):
            before = [p.detach().clone() for p in run.model[0].parameters()]
            run.train()
            weights.append(torch.cat([p.flatten() for p in before]))
            gradients.append(torch.cat([p.grad.flatten() for p in run.model.parameters()]))
            updates.append(
                torch.cat([(p - b).flatten() for p, b in zip(run.model[0].parameters(), before, strict=True)])
            )
    points = {(step, name): value for step, name, value in series(watch.record)}
    assert {step for step, _ in points} == {0, 1, 2}
    for step in range(3):
        rms = weights[step].square().mean().sqrt()
        assert points[step, "trimtab/weight_rms/0"] == pytest.approx(float(rms), rel=1e-5)
        assert points[step, "trimtab/gradient_norm"] == pytest.approx(float(gradients[step].norm()), rel=1e-5)
        ratio = updates[step].norm() / weights[step].norm()
        assert points[step, "trimtab/update_ratio/0"] == pytest.approx(float(ratio.detach()), rel=1e-4)
        assert points[step, "trimtab/learning_rate/SGD"] == pytest.approx(0.1)
        assert points[step, "trimtab/nonfinite"] == 0
    assert points[0, "trimtab/loss"] == pytest.approx(watch.record.losses[0])
    kinds = {name.split("/")[1] for _, name in points}
    assert kinds == {
        "loss", "learning_rate", "nonfinite", "gradient_norm", "gradient_norm_unclipped", "output_rms", "gradient_rms",
        "weight_rms", "weight_gradient_rms", "update_ratio", "silent_units",
    }  # fmt: skip


def test_each_step_comes_once_while_the_run_goes_on():
    run, told = Run(), Series()
    seen = []
    with trimtab.watch(run.model, run.optimizer, every=1) as watch:
        for _ in range(5):
            run.train()
            seen += list(told.new(watch))
    seen += list(told.new(watch))
    assert seen == series(watch.record)
    assert list(told.new(watch)) == []


def test_patterns_choose_the_layers():
    run = Run()
    with trimtab.watch(run.model, run.optimizer, every=1) as watch:
        run.train()
    names = {name for _, name, _ in series(watch.record, layers=["2"])}
    assert "trimtab/output_rms/2" in names
    assert not any(name.endswith("/0") for name in names)
    with pytest.raises(TypeError, match="list of patterns"):
        Series("encoder.*")


def test_values_that_are_no_numbers_are_told():
    run = Run()
    run.x[0, 0] = math.nan
    with trimtab.watch(run.model, run.optimizer, every=1) as watch:
        run.train()
    points = {name: value for _, name, value in series(watch.record)}
    assert math.isnan(points["trimtab/loss"])
    assert points["trimtab/nonfinite"] > 0


def test_two_models_are_told_apart():
    one, other = Run(), Run(seed=1)
    with trimtab.watch([one.model, other.model], [one.optimizer, other.optimizer], every=1) as watch:
        one.train()
        other.train()
    names = {name for _, name, _ in series(watch.record)}
    assert "trimtab/output_rms/Sequential.0" in names
    assert "trimtab/output_rms/Sequential-2.0" in names


def test_any_tracker_with_a_function():
    rows = []
    sink = FunctionSink(lambda values, step: rows.append((step, values)), first_step=100)
    run = Run()
    with trimtab.watch(run.model, run.optimizer, every=1) as watch:
        run.train(2)
        assert sink.update(watch) >= 1
    diagnosis = sink.finish(watch)
    assert [step for step, _ in rows] == [100, 101]
    assert isinstance(diagnosis, trimtab.Diagnosis)
    with pytest.raises(TypeError, match="run must be a watch"):
        sink.update(42)
    assert room.PREFIX == "trimtab"

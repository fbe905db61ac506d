"""Healthy trainings, a file each: they learn, and nobody says a word above a note.

To add one, write a file beside this one with `make() -> Setup` (its random numbers from torch's generator) and `LEARNS`, what its
`evaluate` reaches; a run under five seconds stays in the fast tier.
"""

import importlib
from pathlib import Path

import pytest
import torch

import trimtab

HERE = Path(__file__).parent
ZOO = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("conftest", "healthy_parts", "test_healthy"))
HEAVY = {
    "adam_on_a_default_draw",
    "fixup",
    "gan",
    "post_norm_transformer",
    "pre_norm_transformer",
    "resnet",
    "tied_language_model",
    "u_net",
    "wgan_with_penalty",
}
"""What takes longest belongs to the second tier."""

LIVE = {"averaged_weights", "class_imbalance", "cnn_batch_norm", "plain_mlp"}
"""Looked at while they train in the fast tier too."""

SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]


def test_there_are_enough():
    assert len(ZOO) >= 25


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in HEAVY)) for name in ZOO])
def test_a_healthy_training_is_left_in_peace(name, seed):
    torch.manual_seed(seed)
    module = importlib.import_module(name)
    setup = module.make()
    diagnosis = trimtab.diagnose(setup)
    assert [(f.code, f.where, f.summary) for f in diagnosis.at_least("warning")] == []
    setup.model.eval()
    assert setup.evaluate(setup.model) >= module.LEARNS, "the training is to be healthy in truth"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in LIVE)) for name in ZOO])
def test_a_healthy_training_is_left_in_peace_while_it_runs(name):
    """Looks at every other recorded step: what the first steps show must not pass for a fault."""
    torch.manual_seed(0)
    setup, told = importlib.import_module(name).make(), []
    with trimtab.watch(setup.model, list(setup.optimizers), every=2, on_finding=told.append, diagnose_every=2) as watch:
        steps = sum(1 for _ in setup.train(on_batch=lambda batch: None))
    assert watch.record.step_count >= steps
    assert [(f.code, f.where, f.summary) for f in told] == []

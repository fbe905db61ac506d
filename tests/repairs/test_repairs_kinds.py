"""What holds for every kind of change of every family."""

import json
import random

import pytest
import torch
from repair_cases import make_setup
from torch import nn

from trimtab.errors import RepairError
from trimtab.repairs.change import Change, together
from trimtab.repairs.families import FAMILIES
from trimtab.repairs.patient import Patient
from trimtab.report import codes

ALL = [(family, name) for family in FAMILIES for name in family.kinds]


def plain():
    return make_setup(0)


def normalized():
    net = lambda: nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Sigmoid(), nn.Dropout(0.1), nn.Linear(8, 4))  # noqa: E731
    setup = make_setup(0, net=net, optimizer=torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
    setup.scheduler = torch.optim.lr_scheduler.StepLR(setup.optimizer, 10)
    return setup


@pytest.mark.parametrize(("family", "name"), ALL, ids=[name for _, name in ALL])
@pytest.mark.parametrize("make", [plain, normalized])
def test_random_settings_can_be_written_down_told_and_made(family, name, make):
    patient = Patient(make)
    for lot in range(3):
        settings = family.kinds[name].sample(patient, random.Random(lot))
        if settings is None:
            continue
        change = Change(name, dict(settings))
        assert json.loads(json.dumps(change.settings)) == change.settings
        told = change.describe()
        assert told.summary
        assert told.summary[0].islower()
        compile(told.code, "snippet", "exec")
        setup = make()
        try:
            change.apply(setup)
        except RepairError:
            continue
        for _ in setup.train(2):
            pass
        setup.model.eval()
        setup.evaluate(setup.model)


@pytest.mark.parametrize(("family", "name"), ALL, ids=[name for _, name in ALL])
def test_the_same_change_does_the_same(family, name):
    """Applied twice to fresh setups of one seed: the same losses to the last digit."""
    patient = Patient(normalized)
    settings = family.kinds[name].sample(patient, random.Random(0))
    if settings is None:
        return
    courses = []
    for _ in range(2):
        setup = normalized()
        torch.manual_seed(3)
        try:
            Change(name, dict(settings)).apply(setup)
        except RepairError:
            return
        courses.append([x.item() for x in setup.train(3)])
    assert repr(courses[0]) == repr(courses[1])


def test_every_answer_is_to_a_code_that_exists():
    assert {code for family in FAMILIES for code in family.answers} <= set(codes())


def test_names_of_kinds_are_unique():
    names = [name for _, name in ALL]
    assert len(names) == len(set(names))


def test_a_family_draws_by_the_lot_alone():
    patient = Patient(normalized)
    for family in FAMILIES:
        assert family.draw(patient, random.Random(5)) == family.draw(patient, random.Random(5))


def test_several_changes_are_told_together():
    told = together([Change("scale-rate", {"factor": 0.1}), Change("zero-grad")])
    assert "; " in told.summary
    assert "zero_grad" in told.code


def test_a_kind_that_does_not_exist_is_refused():
    with pytest.raises(RepairError, match="no kind of change 'nonsense'"):
        Change("nonsense").describe()

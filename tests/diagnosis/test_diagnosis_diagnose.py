"""`trimtab.diagnose`: what it takes, what it leaves out, what it refuses, and that it says the same twice."""

import dataclasses
import itertools
import sqlite3

import pytest
import torch
from diagnosis_cases import watched
from problems import (
    build,
    classify,
    cross_entropy,
    digits,
    eight_layers,
    he,
    heavy_momentum,
    mlp,
    nan_in_a_feature,
    passes,
    tanh_drawn_small,
)
from torch import nn

import trimtab
from trimtab.diagnosis.diagnose import without_ignored
from trimtab.errors import RecordError, SetupError, StepError, TrimtabError, UsageError
from trimtab.recording import Record
from trimtab.report import Finding


def words(diagnosis):
    """All of a diagnosis but the times it took."""
    return diagnosis.findings, dataclasses.replace(diagnosis.run, watching=None, record=None)


def small(steps=30, **more):
    torch.manual_seed(0)
    net = he(mlp(1))
    return classify(net, torch.optim.SGD(net.parameters(), 0.05), steps, **more)


# What it takes ------------------------------------------------------------------------------------------------------------


def test_a_setup_is_trained_in_place():
    setup = small()
    before = setup.model[0].weight.detach().clone()
    found = trimtab.diagnose(setup)
    assert found.healthy
    assert (found.run.steps, found.run.recorded) == (30, 30)
    assert not torch.equal(before, setup.model[0].weight)


def test_a_record_a_path_and_a_setup_say_the_same(tmp_path):
    path = tmp_path / "run.db"
    said = words(trimtab.diagnose(build(tanh_drawn_small, True), store=path))
    assert words(trimtab.diagnose(path)) == said
    assert words(trimtab.diagnose(str(path))) == said
    assert words(trimtab.diagnose(Record.open(path))) == said
    assert said[0][0].code == "vanishing-gradient"


def test_a_live_record(tmp_path):
    """A record is diagnosed from another connection while the run is still writing it."""
    path, seen = tmp_path / "live.db", []
    setup = build(eight_layers, "vanishing")

    def look(done, steps):
        if done in (40, 119):
            seen.append(trimtab.diagnose(path))

    whole = trimtab.diagnose(setup, store=path, progress=look)
    assert [d.run.finished for d in seen] == [False, False]
    assert whole.run.finished
    assert [d.findings[0].code for d in (*seen, whole)] == ["vanishing-gradient"] * 3
    assert 30 <= seen[0].run.steps <= 40
    assert 100 <= seen[1].run.steps <= 119


def test_a_watch_in_an_own_loop():
    setup = build(eight_layers, "vanishing")
    with trimtab.watch(setup.model, setup.optimizer, every=1) as watch:
        for _ in setup.train():
            pass
        live = watch.diagnose()
    assert live.findings[0].code == "vanishing-gradient"
    assert trimtab.diagnose(watch.record).findings[0].code == "vanishing-gradient"


def test_progress_is_told():
    told = []
    trimtab.diagnose(small(5), progress=lambda done, steps: told.append((done, steps)))
    assert told == [(i, 5) for i in range(1, 6)]


def test_a_long_run_is_recorded_at_two_hundred_steps():
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    x = torch.randn(4, 3)
    setup = trimtab.Setup(
        net, torch.optim.SGD(net.parameters(), 0.01), lambda: [x], lambda m, b: m(b).square().mean(), steps=1000
    )
    found = trimtab.diagnose(setup)
    assert found.run.steps == 1000
    assert 200 <= found.run.recorded <= 210


def test_an_empty_record():
    net = mlp(1)
    with trimtab.watch(net, torch.optim.SGD(net.parameters(), 0.1)) as watch:
        pass
    found = trimtab.diagnose(watch.record)
    assert found.findings == ()
    assert found.run.steps == 0


# What it leaves out ---------------------------------------------------------------------------------------------------------


def test_ignore_a_code_or_a_code_at_a_place():
    record = watched(build(eight_layers, "dead"))
    (root, *_) = trimtab.diagnose(record)
    assert (root.code, root.where[0]) == ("dead-units", "6")
    assert "dead-units" not in trimtab.diagnose(record, ignore=["dead-units"])
    assert root not in trimtab.diagnose(record, ignore=["dead-units@6"]).findings
    assert trimtab.diagnose(record, ignore=["dead-units@60"]).findings[0].code == "dead-units"
    assert trimtab.diagnose(record, ignore=["double-softmax"]).findings == trimtab.diagnose(record).findings


def test_ignoring_one_place_leaves_the_others():
    record = watched(build(eight_layers, "vanishing"))
    whole = trimtab.diagnose(record)["vanishing-gradient"]
    first, *rest = whole.where
    assert rest
    left = trimtab.diagnose(record, ignore=[f"vanishing-gradient@{first}"])["vanishing-gradient"]
    assert left == dataclasses.replace(whole, where=tuple(rest))
    every = [f"vanishing-gradient@{place}" for place in whole.where]
    assert "vanishing-gradient" not in trimtab.diagnose(record, ignore=every)


def test_ignoring_a_place_covers_what_lies_in_it():
    whole = Finding("dead-units", "error", ("body.2", "body.20", "head"), "")
    assert without_ignored(whole, ["dead-units@body"]).where == ("head",)
    assert without_ignored(whole, ["dead-units@body.2"]).where == ("body.20", "head")
    assert without_ignored(whole, ["dead-units@body", "dead-units@head"]) is None
    assert without_ignored(whole, ["vanishing-gradient@body"]) is whole
    placeless = dataclasses.replace(whole, where=())
    assert without_ignored(placeless, ["dead-units@body"]) is placeless
    assert without_ignored(placeless, ["dead-units"]) is None


def test_an_ignored_root_explains_nothing():
    record = watched(build(tanh_drawn_small, True))
    found = trimtab.diagnose(record, ignore=["vanishing-gradient"])
    assert all("vanishing-gradient" not in f.causes for f in found)


@pytest.mark.parametrize("wrong", ["dead_units", "", "@6", "deadunits@6", "Dead-Units"])
def test_ignore_must_name_a_code(wrong):
    with pytest.raises(UsageError, match="ignore must name a code or CODE@WHERE"):
        trimtab.diagnose(small(), ignore=[wrong])


# The same twice -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", [tanh_drawn_small, heavy_momentum, nan_in_a_feature])
def test_the_same_seeds_give_the_same_diagnosis_to_the_last_digit(problem):
    one, other = (trimtab.diagnose(build(problem, True)) for _ in range(2))
    assert repr(words(one)) == repr(words(other))


# What it refuses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [None, 3, nn.Linear(2, 2), [1]])
def test_it_takes_a_setup_a_record_or_a_path(wrong):
    with pytest.raises(
        UsageError,
        match=f"diagnose takes a Setup, a Record or the path of one, but it was given a {type(wrong).__name__}",
    ):
        trimtab.diagnose(wrong)


def test_records_that_cannot_be_read(tmp_path):
    with pytest.raises(RecordError, match="no record at"):
        trimtab.diagnose(tmp_path / "nothing.db")
    text = tmp_path / "text.db"
    text.write_text("hello")
    with pytest.raises(RecordError, match="not a record of trimtab"):
        trimtab.diagnose(text)
    foreign = tmp_path / "foreign.db"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE t (x)")
    connection.commit()
    connection.close()
    with pytest.raises(RecordError, match="another program"):
        trimtab.diagnose(foreign)


def test_the_record_is_not_written_over(tmp_path):
    path = tmp_path / "run.db"
    trimtab.diagnose(small(3), store=path)
    with pytest.raises(RecordError, match="exists already"):
        trimtab.diagnose(small(3), store=path)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda m, b: m(b[0]), r"must give a scalar tensor, but it gave one of shape \(64, 10\)"),
        (lambda m, b: 1.0, "must give a scalar tensor, but it gave a float"),
        (lambda m, b: None, "must give a scalar tensor, but it gave None"),
    ],
)
def test_a_loss_that_is_not_a_scalar(loss, text):
    with pytest.raises(StepError, match=text):
        trimtab.diagnose(small(loss=loss))


def test_batches_that_can_be_had_once():
    x, y = digits()
    once = iter(passes(x, y)())
    setup = small()
    setup.batches = lambda: once
    with pytest.raises(SetupError, match="same one-shot iterator twice"):
        trimtab.diagnose(setup)
    setup = small()
    setup.batches = list
    with pytest.raises(SetupError, match="at least one batch a pass"):
        trimtab.diagnose(setup)


def test_a_one_shot_iterator_is_refused_before_anything_is_drawn():
    """Also where it has batches enough for the run: check would take the first ones away from it."""
    x, y = digits()
    drawn = []
    endless = (drawn.append(1) or (x[:32], y[:32]) for _ in range(50))
    setup = small(30)
    setup.batches = lambda: endless
    for ask in (trimtab.check, trimtab.diagnose):
        with pytest.raises(SetupError, match="same one-shot iterator twice"):
            ask(setup)
    assert drawn == []


def test_a_new_iterator_a_call_is_a_fresh_pass():
    """The call that tells whether it is a new one is the second pass: nothing is thrown away."""
    calls = []

    def batches():
        calls.append(1)
        number = len(calls)
        return iter([number, number])

    setup = small()
    setup.batches = batches
    assert list(itertools.islice(setup.stream(), 7)) == [1, 1, 2, 2, 3, 3, 4]
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("give", "text"),
    [
        (lambda loss: None, "step must give a scalar tensor, but it gave None"),
        (lambda loss: loss.item(), "step must give a scalar tensor, but it gave a float"),
        (lambda loss: loss.repeat(2), r"step must give a scalar tensor, but it gave one of shape \(2,\)"),
    ],
)
def test_the_loss_of_a_custom_step_is_a_scalar_tensor(give, text):
    setup = small(step=lambda s, b: give(stepping(s, b)))
    with pytest.raises(StepError, match=text):
        next(setup.train())
    detached = small(3, step=lambda s, b: stepping(s, b).detach())
    assert len(list(detached.train())) == 3


@pytest.mark.parametrize("step", [None, lambda s, b: stepping(s, b)])
def test_a_scheduler_that_waits_for_a_plateau_is_given_the_loss(step):
    setup = small(12, step=step)
    setup.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(setup.optimizer, patience=100)
    losses = [loss.item() for loss in setup.train()]
    assert setup.scheduler.best == min(losses)
    assert setup.scheduler.last_epoch == 12


def test_a_scheduler_that_wants_more_is_refused():
    class Mine:
        def step(self, score, epoch=None):
            pass

    with pytest.raises(SetupError, match=r"a step method without arguments, but that of a Mine wants more: .*'score'"):
        small(scheduler=Mine())


def test_the_users_own_error_comes_through_and_the_record_is_closed(tmp_path):
    path = tmp_path / "run.db"
    setup, calls = small(), []

    def loss(model, batch):
        calls.append(1)
        if len(calls) == 8:
            raise ZeroDivisionError("mine")
        return cross_entropy(model, batch)

    setup.loss = loss
    with pytest.raises(ZeroDivisionError, match="mine"):
        trimtab.diagnose(setup, store=path)
    record = Record.open(path)
    assert record.finished
    assert record.facts["how"] == "ZeroDivisionError: mine"
    assert record.step_count == 7
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in setup.model.modules())


def stepping(setup, batch, *, back=True, step=True):
    setup.optimizer.zero_grad()
    loss = setup.loss(setup.model, batch)
    if back:
        loss.backward()
    if step:
        setup.optimizer.step()
    return loss


def test_a_step_that_never_steps():
    """Nothing trains; it must end, without an exception and without a false name for it."""
    found = trimtab.diagnose(small(step=lambda s, b: stepping(s, b, step=False)))
    assert found.run.steps == 0 or found.run.recorded >= 1


def test_a_step_that_does_nothing():
    found = trimtab.diagnose(small(step=lambda s, b: stepping(s, b, back=False, step=False)))
    assert found.findings == ()
    assert found.run.steps == 0


def test_errors_are_of_one_family():
    assert issubclass(UsageError, TrimtabError)
    assert issubclass(SetupError, (TrimtabError, ValueError))
    assert issubclass(StepError, TrimtabError)
    assert issubclass(RecordError, TrimtabError)

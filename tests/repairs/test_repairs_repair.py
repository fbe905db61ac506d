"""From a run that does not train to a proved repair."""

import dataclasses
import json
import threading

import pytest
import torch
from repair_cases import healthy, make_setup, too_slow
from torch import nn

import trimtab
from trimtab.errors import RepairError, UsageError
from trimtab.repairs.change import Change
from trimtab.repairs.patient import Patient
from trimtab.repairs.running import Serial


@pytest.fixture(scope="module")
def mended():
    return trimtab.repair(too_slow, executor=Serial(), progress=False)


def test_a_fault_is_named_and_its_repair_proved(mended):
    assert mended.diagnosis.roots[0].code == "learning-rate-too-low"
    best = mended.best
    assert best.proved
    assert best.seeds >= 3
    assert best.score > best.baseline
    assert best.interval[0] > 0
    assert best.interval_random[0] > 0
    assert str(best.repair) == best.repair.summary == "raise the learning rate to 1000 times what it is"


def test_the_repair_can_be_made_to_a_fresh_setup(mended):
    setup = too_slow(77)
    assert mended.best.apply(setup) is setup
    for _ in setup.train():
        pass
    setup.model.eval()
    untouched = too_slow(77)
    for _ in untouched.train():
        pass
    assert setup.evaluate(setup.model) > untouched.evaluate(untouched.model.eval()) + 0.2


def test_a_repair_is_made_to_a_setup_once(mended):
    setup = too_slow(77)
    mended.best.apply(setup)
    rate = setup.optimizer.param_groups[0]["lr"]
    with pytest.raises(RepairError, match="made to this setup already; apply it to a fresh one"):
        mended.best.apply(setup)
    assert setup.optimizer.param_groups[0]["lr"] == rate
    mended.best.apply(too_slow(77))


def test_it_stays_within_its_budget_and_counts_its_steps(mended):
    assert mended.run_steps == 100
    assert mended.steps <= 25 * 100
    assert mended.steps >= 100 * 3 * 3
    assert mended.finished


def test_text_and_json(mended):
    text = str(mended)
    assert "repair proved" in text
    assert mended.best.repair.summary[:40] in text
    assert all(len(line) <= 80 for line in text.splitlines() if not line.startswith(" " * 14))  # but for code
    document = json.loads(mended.to_json())
    assert document["best"]["proved"] is True
    assert document["diagnosis"]["findings"][0]["code"] == "learning-rate-too-low"
    assert [t["repair"]["summary"] for t in document["trials"]] == [t.repair.summary for t in mended.trials]


def test_a_healthy_run_is_left_alone():
    found = trimtab.repair(healthy, executor=Serial(), progress=False)
    assert found.best is None
    assert found.trials == ()
    assert found.steps == 100
    assert "nothing to repair" in str(found)


def test_a_change_that_is_no_better_than_chance_is_not_proved():
    """Candidates that do nothing at all: whatever the luck of a seed, there is no gain."""
    idle = lambda finding, patient: [Change("scale-rate", {"factor": 1.0})]  # noqa: E731
    found = trimtab.repair(too_slow, executor=Serial(), progress=False, propose=idle)
    assert found.best is None
    assert found.trials[0].interval == (0.0, 0.0)
    assert "no repair proved" in str(found)


def test_an_interrupted_repair_goes_on_where_it_was(tmp_path, mended):
    journal, runs = tmp_path / "journal.jsonl", []

    class Interrupted(Serial):
        def submit(self, fn, /, *args, **kwargs):
            runs.append(1)
            if len(runs) == 5:
                raise KeyboardInterrupt
            return super().submit(fn, *args, **kwargs)

    with pytest.raises(KeyboardInterrupt):
        trimtab.repair(too_slow, executor=Interrupted(), progress=False, journal=journal)
    kept = sum(1 for line in journal.read_bytes().splitlines() if line)
    found = trimtab.repair(too_slow, executor=Interrupted(), progress=False, journal=journal)
    assert kept >= 1
    assert found.to_json() == mended.to_json()
    assert len(runs) - 5 == sum(1 for line in journal.read_bytes().splitlines() if line) - kept


def test_progress_is_told(mended):
    told = []
    trimtab.repair(too_slow, executor=Serial(), progress=lambda text, done, most: told.append((text, done, most)))
    assert told[-1][1:] == (mended.steps, 25 * 100)
    assert "best so far" in told[-1][0]


def test_arguments_are_checked():
    with pytest.raises(UsageError, match="make_setup must be a function of a seed"):
        trimtab.repair(make_setup(0))
    with pytest.raises(UsageError, match="seeds must be a whole number of at least 2, but it is 1"):
        trimtab.repair(too_slow, seeds=1)
    with pytest.raises(UsageError, match="budget must be at least 11 training runs"):
        trimtab.repair(too_slow, budget=5)
    with pytest.raises(UsageError, match="there is no code"):
        trimtab.repair(too_slow, ignore=["nonsense"], executor=Serial(), progress=False)
    for budget in ("25", float("inf"), float("nan")):
        with pytest.raises(UsageError, match=r"budget must be at least 11 training runs .* and finite"):
            trimtab.repair(too_slow, budget=budget)
    with pytest.raises(UsageError, match="journal must be a file in a folder that there is"):
        trimtab.repair(too_slow, journal="no/such/folder/journal.jsonl")
    lock = threading.Lock()
    with pytest.raises(RepairError, match="cloudpickle can send to another process"):
        trimtab.repair(lambda seed: (lock, too_slow(seed))[1], executor=Serial(), progress=False)


def test_the_text_says_how_near_it_came_and_that_the_budget_ended(mended):
    found = trimtab.repair(too_slow, executor=Serial(), progress=False, budget=14)
    assert found.best is None
    assert not found.finished
    text = " ".join(str(found).split())
    assert f"Nearest to it: {found.trials[0].repair.summary}. Gain over doing nothing" in text
    assert "the budget ended before all was decided" in text
    assert mended.finished
    assert "the budget ended" not in " ".join(str(mended).split())


@pytest.mark.parametrize(("seeds", "budget"), [(2, 8), (3, 11), (3, 14), (2, 8.5)])
def test_the_least_budget_has_room_for_a_proof(seeds, budget):
    def many(finding, patient):
        return [Change("scale-rate", {"factor": f}) for f in (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0)]

    found = trimtab.repair(too_slow, executor=Serial(), progress=False, seeds=seeds, budget=budget, propose=many)
    assert found.steps <= budget * 100
    assert found.trials[0].seeds >= seeds
    assert found.trials[0].interval is not None
    assert found.trials[0].interval_random is not None


def test_an_error_of_a_familys_own_is_a_proposal_that_is_not_made(monkeypatch, mended):
    from trimtab.repairs import change
    from trimtab.repairs.families import FAMILIES

    def raises(*_):
        raise ZeroDivisionError("what the family has not thought of")

    def half(finding, patient):
        yield Change("scale-rate", {"factor": 300.0})
        raises()

    training = next(f for f in FAMILIES if "scale-rate" in f.kinds)
    code = mended.diagnosis.roots[0].code
    kinds = {name: dataclasses.replace(kind, sample=raises) for name, kind in training.kinds.items()}
    broken = dataclasses.replace(training, kinds=kinds, answers={code: (raises, half, *training.answers[code])})
    others = [f for f in FAMILIES if f is not training]
    monkeypatch.setattr("trimtab.repairs.families.FAMILIES", (*others, broken))
    found = trimtab.repair(too_slow, executor=Serial(), progress=False)
    factors = {c.settings.get("factor") for trial in found.trials for c in trial.changes}
    assert {300.0, 1000.0} <= factors
    failed = []
    list(change.answers_to(found.diagnosis.roots[0], Patient(lambda: too_slow(0)), failed.append))
    assert [str(error) for error in failed] == ["what the family has not thought of"] * 2


def test_one_run_is_told_as_one():
    text = " ".join(str(trimtab.repair(healthy, executor=Serial(), progress=False)).split())
    assert "100 training steps, as many as 1 run of 100 steps" in text


def test_scores_that_are_never_a_number_are_told():
    make = lambda seed: dataclasses.replace(too_slow(seed), evaluate=lambda model: float("nan"))  # noqa: E731
    found = trimtab.repair(make, executor=Serial(), progress=False)
    assert found.best is None
    assert "look at what evaluate, or the loss, gives" in found.notes[0]


def test_seeds_that_give_the_same_run_prove_nothing():
    found = trimtab.repair(lambda seed: too_slow(0), executor=Serial(), progress=False)
    assert found.best is None
    assert found.trials[0].interval[0] > 0  # it would have been proved
    assert not found.trials[0].proved
    assert "gives the same run for every seed" in found.notes[0]


def test_random_states_are_as_they_were():
    before = torch.get_rng_state()
    trimtab.repair(healthy, executor=Serial(), progress=False)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_processes_and_a_cluster_prescribe_the_same(mended):
    from distributed import Client, LocalCluster

    assert trimtab.repair(too_slow, progress=False).to_json() == mended.to_json()
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        found = trimtab.repair(too_slow, executor=client.get_executor(), progress=False)
    assert found.to_json() == mended.to_json()


def asserts(seed):
    """A rate somewhat too high for a parabola, under a loss that refuses to grow without end."""
    setup = make_setup(seed, lr=1.0, net=lambda: nn.Linear(2, 4))

    def loss(model, batch):
        value = (model(batch[0]) - nn.functional.one_hot(batch[1], 4)).square().mean() * 4
        assert value < 1e8, "the loss is out of bounds"
        return value

    setup.loss = loss
    return setup


def test_a_run_that_its_own_assertion_ends_is_a_result():
    found = trimtab.repair(asserts, executor=Serial(), progress=False)
    assert any("broke down after" in note and "the loss is out of bounds" in note for note in found.notes)
    assert found.diagnosis.roots[0].code == "learning-rate-too-high"
    assert found.trials


def test_an_error_before_the_first_step_is_the_users():
    def broken(seed):
        setup = make_setup(seed)
        setup.loss = lambda model, batch: 1 / 0
        return setup

    with pytest.raises(ZeroDivisionError):
        trimtab.repair(broken, executor=Serial(), progress=False)

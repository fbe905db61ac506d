"""One run with changes: its score, its failures, and what it leaves behind."""

import dataclasses
import json
import pickle
import random
from base64 import b64encode
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

import cloudpickle
import numpy as np
import pytest
import torch
from repair_cases import healthy, make_setup, too_slow
from torch import nn

from trimtab.errors import RepairError, SetupError
from trimtab.repairs.change import Change
from trimtab.repairs.running import Journal, Running, Serial, local_executor
from trimtab.repairs.trials import Job, run_job

FASTER = Change("scale-rate", {"factor": 1000.0})
WRECKING = Change("scale-rate", {"factor": 1e9})


def done(make, job):
    return run_job(cloudpickle.dumps((make, job)))


def test_the_score_is_that_of_plain_training():
    setup = make_setup(5)
    for _ in setup.train():
        pass
    setup.model.eval()
    assert done(healthy, Job((), 5)).score == setup.evaluate(setup.model)


def test_a_change_is_made_before_training():
    setup = make_setup(5, lr=0.1)
    for _ in setup.train():
        pass
    setup.model.eval()
    assert done(too_slow, Job((FASTER,), 5)).score == setup.evaluate(setup.model)


def test_without_evaluate_the_score_is_minus_the_area_under_the_loss():
    make = lambda seed: make_setup(seed, evaluate=False, steps=8)  # noqa: E731
    setup, losses = make(3), []
    for _ in setup.train():
        setup.model.eval()
        with torch.no_grad():
            losses.append(np.mean([float(setup.loss(setup.model, batch)) for batch in setup.batches()]))
        setup.model.train()
    assert done(make, Job((), 3)).score == pytest.approx(-np.mean(losses), rel=1e-12)


def test_watching_changes_no_digit_of_the_score():
    plain, watched = (done(too_slow, Job((FASTER,), 1, watched=w)) for w in (False, True))
    assert plain.score == watched.score
    assert plain.diagnosis is None
    assert watched.diagnosis is not None


def test_a_part_of_a_run_takes_a_part_of_its_steps():
    assert done(healthy, Job((), 0, 1 / 3)).steps == 34
    assert done(healthy, Job((), 0, 0)).steps == 0


def test_a_changed_run_that_breaks_is_a_result():
    make = lambda seed: make_setup(seed, evaluate=False)  # noqa: E731
    outcome = done(make, Job((WRECKING,), 0))
    assert outcome.score is None
    assert "not a finite number" in outcome.why


class Broken(nn.Module):
    def forward(self, x):
        raise ZeroDivisionError("in the user's own model")


def test_the_users_own_error_is_not_hidden():
    broken = lambda seed: make_setup(seed, net=lambda: nn.Sequential(nn.Linear(2, 4), Broken()))  # noqa: E731
    with pytest.raises(ZeroDivisionError, match="the user's own model"):
        done(broken, Job((), 0))
    assert "ZeroDivisionError" in done(broken, Job((FASTER,), 0)).why


def test_a_factory_of_something_else_is_refused():
    with pytest.raises(SetupError, match="must return a trimtab"):
        done(lambda seed: 3, Job((), 0))


@pytest.mark.parametrize(
    ("given", "told"),
    [(lambda: None, "a NoneType"), (lambda: torch.ones(2), r"a Tensor of shape \(2,\)"), (list, "a list")],
)
def test_an_evaluate_that_gives_no_number_is_named(given, told):
    make = lambda seed: dataclasses.replace(make_setup(seed, steps=1), evaluate=lambda model: given())  # noqa: E731
    with pytest.raises(SetupError, match=f"evaluate must give a number, higher is better, but it gave {told}"):
        done(make, Job((), 0))


def test_a_score_may_be_a_tensor_that_takes_gradients():
    make = lambda seed: dataclasses.replace(  # noqa: E731
        make_setup(seed, steps=1), evaluate=lambda model: model[0].weight.sum() * 0 + 0.25
    )
    assert done(make, Job((), 0)).score == 0.25


def test_threads_and_random_states_are_as_they_were():
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate(), torch.get_num_threads()
    done(healthy, Job((), 0))
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate(), torch.get_num_threads()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_a_factory_that_does_not_seed_draws_the_same_each_time():
    def unseeded(seed):
        setup = make_setup(0)
        for layer in setup.model:
            if isinstance(layer, nn.Linear):
                layer.weight.data = torch.randn_like(layer.weight)
        return setup

    torch.manual_seed(7)
    first = done(unseeded, Job((), 0)).score
    torch.manual_seed(8)
    assert done(unseeded, Job((), 0)).score == first


class TestRunning:
    JOBS = (Job((), 0), Job((FASTER,), 0), Job((), 0))

    def test_equal_jobs_are_run_once_and_counted_once(self):
        running = Running(too_slow, Serial(), Journal(None, ""))
        outcomes = running.run(self.JOBS)
        assert outcomes[0] == outcomes[2]
        assert running.steps == 2 * 100

    def test_what_is_written_down_is_not_run_again(self, tmp_path):
        path, told = tmp_path / "journal.jsonl", []
        first = Running(too_slow, Serial(), Journal(path, "x")).run(self.JOBS)

        class Refusing(Serial):
            def submit(self, fn, /, *args, **kwargs):
                raise AssertionError("run again")

        second = Running(too_slow, Refusing(), Journal(path, "x"), lambda job, outcome: told.append(job))
        assert second.run(self.JOBS) == first
        assert second.steps == 2 * 100  # so that a resumed repair decides as one that was not interrupted
        assert len(told) == 2

    def test_a_line_that_was_cut_off_and_other_peoples_lines_are_passed_over(self, tmp_path):
        path = tmp_path / "journal.jsonl"
        Running(too_slow, Serial(), Journal(path, "x")).run(self.JOBS[:1])
        whole = path.read_bytes()
        path.write_bytes(whole + b'\n{"name": "x", "job": "[] 1 1 F')
        assert len(Journal(path, "x")) == 1
        assert len(Journal(path, "y")) == 0
        Running(too_slow, Serial(), Journal(path, "x")).run(self.JOBS[1:2])
        assert len(Journal(path, "x")) == 2

    @pytest.mark.parametrize(
        "line",
        [
            b"42",
            b"null",
            json.dumps({"name": "x", "job": "j", "outcome": 7}).encode(),
            json.dumps({"name": "x", "job": "j", "outcome": b64encode(b"cno_such_module\nX\n.").decode()}).encode(),
            json.dumps({"name": "x", "job": "j", "outcome": b64encode(pickle.dumps("text")).decode()}).encode(),
        ],
    )
    def test_lines_that_are_no_outcome_are_passed_over(self, tmp_path, line):
        path = tmp_path / "journal.jsonl"
        Running(too_slow, Serial(), Journal(path, "x")).run(self.JOBS[:1])
        path.write_bytes(line + b"\n" + path.read_bytes())
        assert len(Journal(path, "x")) == 1

    def test_in_one_process_each_run_is_written_down_before_the_next_begins(self, tmp_path):
        path, kept = tmp_path / "journal.jsonl", []

        class Looking(Serial):
            def submit(self, fn, /, *args, **kwargs):
                kept.append(len(Journal(path, "x")))
                return super().submit(fn, *args, **kwargs)

        Running(too_slow, Looking(), Journal(path, "x")).run(self.JOBS)
        assert kept == [0, 1]

    def test_a_killed_process_is_told_with_what_to_do(self):
        class Killed(Serial):
            def submit(self, fn, /, *args, **kwargs):
                future = Future()
                future.set_exception(BrokenProcessPool("terminated abruptly"))
                return future

        with pytest.raises(RepairError, match=r"memory ran out; do fewer at a time"):
            Running(too_slow, Killed(), Journal(None, "")).run(self.JOBS)

    def test_processes_give_the_same_digits(self):
        serial, processes = (
            Running(too_slow, e, Journal(None, "")).run(self.JOBS) for e in (Serial(), local_executor())
        )
        assert serial == processes

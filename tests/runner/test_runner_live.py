"""A diagnosis while the run trains: what is new is told once, a run that blows up is stopped, and a fault of ours harms nothing."""

import warnings

import pytest
import torch
from torch import nn

import trimtab
from trimtab.recording import Record
from trimtab.runner import live


class Run:
    """A net that learns, whose rate can be raised in the middle."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.losses = []

    def train(self, steps, raised=None, to=1e4):
        for step in range(steps):
            if step == raised:
                self.optimizer.param_groups[0]["lr"] = to
            x = torch.randn(32, 8)
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), x[:, :4].argmax(1))
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())


@pytest.mark.parametrize("to", [1e4, 1e30])
def test_a_run_whose_rate_explodes_is_stopped_soon(to, capsys):
    run = Run()
    with trimtab.watch(run.model, run.optimizer, every=1, on_finding="stop", diagnose_every=5) as watch:
        run.train(300, raised=60, to=to)
    assert 60 < len(run.losses) < 60 + 25
    assert watch.record.finished
    assert watch.record.facts["how"].startswith("stopped at step")
    assert capsys.readouterr().err.startswith("trimtab: stopped at step")
    assert not watch.diagnose().healthy
    assert not run.model._forward_hooks
    run.train(3)  # nobody stops it any more


def test_a_healthy_run_is_not_stopped_and_not_one_bit_changes():
    plain, run = Run(), Run()
    torch.manual_seed(1)
    plain.train(120)
    torch.manual_seed(1)
    told = []
    with trimtab.watch(run.model, run.optimizer, every=1, on_finding=told.append, diagnose_every=3) as watch:
        run.train(120)
    assert told == []
    assert watch.diagnose().healthy
    assert run.losses == plain.losses
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), run.model.parameters(), strict=True))


def dead():
    """A net whose first layer is dead from the start."""
    run = Run()
    with torch.no_grad():
        run.model[0].bias.fill_(-100.0)
    return run


def test_each_finding_is_told_once_and_at_the_same_step_in_each_run():
    def steps():
        run, told = dead(), []

        def tell(finding):
            told.append((len(run.losses), finding.code, finding.where))

        with trimtab.watch(run.model, run.optimizer, every=1, on_finding=tell, diagnose_every=4):
            run.train(80)
        return told

    first, second = steps(), steps()
    assert first == second
    assert "dead-units" in {code for _, code, _ in first}
    assert len({(code, where) for _, code, where in first}) == len(first)
    assert min(at for at, _, _ in first) == 13  # a second look confirms what the first, at the tenth step, has found


@pytest.mark.parametrize("raised", [ValueError("mine"), KeyboardInterrupt(), trimtab.RunStopped("enough")])
def test_what_the_callback_raises_ends_the_run(raised):
    run = dead()

    def tell(finding):
        raise raised

    def train():
        with trimtab.watch(run.model, run.optimizer, every=1, on_finding=tell, diagnose_every=4) as watch:
            seen.append(watch)
            run.train(80)

    seen = []
    if isinstance(raised, trimtab.RunStopped):
        train()
    else:
        with pytest.raises(type(raised)) as caught:
            train()
        assert caught.value is raised
    assert len(run.losses) < 40
    assert seen[0].record.finished
    assert "fault" not in seen[0].record.facts
    assert not run.model[0]._forward_hooks


def test_a_plain_watch_raises_at_each_further_step():
    run = dead()
    watch = trimtab.watch(run.model, run.optimizer, every=1, on_finding="stop", diagnose_every=4)
    for _ in range(2):
        with pytest.raises(trimtab.RunStopped, match=r"stopped at step .* for "):
            run.train(80)
    watch.close()


def test_a_fault_of_the_diagnosis_is_one_warning_and_the_run_goes_on(monkeypatch):
    plain, run = Run(), Run()
    torch.manual_seed(1)
    plain.train(60)
    monkeypatch.setattr(live, "diagnose", lambda *a, **k: 1 / 0)
    torch.manual_seed(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with trimtab.watch(run.model, run.optimizer, every=1, on_finding="stop", diagnose_every=2) as watch:
            run.train(60)
    assert [str(w.message).count("ZeroDivisionError") for w in caught] == [1]
    assert run.losses == plain.losses
    assert watch.record.step_count == 60
    assert watch.record.facts["live_fault"].startswith("ZeroDivisionError")
    assert "fault" not in watch.record.facts


def test_looks_cost_no_more_than_their_share():
    """Where nobody says how often, the clock does: a run of half a second pays for none."""
    run = dead()
    with trimtab.watch(run.model, run.optimizer, every=1, on_finding=lambda finding: looked.append(finding)) as watch:
        looked = []
        run.train(40)
    assert looked == []
    facts = watch.record.facts
    assert facts["seconds"] < live.GUESS / live.SHARE

    class Clock:
        spent, seconds = 0.0, 100.0

    looks = live.Live(Clock(), print)
    looks._recorded, looks._looked, looks.looks, looks._last, looks.spent = 20, 10, 1, 0.4, 0.4
    assert not looks._is_time()  # a look at twice as much takes 0.8 s: 1.2 s of 100
    looks.spent = 0.1
    assert looks._is_time()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"on_finding": "halt"}, TypeError),
        ({"on_finding": 3}, TypeError),
        ({"on_finding": print, "diagnose_every": 0}, ValueError),
        ({"on_finding": print, "diagnose_every": True}, ValueError),
        ({"diagnose_every": 5}, ValueError),
        ({"budget": 0.1}, ValueError),
    ],
)
def test_arguments_that_make_no_sense(options, kind, tmp_path):
    run = Run()
    with pytest.raises(kind):
        trimtab.watch(run.model, run.optimizer, store=tmp_path / "a.db", **options)
    assert not run.model._forward_pre_hooks
    assert not list(tmp_path.iterdir())


def test_a_script_is_stopped_with_its_report_and_status_1(shell, net):
    shell.write(
        "s.py", net, "model[0].bias.data.fill_(-100)\nprint('begins', flush=True)\ntrain(3000)\nprint('trained')"
    )
    done = shell.trimtab("run", "--every", "1", "--stop-on", "error", "--diagnose-every", "5", "s.py")
    assert (done.status, done.out) == (1, "begins\n")
    assert "trimtab: stopped at step" in done.err
    assert "dead-units" in done.err
    (path,) = shell.records
    assert Record.open(path).finished
    assert Record.open(path).step_count < 60


def test_a_script_that_catches_everything_is_stopped_too(shell, net):
    body = "model[0].bias.data.fill_(-100)\nwhile True:\n    try:\n        train(1)\n    except BaseException:\n        pass"
    shell.write("s.py", net, body)
    done = shell.trimtab("run", "--every", "1", "--stop-on", "error", "--diagnose-every", "5", "s.py")
    assert done.status == 1
    assert "dead-units" in done.err


def test_a_healthy_script_is_not_stopped(shell, net):
    shell.write("s.py", net, "print(train(60))")
    plain = shell.plain("s.py")
    done = shell.trimtab("run", "--every", "1", "--stop-on", "warning", "--diagnose-every", "3", "s.py")
    assert (done.status, done.out) == (0, plain.out), done.err

"""`trimtab.watch` in a loop of the user's own."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim_module

import trimtab

BACKWARD = torch.autograd.backward


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    assert torch.autograd.backward is BACKWARD
    assert not optim_module._global_optimizer_pre_hooks
    assert not optim_module._global_optimizer_post_hooks
    assert not nn_module._global_forward_hooks
    assert not nn_module._global_forward_pre_hooks


def hooks(*things):
    found = []
    for thing in things:
        parts = thing.modules() if isinstance(thing, nn.Module) else [thing]
        for part in parts:
            found += [v for k, v in vars(part).items() if "hooks" in k and "state_dict" not in k and v]
    return found


class Run:
    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.x, self.y = torch.randn(16, 4), torch.randint(0, 2, (16,))

    def train(self, steps=3):
        for _ in range(steps):
            loss = nn.functional.cross_entropy(self.model(self.x), self.y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss


def test_a_context_manager():
    plain, run = Run(), Run()
    torch.manual_seed(3)
    expected = plain.train(15).item()
    torch.manual_seed(3)
    with trimtab.watch(run.model, run.optimizer) as watch:
        run.train(4)
        assert watch.record.step_count >= 3
        assert not watch.record.finished
        assert watch.diagnose().healthy
        assert run.train(11).item() == expected
    assert watch.record.finished
    assert watch.record.step_count == 15
    assert watch.record.facts["how"] == "ended"
    assert watch.diagnose().healthy
    assert "nothing found" in str(watch.diagnose())
    assert not hooks(run.model, run.optimizer)


@pytest.mark.parametrize("raised", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_an_exception_inside_leaves_no_hooks(raised):
    run = Run()
    with pytest.raises(type(raised)) as caught, trimtab.watch(run.model, run.optimizer) as watch:
        run.train(2)
        raise raised
    assert caught.value is raised
    assert not hooks(run.model, run.optimizer)
    assert watch.record.finished
    assert watch.record.facts["how"].startswith(type(raised).__name__)
    assert watch.record.step_count == 2


@pytest.mark.parametrize("where", ["forward", "backward", "closure", "hook"])
def test_the_users_error_is_the_same_error(where):
    def attempt(run):
        if where == "forward":
            run.model(run.x[:, :3])
        elif where == "backward":
            run.model(run.x).mean().backward(torch.ones(3))
        elif where == "closure":
            run.optimizer.step(lambda: 1 / 0)
        else:
            out = run.model(run.x)
            out.register_hook(lambda g: 1 / 0)
            out.mean().backward()

    found = []
    for watched in (False, True):
        run = Run()
        with pytest.raises((RuntimeError, ZeroDivisionError)) as caught:
            if watched:
                with trimtab.watch(run.model, run.optimizer):
                    run.train(2)
                    attempt(run)
            else:
                run.train(2)
                attempt(run)
        trace = [entry for entry in caught.traceback if "/src/trimtab/" in str(entry.path)]
        assert len(trace) <= 1, trace  # the wrapper of torch.autograd.backward, or of the closure
        found.append((type(caught.value), str(caught.value)))
    assert found[0] == found[1]


def test_several_models_and_optimizers_have_the_callers_names():
    encoder, decoder = nn.Linear(4, 2), nn.Linear(2, 4)
    first, second = (torch.optim.SGD(m.parameters(), 0.1) for m in (encoder, decoder))
    x = torch.randn(8, 4)
    with trimtab.watch([encoder, decoder], (first, second)) as watch:
        for _ in range(4):
            loss = (decoder(encoder(x)) - x).square().mean()
            first.zero_grad(), second.zero_grad()
            loss.backward()
            first.step(), second.step()
    record = watch.record
    assert [m["label"] for m in record.models] == ["encoder", "decoder"]
    assert [o["label"] for o in record.optimizers] == ["first", "second"]
    assert record.step_count == 4
    assert record.site(1, "weight", "update") is not None


def test_models_without_names_of_their_own_are_told_apart():
    models = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    with trimtab.watch(list(models), torch.optim.SGD(models.parameters(), 0.1)) as watch:
        models[1](models[0](torch.ones(2, 4))).mean().backward()
    del watch


WRONG = {
    "a number": (lambda r: (5, r.optimizer), "model must be a torch Module or several of them, not int"),
    "a name": (lambda r: (r.model, "sgd"), "optimizer must be a torch Optimizer or several of them, not str"),
    "nothing": (lambda r: (r.model, None), "optimizer must be a torch Optimizer or several of them, not NoneType"),
    "swapped": (lambda r: (r.optimizer, r.model), "model must be a torch Module or several of them, not SGD"),
    "parameters": (lambda r: (r.model.parameters(), r.optimizer), "model must be .* not Parameter"),
    "no model": (lambda r: ([], r.optimizer), "model must be .*not an empty list"),
    "no optimizer": (lambda r: (r.model, ()), "optimizer must be .*not an empty tuple"),
    "a class": (lambda r: (nn.Linear, r.optimizer), "model must be .*not type"),
    "one wrong": (lambda r: (r.model, [r.optimizer, 3]), "optimizer must be .*not int"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name, tmp_path):
    given, message = WRONG[name]
    run = Run()
    with pytest.raises(TypeError, match=message):
        trimtab.watch(*given(run), store=tmp_path / "r.db")
    assert not (tmp_path / "r.db").exists()
    assert not hooks(run.model, run.optimizer)


@pytest.mark.parametrize("every", [0, -3, 1.5, "2", True])
def test_wrong_schedules(every):
    run = Run()
    if every is True:
        trimtab.watch(run.model, run.optimizer, every=every).close()
        return
    with pytest.raises(ValueError, match="every must be a whole number"):
        trimtab.watch(run.model, run.optimizer, every=every)
    assert not hooks(run.model, run.optimizer)


def test_log():
    run = Run()
    with trimtab.watch(run.model, run.optimizer) as watch:
        for step in range(3):
            loss = run.train(1)
            watch.log(loss=loss, step=step, ratio=0.5, one=torch.ones(1, 1), flag=True, bad=float("nan"))
        for wrong in ("x", None, torch.ones(2), [1.0]):
            with pytest.raises(TypeError, match="value must be a number or a tensor of one element, not a "):
                watch.log(value=wrong)
    assert set(watch.record.logged) == {"loss", "step", "ratio", "one", "flag", "bad"}
    assert watch.record.logged["step"][1].tolist() == [0, 1, 2]


def test_a_log_after_the_end_is_refused():
    """It could go nowhere; to drop it would leave a gap in the record that nobody can explain."""
    run = Run()
    with trimtab.watch(run.model, run.optimizer) as watch:
        loss = run.train(1)
    with pytest.raises(trimtab.UsageError, match="this watch has ended, so its record is closed"):
        watch.log(loss=loss)
    assert watch.record.logged == {}


def test_more_models_or_optimizers_than_one_are_asked_for_as_a_list():
    run = Run()
    with pytest.raises(
        TypeError, match=r"but it was given SGD besides: write watch\(\[model, ...\], \[optimizer, ...\]\)"
    ):
        trimtab.watch(run.model, run.optimizer, run.optimizer)
    with pytest.raises(TypeError, match="given SGD, int besides"):
        trimtab.watch(run.model, run.model, run.optimizer, 5)
    assert not hooks(run.model, run.optimizer)


def test_a_store_in_a_file(tmp_path):
    run = Run()
    path = tmp_path / "deep" / "r.db"
    with trimtab.watch(run.model, run.optimizer, store=path, every=2, name="mine") as watch:
        run.train(5)
        assert trimtab.Record.open(path).step_count >= 4
        assert trimtab.diagnose(path).healthy
    assert trimtab.Record.open(path).finished
    assert trimtab.Record.open(path).facts["name"] == "mine"
    assert "mine" in str(watch.diagnose())
    with pytest.raises(trimtab.RecordError, match="exists already"):
        trimtab.watch(run.model, run.optimizer, store=path)
    assert not hooks(run.model, run.optimizer)


def test_used_as_a_plain_object():
    run = Run()
    watch = trimtab.watch(run.model, run.optimizer)
    run.train(4)
    watch.close()
    assert watch.record.step_count == 4
    assert not hooks(run.model, run.optimizer)
    watch.close()
    assert watch.record.step_count == 4
    run.train(2)
    assert watch.record.step_count == 4


def test_abandoned():
    run = Run()
    watch = trimtab.watch(run.model, run.optimizer)
    run.train(2)
    del watch
    run.train(2)
    assert not hooks(run.model)


def test_used_twice():
    run = Run()
    watch = trimtab.watch(run.model, run.optimizer)
    with watch:
        run.train(2)
    with pytest.raises(trimtab.UsageError, match="this watch has ended: make a new one"), watch:
        run.train(2)
    assert watch.record.step_count == 2
    with trimtab.watch(run.model, run.optimizer) as again:
        run.train(3)
    assert again.record.step_count == 3
    assert not hooks(run.model, run.optimizer)


def test_two_watches_at_the_same_time():
    plain, run = Run(), Run()
    torch.manual_seed(3)
    expected = plain.train(12).item()
    torch.manual_seed(3)
    with trimtab.watch(run.model, run.optimizer) as outer:
        run.train(4)
        with trimtab.watch(run.model, run.optimizer) as inner:
            run.train(4)
        assert run.train(4).item() == expected
    assert outer.record.step_count == 12
    assert inner.record.step_count == 4
    a, b = (w.record.series(w.record.site(0, "0", "gradient")) for w in (outer, inner))
    assert len(b) == 4
    assert a.rows[4].tolist() == b.rows[0].tolist()
    assert not hooks(run.model, run.optimizer)


def test_nothing_is_warned_of():
    run = Run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with trimtab.watch(run.model, run.optimizer) as watch:
            run.train(12)
        str(watch.diagnose())


def test_options_of_diagnose():
    run = Run()
    with trimtab.watch(run.model, run.optimizer) as watch:
        run.train(2)
    with pytest.raises(trimtab.UsageError, match="no code 'nonsense'"):
        watch.diagnose(ignore=["nonsense"])
    assert watch.diagnose(ignore=["dead-units"]).healthy


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_takes_no_hooks():
    inner = torch.jit.script(nn.Linear(3, 3))
    with pytest.raises(trimtab.UsageError, match="TorchScript"):
        trimtab.watch(inner, torch.optim.SGD(inner.parameters(), 0.1))
    model = nn.Sequential(inner, nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trimtab.watch(model, optimizer) as watch:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    record = watch.record
    names = {site.name for site in record.of_kind("output")}
    assert names >= {"1"}
    assert "0" not in names
    assert record.series(record.site(0, "0.weight", "update")).count[0] == 9

"""Exceptions, copies and forgotten recorders: nothing of the recorder is left behind, and nothing of it breaks the run."""

import copy
import gc
import io
import pickle
import warnings
import weakref

import pytest
import torch
from recording_cases import Net, count, hooks, record_of, watching

from trimtab.recording import Recorder, Schedule, Store
from trimtab.stats import Tape

BACKWARD = torch.autograd.backward


def made():
    net = Net()
    return net, torch.optim.SGD(net.parameters(), 0.1)


def clean(*objects):
    return hooks(*objects) == [] and torch.autograd.backward is BACKWARD


class Raises:
    """A place in the training step at which an error comes up."""

    def __init__(self, where, error):
        self.where, self.error, self.armed = where, error, False

    def __call__(self, where):
        if self.armed and where == self.where:
            self.armed = False
            raise self.error("mine")


def step(net, optimizer, bomb):
    optimizer.zero_grad()
    h = net.act(net.a(torch.randn(8, 5))) if bomb.where == "parts" else None
    y = net(torch.randn(8, 5)) if h is None else net.b(h)
    bomb("after forward")
    y.register_hook(lambda grad: bomb("backward"))
    y.square().mean().backward()
    bomb("after backward")
    optimizer.step()
    bomb("after step")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize(
    "where", ["forward", "parts", "after forward", "backward", "after backward", "step", "after step"]
)
def test_an_error_of_the_user_passes_through_and_leaves_nothing(where, error):
    net, optimizer = made()
    bomb = Raises(where, error)
    handles = [
        net.act.register_forward_pre_hook(lambda *_: bomb("forward")),
        net.b.register_forward_pre_hook(lambda *_: bomb("parts")),
        optimizer.register_step_pre_hook(lambda *_: bomb("step")),
    ]
    before = len(hooks(net, optimizer))

    def train():
        with watching(net, optimizer) as recorder:
            found.append(recorder)
            step(net, optimizer, bomb)
            bomb.armed = True
            step(net, optimizer, bomb)

    found = []
    with pytest.raises(error, match="mine"):
        train()
    assert torch.autograd.backward is BACKWARD
    assert len(hooks(net, optimizer)) == before
    assert record_of(found[0]).step_count == (2 if where == "after step" else 1)
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("where", ["forward", "parts", "after forward", "backward", "after backward", "step"])
def test_a_run_that_goes_on_after_an_error_is_recorded_as_ever(where):
    net, optimizer = made()
    bomb = Raises(where, ValueError)
    net.act.register_forward_pre_hook(lambda *_: bomb("forward"))
    net.b.register_forward_pre_hook(lambda *_: bomb("parts"))
    optimizer.register_step_pre_hook(lambda *_: bomb("step"))
    with watching(net, optimizer) as recorder:
        for i in range(4):
            bomb.armed = i == 1
            try:
                step(net, optimizer, bomb)
            except ValueError:
                assert i == 1
    record = record_of(recorder)
    assert record.steps.tolist() == [0, 1, 2]
    for name, size in (("a", 7), ("act", 7), ("b", 3)):
        assert [count(record, name, "gradient", i) for i in range(3)] == [8 * size] * 3
        assert [count(record, name, "output", i) for i in range(3)] == [8 * size] * 3
    assert [info["uncleared"] for info in record.info] == [[]] * 3


def test_close_in_the_middle_of_a_step():
    net, optimizer = made()
    with watching(net, optimizer) as recorder:
        loss = net(torch.randn(8, 5)).sum()
        assert hooks(net)
        recorder.close()
        assert clean(net, optimizer)
        loss.backward()
        optimizer.step()
        recorder.close()  # a second time does nothing
    assert record_of(recorder).step_count == 0


@pytest.mark.parametrize("middle", [False, True])
def test_a_forgotten_recorder_leaves_nothing(middle):
    net, optimizer = made()
    recorder = Recorder(Store(), Schedule(1))
    recorder.add_model(net)
    recorder.add_optimizer(optimizer)
    recorder.start()
    net(torch.randn(8, 5)).sum().backward()
    optimizer.step()
    if middle:
        loss = net(torch.randn(8, 5)).sum()
    assert hooks(net, optimizer)
    gone = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert gone() is None
    assert clean(net, optimizer)
    if middle:
        loss.backward()


def test_a_model_let_go_is_not_kept():
    net, optimizer = made()
    recorder = Recorder(Store(), Schedule(1))
    recorder.add_model(net)
    recorder.add_optimizer(optimizer)
    recorder.start()
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(8, 5)).sum().backward()
        optimizer.step()
    gone = weakref.ref(net), weakref.ref(optimizer)
    del net, optimizer
    gc.collect()
    assert gone[0]() is None
    assert gone[1]() is None
    recorder.close()
    assert recorder.fault is None
    assert record_of(recorder).step_count == 2


@pytest.mark.parametrize("method", ["measure", "measure_difference", "rows"])
def test_a_fault_of_our_own_is_one_warning_and_the_step_goes_on(monkeypatch, method):
    def train(watch):
        torch.manual_seed(1)
        net, optimizer = made()
        losses = []
        recorder = Recorder(Store(), Schedule(1))
        if watch:
            recorder.add_model(net)
            recorder.add_optimizer(optimizer)
            recorder.start()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for i in range(6):
                if watch and i == 2:
                    monkeypatch.setattr(Tape, method, lambda *_: 1 / 0)
                optimizer.zero_grad()
                loss = net(torch.randn(8, 5)).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            monkeypatch.undo()
        if watch:
            assert [w.category for w in caught] == [RuntimeWarning]
            assert "trimtab stopped watching: ZeroDivisionError" in str(caught[0].message)
            assert isinstance(recorder.fault, ZeroDivisionError)
            assert torch.autograd.backward is BACKWARD
            recorder.close()
            assert clean(net, optimizer)
            assert record_of(recorder).step_count >= 1
        return losses, [p.detach().clone() for p in net.parameters()]

    plain, watched = train(False), train(True)
    assert plain[0] == watched[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], watched[1], strict=True))


@pytest.mark.parametrize("where", ["before_step", "closure"])
def test_a_fault_inside_the_optimizers_hook(monkeypatch, where):
    net, optimizer = made()
    recorder = Recorder(Store(), Schedule(1))
    recorder.add_model(net)
    recorder.add_optimizer(optimizer)
    recorder.start()
    optimizer.register_step_pre_hook(lambda *_: None)
    monkeypatch.setattr(type(recorder._parameters), "before_step", lambda *_: 1 / 0)

    def closure():
        optimizer.zero_grad()
        loss = net(torch.randn(8, 5)).sum()
        loss.backward()
        return loss

    if where == "closure":
        with pytest.warns(RuntimeWarning, match="stopped watching"):
            optimizer.step(closure)
    else:
        closure()
        with pytest.warns(RuntimeWarning, match="stopped watching"):
            optimizer.step()
    closure()
    optimizer.step()
    recorder.close()
    assert len(hooks(net, optimizer)) == 1


def test_a_store_that_cannot_be_written_any_more():
    net, optimizer = made()
    recorder = Recorder(Store(), Schedule(1))
    recorder.add_model(net)
    recorder.add_optimizer(optimizer)
    recorder.start()
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(8, 5)).sum().backward()
        optimizer.step()
    recorder.store.connection.close()
    with pytest.warns(RuntimeWarning, match="stopped watching: ProgrammingError"):
        net(torch.randn(8, 5))
    net(torch.randn(8, 5)).sum().backward()
    optimizer.step()
    recorder.close()
    assert clean(net, optimizer)


# ---------------------------------------------------------------------------------------------------------------- copies


def pickled(net):
    return pickle.loads(pickle.dumps(net)), pickle.dumps(net)


def saved(net):
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False), file.getvalue()


def copied(net):
    twin = copy.deepcopy(net)
    return twin, pickle.dumps(twin)


class Peeking(Net):
    """Lets a test look at the model from inside its forward."""

    look = staticmethod(lambda: None)

    def forward(self, x):
        y = super().forward(x)
        type(self).look()
        return y


@pytest.mark.parametrize("when", ["before", "forward", "backward", "after", "inside"])
@pytest.mark.parametrize("how", [pickled, saved, copied])
def test_copies_carry_nothing_and_do_nothing(how, when, monkeypatch):
    net = Peeking()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    found = []

    def look(now):
        if now == when:
            found.append(how(net))

    with watching(net, optimizer) as recorder:
        for i in range(2):
            if i:
                look("before")
                monkeypatch.setattr(Peeking, "look", lambda: look("inside"))
            optimizer.zero_grad()
            y = net(torch.randn(8, 5))
            monkeypatch.undo()
            if i:
                look("forward")
            y.sum().backward()
            if i:
                look("backward")
            optimizer.step()
            if i:
                look("after")
        ((twin, data),) = found
        assert b"trimtab" not in data
        assert list(twin.state_dict()) == list(net.state_dict())
        theirs = torch.optim.SGD(twin.parameters(), 0.1)
        for _ in range(2):
            twin(torch.randn(100, 5)).sum().backward()
            theirs.step()
        optimizer.zero_grad()
        net(torch.randn(8, 5)).sum().backward()
        optimizer.step()
    record = record_of(recorder)
    assert record.steps.tolist() == [0, 1, 2]
    assert [count(record, "a", "output", i) for i in range(3)] == [56] * 3
    assert clean(net, optimizer)


def test_outputs_and_optimizers_can_be_copied_too():
    net, optimizer = made()
    with watching(net, optimizer):
        y = net(torch.randn(8, 5))
        data = pickle.dumps(y)  # torch warns of hooks on a tensor that is pickled
        y.sum().backward()
        optimizer.step()
        data += pickle.dumps(optimizer) + pickle.dumps(copy.deepcopy(optimizer))
        file = io.BytesIO()
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "y": y}, file)
    assert b"trimtab" not in data + file.getvalue()


def test_an_averaged_model_made_during_the_run():
    net, optimizer = made()
    with watching(net, optimizer) as recorder:
        net(torch.randn(8, 5))
        average = torch.optim.swa_utils.AveragedModel(net)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(8, 5)).sum().backward()
            optimizer.step()
            average.update_parameters(net)
            average(torch.randn(50, 5))
    record = record_of(recorder)
    assert [count(record, "a", "output", i) for i in range(3)] == [56] * 3

"""Riding along a watched run: the prediction that `predict` makes, and a run that nobody can tell from one without."""

import copy
import math

import prediction_nets as nets
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import trimtab
from trimtab import _torch
from trimtab.diagnosis.expected import predictions
from trimtab.prediction import listening, predict, trace


class Last(nn.Module):
    """A recurrent layer of which the last step is read."""

    def __init__(self, kind, dtype=torch.float32, **options):
        super().__init__()
        self.rnn = getattr(nn, kind)(5, 8, batch_first=True, dtype=dtype, **options)
        self.head = nn.Linear(8, 3, dtype=dtype)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def ridden(model, x, steps=1):
    """The prediction of a watched run's first pass, and the facts of the record."""
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with trimtab.watch(model, optimizer) as watch:
        for _ in range(steps):
            step(model, optimizer, x)
    assert "fault" not in watch.record.facts
    return predictions(watch.record).get(0), watch.record.facts


@pytest.mark.parametrize(
    "make",
    [
        lambda: nets.mlp("Tanh", depth=4, width=32),
        lambda: nets.resnet(True, (8, 16), 16, 4),
        lambda: nets.transformer(depth=1, width=32),
        lambda: nets.recurrent("GRU", 5, 4, 8, 4),
    ],
    ids=["mlp", "resnet", "transformer", "gru"],
)
def test_the_prediction_is_that_of_predict(make):
    torch.manual_seed(0)
    model, (x,) = make()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    asked = predict(copy.deepcopy(model), x, loss=lambda output: output.square().mean())
    along, _ = ridden(model, x)
    assert [site.name for site in along] == [site.name for site in asked]
    for mine, theirs in zip(along, asked, strict=True):
        for name in ("forward", "backward", "forward_measured", "backward_measured", "alike"):
            assert getattr(mine, name) == pytest.approx(getattr(theirs, name), rel=1e-3, nan_ok=True), (mine.name, name)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_the_gradient_at_each_step_is_that_of_autograd(kind):
    """Unrolled by hand in cells of the same weights, in float64."""
    torch.manual_seed(0)
    model = Last(kind, torch.float64)
    x = torch.randn(4, 9, 5, dtype=torch.float64)
    along, _ = ridden(model, x)
    cell = getattr(nn, f"{kind}Cell")(5, 8, dtype=torch.float64)
    cell.load_state_dict({name.removesuffix("_l0"): w for name, w in model.rnn.state_dict().items()})
    states, state = [], None
    for t in range(9):
        state = cell(x[:, t], state)
        states.append(state[0] if kind == "LSTM" else state)
    gradients = torch.autograd.grad(model.head(states[-1]).square().mean(), states)
    steps = [site for site in along if site.name.endswith("]")]
    assert [site.name for site in steps] == [f"rnn[{t}]" for t in range(9)]
    assert [site.backward_measured for site in steps] == pytest.approx(
        [g.square().mean().item() for g in gradients], rel=1e-6
    )
    assert [site.forward_measured for site in steps] == pytest.approx(
        [s.square().mean().item() for s in states], rel=1e-6
    )


@pytest.mark.parametrize("options", [{"num_layers": 2, "dropout": 0.3}, {"bidirectional": True}], ids=str)
def test_fused_layers_leave_the_run_as_it_is(options):
    def run(watched):
        torch.manual_seed(1)
        model = Last("LSTM", **options)
        if options.get("bidirectional"):
            model.head = nn.Linear(16, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        x = torch.randn(4, 6, 5)
        if watched:
            with trimtab.watch(model, optimizer) as watch:
                losses = [step(model, optimizer, x) for _ in range(4)]
            assert predictions(watch.record)[0].coverage == 1.0
        else:
            losses = [step(model, optimizer, x) for _ in range(4)]
        return losses, list(model.parameters()), torch.rand(3)

    (a, p, r), (b, q, s) = run(True), run(False)
    assert a == b
    assert all(torch.equal(x, y) for x, y in zip(p, q, strict=True))
    assert torch.equal(r, s)


def test_an_error_in_the_forward_call_leaves_no_mode_behind():
    class Fails(nn.Linear):
        def forward(self, x):
            super().forward(x)
            raise ArithmeticError("mine")

    model = Fails(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trimtab.watch(model, optimizer):
        with pytest.raises(ArithmeticError, match="mine"):
            model(torch.randn(2, 4))
        assert not _torch.dispatch_mode_is_active()


def test_what_is_broken_off_by_hand_is_let_go_of():
    class Interrupted(nn.Linear):
        fails = True

        def forward(self, x):
            y = super().forward(x)
            if self.fails:
                raise KeyboardInterrupt
            return y

    model = Interrupted(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trimtab.watch(model, optimizer) as watch:
        with pytest.raises(KeyboardInterrupt):
            model(torch.randn(2, 4))
        model.fails = False
        step(model, optimizer, torch.randn(2, 4))
        assert not _torch.dispatch_mode_is_active()
    assert len(predictions(watch.record)[0]) == 1


def test_what_is_broken_off_for_good_is_let_go_of_with_the_watch():
    class Interrupted(nn.Linear):
        def forward(self, x):
            super().forward(x)
            raise KeyboardInterrupt

    model = Interrupted(4, 4)
    with trimtab.watch(model, torch.optim.SGD(model.parameters(), 0.1)), pytest.raises(KeyboardInterrupt):
        model(torch.randn(2, 4))
    assert not _torch.dispatch_mode_is_active()


def test_a_look_at_the_shapes_is_not_the_pass_that_counts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trimtab.watch(model, optimizer) as watch:
        model(torch.zeros(1, 4))
        step(model, optimizer, torch.randn(16, 4))
    found = predictions(watch.record)[0]
    assert all(site.backward_measured > 0 for site in found)
    assert math.isfinite(found["2"].alike)


def test_every_model_has_its_own_ride():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(2)]
    optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], 0.1)
    with trimtab.watch(models, optimizer) as watch:
        loss = models[1](models[0](torch.randn(8, 4))).square().mean()
        loss.backward()
        optimizer.step()
    found = predictions(watch.record)
    assert sorted(found) == [0, 1]
    assert all(site.backward_measured > 0 for prediction in found.values() for site in prediction)


def test_nobody_rides_where_somebody_else_follows_the_operations():
    model = nn.Linear(4, 4)
    with FlopCounterMode(display=False):
        along, facts = ridden(model, torch.randn(8, 4))
    assert along is None
    assert "something else follows" in facts["predictions"]["0"]["declined"]


def test_nobody_rides_on_weights_that_are_no_numbers():
    model = nn.Linear(4, 4)
    nn.init.constant_(model.weight, float("nan"))
    _, facts = ridden(model, torch.randn(8, 4))
    assert "NaN" in facts["predictions"]["0"]["declined"]


def test_nothing_of_a_ride_is_left_in_the_model():
    model, (x,) = nets.mlp("ReLU", depth=2, width=16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with trimtab.watch(model, optimizer):
        model(x).square().mean().backward()
        copy.deepcopy(model)(x)
        optimizer.step()
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("place", ["before", "after", "hear", "backward_ended", "gradient", "begin"])
def test_a_fault_of_the_rides_own_leaves_run_and_record_alone(monkeypatch, place):
    def fails(*args, **kwargs):
        raise MemoryError("no room")

    if place == "after":
        monkeypatch.setattr(trace.Tracer, "_outputs", fails)
    elif place == "before":
        monkeypatch.setattr(trace.Tracer, "_value", fails)
    elif place == "gradient":
        monkeypatch.setattr(listening, "measured_state", fails)
    else:
        monkeypatch.setattr(listening.Listener, place, fails)

    def run(watched):
        torch.manual_seed(1)
        model = Last("LSTM")
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        x = torch.randn(4, 6, 5)
        if not watched:
            return [step(model, optimizer, x) for _ in range(3)], None
        with trimtab.watch(model, optimizer) as watch:
            losses = [step(model, optimizer, x) for _ in range(3)]
        return losses, watch.record

    (a, record), (b, _) = run(True), run(False)
    assert a == b
    assert record.step_count == 3
    assert "fault" not in record.facts
    assert "no room" in record.facts["predictions"]["0"]["declined"]
    assert not _torch.dispatch_mode_is_active()


def alike(make, run, steps=3):
    """Losses, weights and random numbers of a run with and without a watch; the record of the first."""

    def once(watched):
        torch.manual_seed(2)
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        x = torch.randn(4, 6, 5)

        def loop():
            losses = []
            for _ in range(steps):
                optimizer.zero_grad()
                loss = run(model, x)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses

        if watched:
            with trimtab.watch(model, optimizer) as watch:
                losses = loop()
            return losses, [p.clone() for p in model.parameters()], torch.rand(3), watch.record
        return loop(), [p.clone() for p in model.parameters()], torch.rand(3), None

    (a, p, r, record), (b, q, s, _) = once(True), once(False)
    assert a == b
    assert all(torch.equal(x, y) for x, y in zip(p, q, strict=True))
    assert torch.equal(r, s)
    assert "fault" not in record.facts
    assert record.step_count == steps
    return record


@pytest.mark.parametrize("read", [lambda out: out[1][0], lambda out: out[1][1], lambda out: out[0][:, -1]])
def test_outputs_of_a_fused_layer_that_nothing_reads(read):
    """Torch tells a hook on an output of several that nothing has read of no gradient at all: None."""
    record = alike(lambda: nn.LSTM(5, 4, batch_first=True), lambda model, x: read(model(x)).square().mean())
    assert predictions(record)[0].coverage == 1.0


def test_a_part_of_a_chunk_that_nothing_reads():
    class Chunks(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 8)

        def forward(self, x):
            return self.linear(x).chunk(2, -1)

    alike(lambda: nn.Sequential(Chunks()), lambda model, x: model(x)[0].square().mean())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_fused_layer_inside_a_checkpoint(reentrant):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.rnn = nn.Linear(5, 5), nn.LSTM(5, 4, batch_first=True)

        def forward(self, x):
            return checkpoint(lambda h: self.rnn(h)[0], self.first(x), use_reentrant=reentrant)

    alike(Net, lambda model, x: model(x).square().mean())


def test_complex_numbers_on_the_way():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 5)

        def forward(self, x):
            return torch.fft.fft(self.linear(x)).abs()

    assert predictions(alike(Net, lambda model, x: model(x).square().mean()))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
def test_a_part_that_is_traced_within_the_pass():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 5)

        def forward(self, x):
            return torch.jit.trace(self.linear, x)(x)

    alike(Net, lambda model, x: model(x).square().mean())

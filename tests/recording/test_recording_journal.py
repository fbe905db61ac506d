"""What the journal keeps of each step: learning rate, loss, and which numbers come from a sample."""

import numpy as np
import pytest
import torch
from recording_cases import Net, reading, record_of, watching
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.recording import Record, Store, journal
from trimtab.recording.journal import Journal, numbers
from trimtab.recording.sites import SiteTable
from trimtab.recording.window import Window
from trimtab.stats import Tape, tape


@pytest.mark.parametrize("every", [1, 4])
def test_the_learning_rate_is_the_one_the_step_used(every):
    net = Net()
    optimizer = torch.optim.SGD([{"params": net.a.parameters()}, {"params": net.b.parameters(), "lr": 3.0}], 0.8)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    used = []
    with watching(net, optimizer, every) as recorder:
        for _ in range(9):
            optimizer.zero_grad()
            net(torch.randn(8, 5)).square().mean().backward()
            used.append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            scheduler.step()
    record = record_of(recorder)
    assert record.rates.tolist() == [rates[0] for rates in used]
    assert [info["rates"] for info in record.info] == [[used[step]] for step in record.steps]


class Reads(TorchDispatchMode):
    """Counts what asks a tensor for its value."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_a_loss_on_a_device_is_read_when_it_is_written():
    store = Store()
    journal = Journal(store, SiteTable(), Tape())
    with Reads() as reads:
        for step in range(3):
            window = Window(step, recording=False, detail=False, losses=[torch.tensor(0.1), torch.tensor(float(step))])
            window.rates, window.optimizers = {0: [torch.tensor(0.25)]}, 1
            journal.step_ended(window)
    assert "_local_scalar_dense" not in reads.seen
    journal.step_ended(Window(3, recording=False, detail=False))
    with Reads() as reads:
        journal.flush()
    assert reads.seen.count("stack") == 2  # all losses at once, all rates at once
    record = Record.of(store)
    np.testing.assert_allclose(record.losses[:3], [0.1, 1.1, 2.1], rtol=1e-7)
    assert record.rates[:3].tolist() == [0.25] * 3
    assert record.loss_seen.tolist() == [True, True, True, False]


def test_numbers_of_all_kinds():
    mixed = [
        1.5,
        torch.tensor([2.0]),
        torch.tensor(3),
        torch.tensor(4.0, dtype=torch.float64),
        nn.Parameter(torch.ones(()), requires_grad=False),
    ]
    assert numbers(mixed) == [1.5, 2.0, 3.0, 4.0, 1.0]
    assert numbers([torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.1)]) == [0.1, float(np.float32(0.1))]


def large(monkeypatch, compiled):
    if not compiled:
        monkeypatch.setattr(tape, "compiled_kernel", lambda: None)
    net = nn.Linear(2048, 1024, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), 0.5)
    before = net.weight.detach().clone()
    with watching(net, optimizer) as recorder:
        net(torch.randn(4, 2048)).square().sum().backward()
        optimizer.step()
    return record_of(recorder), (net.weight.detach() - before).double(), before.double()


@pytest.mark.parametrize("compiled", [True, False])
def test_the_update_of_a_large_parameter_stands_for_all_of_it(monkeypatch, compiled):
    record, update, before = large(monkeypatch, compiled)
    row = reading(record, "weight", "update")
    assert row[0] == update.numel() > 2**20
    series = {kind: record.series(record.site(0, "weight", kind)) for kind in ("parameter", "update")}
    measured = series["update"].norm[0] / series["parameter"].norm[0]
    assert measured == pytest.approx(float(update.norm() / before.norm()), rel=0.05)  # a third of the blocks
    assert row[5] == pytest.approx(int((update == 0).sum()), abs=100)


def test_what_comes_from_a_sample_is_marked(monkeypatch):
    def marked(compiled):
        record, _, _ = large(monkeypatch, compiled)
        return {(record.sites[i].name, record.sites[i].kind) for i in record.info[0]["sampled"]}

    update = ("weight", "update")
    if tape.compiled_kernel() is not None:
        assert marked(True) == {update}
    kinds = ("parameter", "raw-gradient", "parameter-gradient")
    assert marked(False) == {update, *(("weight", kind) for kind in kinds)}
    small = Net()
    optimizer = torch.optim.SGD(small.parameters(), 0.5)
    with watching(small, optimizer) as recorder:
        small(torch.randn(4, 5)).sum().backward()
        optimizer.step()
    assert record_of(recorder).info[0]["sampled"] == []


@pytest.mark.parametrize(("late", "written"), [(0.0, 29), (1000.0, 10)])
def test_losses_of_slow_steps_do_not_wait_for_fifty_of_them(monkeypatch, late, written):
    monkeypatch.setattr(journal, "LATE", late)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with watching(net, optimizer, 1000) as recorder:
        for _ in range(30):
            optimizer.zero_grad()
            net(torch.randn(8, 5)).square().mean().backward()
            optimizer.step()
        assert (
            len(record_of(recorder).loss_steps) == written
        )  # the first ten are recorded in full; the last has not ended
    assert len(record_of(recorder).loss_steps) == 30

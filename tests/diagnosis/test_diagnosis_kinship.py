"""Models that have to do with one another, and models that do not."""

import pytest
import torch
from torch import nn

from trimtab.diagnosis.causes import explain
from trimtab.diagnosis.kinship import strangers
from trimtab.recording import Record, Recorder, Schedule, Store
from trimtab.report import Finding


def two_nets(joined):
    """The record of two nets, the second fed with what the first gives or with its own data."""
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(2)]
    store = Store()
    recorder = Recorder(store, Schedule(1), "two")
    for net, label in zip(nets, ("front", "back"), strict=True):
        recorder.add_model(net, label)
    optimizer = torch.optim.SGD([p for net in nets for p in net.parameters()], 0.1)
    recorder.add_optimizer(optimizer)
    recorder.start()
    for _ in range(3):
        optimizer.zero_grad()
        out = nets[0](torch.randn(8, 4))
        loss = nets[1](out).mean() if joined else out.mean() + nets[1](torch.randn(8, 4)).mean()
        loss.backward()
        optimizer.step()
    recorder.close()
    assert recorder.fault is None
    return Record.of(store)


@pytest.mark.parametrize("joined", [True, False])
def test_a_fault_of_one_model_explains_one_of_another_only_where_they_are_joined(joined):
    apart = strangers(two_nets(joined))
    dead = Finding("dead-units", "error", ("back.2",), "")
    vanishing = Finding("vanishing-gradient", "error", ("front.0",), "")
    data = Finding("nonfinite-data", "error", ("data",), "")
    assert apart(dead, vanishing) is not joined
    assert not apart(data, vanishing)
    assert not apart(Finding("dead-units", "error", ("front.2",), ""), vanishing)
    causes = {f.code: f.causes for f in explain([(dead, 0), (vanishing, 0)], apart)}
    assert causes == {"dead-units": (), "vanishing-gradient": ("dead-units",) if joined else ()}

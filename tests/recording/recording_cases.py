"""Helpers: run something under a recorder, read one reading, and the truth by numpy in float64."""

import contextlib

import numpy as np
import torch
from torch import nn

from trimtab.prediction.riding import Ride
from trimtab.recording import Record, Recorder, Schedule, Store


def listed(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


@contextlib.contextmanager
def watching(models, optimizers, every=1, path=None, sound=True):
    """A running recorder; afterwards it is closed and must have had no fault."""
    recorder = Recorder(Store(path), Schedule(every), board=Ride)
    for model in listed(models):
        recorder.add_model(model)
    for optimizer in listed(optimizers):
        recorder.add_optimizer(optimizer)
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.close()
    if sound and recorder.fault is not None:
        raise recorder.fault


def record_of(recorder):
    return Record.of(recorder.store)


def truth(*tensors):
    """The seven numbers of all values of some tensors, by numpy in float64."""
    parts = [t.detach().abs().double() if t.is_complex() else t.detach().double() for t in tensors]
    x = np.concatenate([part.reshape(-1).numpy() for part in parts])
    bad = ~np.isfinite(x)
    x = x[~bad]
    if not x.size:
        return np.array([0, 0, 0, 0, 0, 0, bad.sum()], dtype=float)
    return np.array([x.size, x.mean(), x.std(), np.abs(x).mean(), np.abs(x).max(), (x == 0).sum(), bad.sum()])


def reading(record, name, kind, step=0, model=0):
    """One row of the record; None when the site was not seen at that step."""
    site = record.site(model, name, kind)
    if site is None:
        return None
    series = record.series(site)
    at = np.flatnonzero(series.steps == step)
    return series.rows[at[0]] if len(at) else None


def check(record, name, kind, *tensors, step=0, model=0, rtol=3e-6):
    """One reading equals the truth about `tensors`."""
    found = reading(record, name, kind, step, model)
    assert found is not None, f"{kind} of {name!r} was not read at step {step}; seen: {seen(record, kind, model)}"
    expected = truth(*tensors)
    scale = np.sqrt(expected[1] ** 2 + expected[2] ** 2)
    np.testing.assert_allclose(
        found, expected, rtol=rtol, atol=rtol * scale, err_msg=f"{kind} of {name!r}, step {step}"
    )


def seen(record, kind, model=0):
    """Names that have a reading of this kind at any step."""
    return sorted(s.name for s in record.of_kind(kind) if s.model == model and len(record.series(s)))


def count(record, name, kind, step=0, model=0):
    row = reading(record, name, kind, step, model)
    return 0 if row is None else int(row[0])


def hooks(*objects):
    """Everything that could be left on modules, their parameters and optimizers."""
    found = []
    for thing in objects:
        if isinstance(thing, nn.Module):
            for module in thing.modules():
                found += [*module._forward_hooks, *module._forward_pre_hooks]
                found += [*module._backward_hooks, *module._backward_pre_hooks]
                found += [*module._forward_hooks_with_kwargs, *module._forward_pre_hooks_with_kwargs]
            for parameter in thing.parameters():
                found += list(parameter._backward_hooks or ())
                found += list(getattr(parameter, "_post_accumulate_grad_hooks", None) or ())
        elif isinstance(thing, torch.Tensor):
            found += list(thing._backward_hooks or ())
        else:
            found += [*thing._optimizer_step_pre_hooks, *thing._optimizer_step_post_hooks]
    return found


class Net(nn.Module):
    """Two linear layers with a ReLU in place, whose forward is also written by hand in `by_hand`."""

    def __init__(self, wide=7):
        super().__init__()
        self.a = nn.Linear(5, wide)
        self.act = nn.ReLU(inplace=True)
        self.b = nn.Linear(wide, 3)

    def forward(self, x):
        return self.b(self.act(self.a(x)))


def by_hand(net, x):
    """Outputs of a, act and b, from the weights alone."""
    a = x @ net.a.weight.T + net.a.bias
    act = a.clamp(min=0)
    return a, act, act @ net.b.weight.T + net.b.bias


def grads(module):
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in module.named_parameters()}


def values(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}

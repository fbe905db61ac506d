"""`trimtab.check`: look at a setup before training: one batch forward and backward, and everything as it was afterwards."""

import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.diagnosis.diagnose import check_ignored, diagnose_record
from trimtab.errors import SetupError, UsageError
from trimtab.recording import Record, Recorder, Schedule, Store
from trimtab.recording.walk import tensors
from trimtab.report import Diagnosis


def check(setup: Setup, *, ignore: Sequence[str] = ()) -> Diagnosis:
    """Look for what is wrong before the first step: data, wiring, initialization.

    One batch goes forward and backward through the model as it is, and no step is taken. Model, gradients, buffers, modes, optimizer
    and every random number generator (torch, CUDA, numpy, random) are bit-identical afterwards, also after an error.

    Args:
        setup: The run; its `step` is not called, since it would train.
        ignore: As for `diagnose`.

    Returns:
        What one batch can tell. Faults that need a step or a course of the loss are not among it.

    Raises:
        UsageError: `setup` is not a `Setup`, or `ignore` names a code that does not exist.
        SetupError: Its batches cannot be used.
        StepError: Its loss is not a scalar tensor.
    """
    if not isinstance(setup, Setup):
        raise UsageError(f"check takes a Setup, but it was given a {type(setup).__name__}")
    check_ignored(ignore)
    store = Store()
    recorder = Recorder(store, Schedule(1), type(setup.model).__name__)
    recorder.add_model(setup.model)
    for optimizer in setup.optimizers:
        recorder.add_optimizer(optimizer)
    trained = [p for optimizer in setup.optimizers for group in optimizer.param_groups for p in group["params"]]
    with unchanged(setup.model, trained):
        recorder.start()
        try:
            setup.model.train()
            batch = next(setup.stream())
            _refuse_empty(batch)
            recorder.batch(batch)
            for parameter in (*setup.model.parameters(), *trained):
                parameter.grad = None
            loss = setup.compute_loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            recorder.close_without_step()
        finally:
            recorder.close("checked")
    return diagnose_record(Record.of(store), ignore)


def _refuse_empty(batch: Any) -> None:
    shapes = [tuple(tensor.shape) for tensor in tensors(batch)]
    if shapes and all(0 in shape for shape in shapes):
        raise SetupError(f"batches must give batches with samples in them, but the first is empty: {shapes}")


@contextmanager
def unchanged(model: nn.Module, others: Sequence[Tensor] = ()) -> Iterator[None]:
    """Put parameters, gradients, buffers, modes and random number generators back as they were.

    Args:
        model: What is used inside the block.
        others: Parameters that may not be the model's (a loss's own).

    Yields:
        Nothing.
    """
    parameters = [*model.parameters(), *others]
    gradients = [(p, p.grad) for p in parameters]
    values = [(p, p.detach().clone()) for p in parameters if not nn.parameter.is_lazy(p)]
    buffers = [(b, b.detach().clone()) for b in model.buffers() if not nn.parameter.is_lazy(b)]
    named_buffers = [(module, dict(module._buffers)) for module in model.modules()]
    modes = [(module, module.training) for module in model.modules()]
    plain = [(module, _plain(module)) for module in model.modules()]
    generators = _generators()
    try:
        yield
    finally:
        for parameter, grad in gradients:
            parameter.grad = grad
        with torch.no_grad():
            for tensor, value in (*values, *buffers):
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
        for module, held in named_buffers:  # a module may have put a new tensor in a buffer's place
            module._buffers.update(held)
        for module, mode in modes:
            module.training = mode
        for module, attributes in plain:
            vars(module).update(attributes)
        _restore(generators)


def _plain(module: nn.Module) -> dict[str, Any]:
    """A module's own counters and flags (a spectral norm's step, a scheduler inside a model)."""
    return {k: v for k, v in vars(module).items() if isinstance(v, (bool, int, float, str)) and not k.startswith("__")}


def _generators() -> tuple[Any, ...]:
    used = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if used else None
    return torch.get_rng_state(), cuda, np.random.get_state(), random.getstate()


def _restore(states: tuple[Any, ...]) -> None:
    cpu, cuda, numpy_state, python_state = states
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    np.random.set_state(numpy_state)
    random.setstate(copy.copy(python_state))

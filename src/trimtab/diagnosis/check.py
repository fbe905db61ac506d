"""`trimtab.check`: look at a setup before training: one batch forward and backward, and everything as it was afterwards."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from torch.nn.parameter import is_lazy

from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.diagnosis import probes
from trimtab.diagnosis.diagnose import check_ignored, diagnose_record
from trimtab.diagnosis.probes.calls import refuse_empty
from trimtab.errors import SetupError, UsageError
from trimtab.norms._passes import own
from trimtab.prediction.riding import Ride
from trimtab.recording import Record, Recorder, Schedule, Store
from trimtab.report import Diagnosis


def check(setup: Setup, *, ignore: Sequence[str] = ()) -> Diagnosis:
    """Look for what is wrong before the first step: data, wiring, initialization.

    One batch goes forward and backward through the model as it is, and no step is taken. A few passes more see whether samples mix,
    whether a sequence model sees what it is to foretell, and whether the input counts at all (`diagnosis.probes`). Afterwards, also after an error, these are
    bit-identical: parameters, gradients, buffers, modes and every other attribute of the model and its submodules; the optimizer; the
    random number generators of torch, CUDA, numpy and random; a DataLoader's own generator, and its sampler's, where `batches` gives
    the DataLoader or uses it from a variable around it. A model with lazy modules that no batch has initialized is checked in a copy.

    What a check cannot reach stays as the batch has left it: objects of other classes that a model holds (a replay buffer, a counter
    of the user's), generators kept in places other than those above, files, and an iterator that `batches` goes on drawing from.

    Args:
        setup: The run; its `step` is not called, since it would train.
        ignore: As for `diagnose`.

    Returns:
        What one batch can tell. Faults that need a step or a course of the loss are not among it.

    Raises:
        UsageError: `setup` is not a `Setup`, or `ignore` names a code that does not exist.
        SetupError: Its batches cannot be used, or its model is lazy and cannot be copied.
        StepError: Its loss is not a scalar tensor.
    """
    if not isinstance(setup, Setup):
        raise UsageError(f"check takes a Setup, but it was given a {type(setup).__name__}")
    check_ignored(ignore)
    setup = _copy_of_lazy(setup)
    model, store = setup.model, Store()
    trained = [p for optimizer in setup.optimizers for group in optimizer.param_groups for p in group["params"]]
    with unchanged(model, *model.parameters(), *model.buffers(), *trained, used_by=(setup.loss, setup.batches)) as kept:
        recorder = Recorder(store, Schedule(1), type(model).__name__, Ride)
        recorder.add_model(model)
        for optimizer in setup.optimizers:
            recorder.add_optimizer(optimizer)
        recorder.start()
        try:
            model.train()
            passes: list[Any] = []

            def note(batches: Any) -> None:
                passes.append(batches)
                kept.add_data(batches)

            batch = next(setup.stream(on_pass=note))
            refuse_empty(batch)
            first = probes.Drawn([own(batch)], probes.stacked(passes[0]))
            recorder.batch(batch)
            for leaf in (*kept.leaves, *model.parameters()):
                leaf.grad = None
            loss = setup.compute_loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            recorder.close_without_step()
        finally:
            recorder.close("checked")
    store.facts({"probes": probes.before_training(setup, first)})
    return diagnose_record(Record.of(store), ignore)


def _copy_of_lazy(setup: Setup) -> Setup:
    """The setup, with a copy of model and optimizers where the first batch would give parameters their shapes for good."""
    if not any(map(is_lazy, chain(setup.model.parameters(), setup.model.buffers()))):
        return setup
    copies: dict[int, Any] = {id(b): _copy_of_shapeless(b) for b in setup.model.buffers() if is_lazy(b)}
    try:
        model, optimizers = copy.deepcopy((setup.model, list(setup.optimizers)), copies)  # together: they share tensors
    except Exception as error:
        raise SetupError(
            f"the model has lazy modules that no batch has initialized, and it cannot be copied ({error}); "
            "call it on one batch before check"
        ) from error
    return replace(setup, model=model, optimizer=optimizers)


def _copy_of_shapeless(buffer: Any) -> Any:
    """A copy of an uninitialized buffer, the one tensor that torch does not copy by itself."""
    return type(buffer)(buffer.requires_grad, buffer.data.device, buffer.data.dtype)

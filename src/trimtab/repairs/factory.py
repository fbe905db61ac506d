"""What a factory must be: a function of a seed, each of whose setups is new, and another for another seed."""

import functools
import hashlib
import inspect
import os
import pickle
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

import trimtab
from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.diagnosis.probes import drawn
from trimtab.diagnosis.probes.calls import mapped
from trimtab.errors import SetupError, UsageError
from trimtab.repairs.trials import MakeSetup, fresh


def identity(make_setup: MakeSetup) -> str:
    """A name for a factory that is another where its code is another, so that runs of an older one are not taken for its own.

    What the factory uses from around it is not looked at.

    Args:
        make_setup: The factory.

    Returns:
        Its name; where there is a source, with a hash of it and the version of trimtab.
    """
    if isinstance(make_setup, functools.partial):
        return f"{identity(make_setup.func)} {make_setup.args!r} {make_setup.keywords!r}"
    name = getattr(make_setup, "__qualname__", None) or repr(make_setup)
    try:
        source = inspect.getsource(make_setup)
    except (TypeError, OSError):  # a callable object, or typed in where nothing keeps it
        return name
    return f"{name} {hashlib.sha256(source.encode()).hexdigest()[:16]} trimtab {trimtab.__version__}"


def look_over(make_setup: MakeSetup) -> tuple[int, bool]:
    """Call a factory for two seeds and compare what it gives; one model at a time is in memory.

    Args:
        make_setup: The factory.

    Returns:
        Training steps of a run, and whether the two seeds give two runs.

    Raises:
        UsageError: It does not take a seed and nothing else.
        SetupError: It gives something else than a setup, one that is not new, or one whose model has no shape yet.
    """
    try:
        inspect.signature(make_setup).bind(0)
    except ValueError:  # compiled: it does not say what it takes
        pass
    except TypeError as error:
        raise UsageError(
            f"make_setup must take a seed and give a fresh Setup for it, but it cannot be called with one: {error}"
        ) from error
    with unchanged():
        setup = fresh(make_setup, 0)
        if any(map(is_lazy, setup.model.parameters())):
            raise SetupError(
                "make_setup must give a model whose parameters have a shape, but some are lazy still; "
                "call the model once on a batch before the optimizer is made"
            )
        steps, first, seen = setup.steps, _digest(setup), [weakref.ref(part) for part in _parts(setup)]
        del setup
        setup = fresh(make_setup, 1)
        if any(ref() is part for ref in seen for part in _parts(setup)):
            raise SetupError(
                "make_setup must make a new model and optimizer at each call, but two calls gave the same ones; "
                "build them inside the function"
            )
        return steps, first != _digest(setup)


def _parts(setup: Setup) -> list[Any]:
    return [setup.model, *setup.optimizers, *setup.model.parameters()]


def _digest(setup: Setup) -> str:
    """Of all that one run differs from another by: the weights, the first batch, and the random numbers still to be drawn."""
    held = [*setup.model.parameters(), *setup.model.buffers(), torch.get_rng_state()]
    found = hashlib.sha256(pickle.dumps([_plain(tensor) for tensor in held]))
    try:
        found.update(pickle.dumps(mapped(drawn(setup, 1).batches[0], _plain)))
    except (pickle.PicklingError, TypeError, AttributeError):  # data of the user's own classes: another each time
        found.update(os.urandom(8))
    return found.hexdigest()


def _plain(tensor: Tensor) -> Any:
    """A tensor as bytes: pickles of tensors hold addresses."""
    if tensor.is_meta or is_lazy(tensor):
        return None
    dense = tensor.detach().to_dense().cpu().contiguous().flatten()
    dense = torch.view_as_real(dense) if dense.is_complex() else dense
    return tuple(tensor.shape), str(tensor.dtype), dense.view(torch.uint8).numpy().tobytes()

"""A block of code that leaves a model, its data's random generators and the process's own as they were."""

import inspect
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

_DATA = (DataLoader, Sampler, Dataset)
_RANDOM = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_CONTAINERS = (dict, list, set, deque)


class Kept:
    """What was found in the objects given to it, to be put back by `restore`.

    A module is followed into its attributes, submodules, lists, dictionaries, sets and tuples, whether registered or
    not; a DataLoader, a sampler and a dataset only to their own attributes and their random generators, since a dataset
    may be as large as memory. Objects of other classes are not looked into.
    """

    def __init__(self) -> None:
        self.leaves: list[Tensor] = []
        """Tensors that a backward pass may give a gradient."""
        self._seen: dict[int, Any] = {}  # the objects themselves, so that no other one gets their id
        self._gradients: list[tuple[Tensor, Tensor | None]] = []
        self._values: list[tuple[Tensor, Tensor]] = []
        self._contents: list[tuple[Any, Any]] = []
        self._states: list[tuple[Any, Any]] = []

    @property
    def stateless(self) -> bool:
        """Whether all that was given to it are modules of PyTorch without a tensor, such as `CrossEntropyLoss`, or nothing at all."""
        found = [value for value in self._seen.values() if isinstance(value, (nn.Module, *_DATA))]
        plain = all(type(value).__module__.startswith("torch.nn.modules.") for value in found)
        return plain and not self._values and not self._states

    def add(self, *objects: Any) -> None:
        """Keep the state of these and of what they hold, if it is not kept already."""
        waiting = list(objects)
        while waiting:
            value = waiting.pop()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                waiting += self._keep(value)

    def add_used_by(self, function: Any) -> None:
        """Keep the modules, data and generators that a plain function takes from around it: `lambda: loader`."""
        if hasattr(function, "__wrapped__"):
            self.add_used_by(function.__wrapped__)
        try:
            around = inspect.getclosurevars(function)
        except (TypeError, ValueError):  # a method, a partial, a class: it does not say what it uses
            return
        for value in (*around.nonlocals.values(), *around.globals.values()):
            if isinstance(value, (nn.Module, *_DATA, *_RANDOM)):
                self.add(value)

    def add_data(self, batches: Any) -> None:
        """Keep what `batches` draws from, if it is a DataLoader; a list of batches may be as large as memory."""
        if isinstance(batches, _DATA):
            self.add(batches)

    def restore(self) -> None:
        """Put everything back."""
        for container, content in self._contents:
            _refill(container, content)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for generator, state in self._states:
            _set_state(generator, state)
        with torch.no_grad():
            for tensor, value in self._values:
                if tensor.layout is not torch.strided or not torch.equal(
                    tensor, value
                ):  # sparse ones compare not at all
                    tensor.copy_(value)

    def _keep(self, value: Any) -> list[Any]:
        """Note the state of one object; what it holds is to be kept next."""
        if isinstance(value, Tensor):
            self._keep_tensor(value)
        elif isinstance(value, nn.Module):
            return [vars(value)]  # a dictionary as any other: parameters, buffers, flags and what the user put there
        elif isinstance(value, _DATA):
            self._contents.append((vars(value), dict(vars(value))))
            return [held for held in vars(value).values() if isinstance(held, (*_DATA, *_RANDOM))]
        elif isinstance(value, _RANDOM) and not isinstance(value, random.SystemRandom):
            self._states.append((value, _state(value)))
        elif isinstance(value, _CONTAINERS):
            self._contents.append((value, _plain(value)))
            return list(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, tuple):
            return list(value)
        return []

    def _keep_tensor(self, tensor: Tensor) -> None:
        if nn.parameter.is_lazy(tensor) or tensor.is_meta:  # nothing is in it
            return
        if tensor.is_leaf:
            self.leaves.append(tensor)
            self._gradients.append((tensor, tensor.grad))
        self._values.append((tensor, tensor.detach().clone()))


@contextmanager
def unchanged(*objects: Any, used_by: tuple[Callable[..., Any] | None, ...] = ()) -> Iterator[Kept]:
    """Put models, tensors, data and random number generators back as they were.

    Args:
        *objects: What is used inside the block: modules, tensors, DataLoaders, samplers.
        used_by: Functions that are called inside the block; what they use is kept too, where they say what it is.

    Yields:
        What is kept; more can be added to it.

    Raises:
        KeyboardInterrupt: Ctrl-C came while things were put back; they are back then.
    """
    kept = Kept()
    kept.add(*objects)
    for function in used_by:
        kept.add_used_by(function)
    generators = _generators()
    try:
        yield kept
    finally:
        try:
            _restore(generators)
            kept.restore()
        except KeyboardInterrupt:  # Ctrl-C in the middle of putting back: it waits until all is back
            _restore(generators)
            kept.restore()
            raise


def _plain(container: Any) -> Any:
    """A shallow copy of what it holds, whatever subclass it is."""
    if isinstance(container, dict):
        return dict(container)
    return set(container) if isinstance(container, set) else list(container)


def _refill(container: Any, content: Any) -> None:
    """Give a container its items back, if they are not the same objects; it stays the container it is."""
    if _items(container) == _items(content):
        return
    container.clear()
    if isinstance(container, (dict, set)):
        container.update(content)
    else:
        container.extend(content)


def _items(container: Any) -> Any:
    """The identity of what it holds: comparing values could be anything, with tensors among them."""
    if isinstance(container, dict):
        return [(id(key), id(value)) for key, value in container.items()]
    if isinstance(container, set):
        return {id(value) for value in container}
    return [id(value) for value in container]


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _generators() -> tuple[Any, ...]:
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if used else None
    return torch.get_rng_state(), cuda, np.random.get_state(), random.getstate()


def _restore(states: tuple[Any, ...]) -> None:
    cpu, cuda, numpy_state, python_state = states
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    np.random.set_state(numpy_state)
    random.setstate(python_state)

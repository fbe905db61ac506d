"""What a user's hooks note down while trimtab runs a model, taken back afterwards.

The hooks do run: nothing tells one that only looks on from one that is part of the function. Both may return nothing, and
one that rescales an output in place, or computes a weight, is needed. So what they have written is put back instead: into
lists, dictionaries, sets, variables and objects of the hook's own package, as far as the hook holds them. What went into
files, onto the screen, or into the memory of a tensor or array stays there.
"""

import dis
import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

from trimtab._torch import forward_hooks

_DEPTH = 6  # hook, object, its attributes, a dictionary in them, a list in that; with one to spare
_MANY = 10_000  # of so many things in a list none is looked into
_DICTS = (dict, OrderedDict, defaultdict, Counter)
_OURS = ("torch", "trimtab")  # whose hooks compute weights, gather parameters, or are taken off anyway
_NOTHING = object()


@contextmanager
def hooks_forget(model: nn.Module) -> Iterator[None]:
    """Put back what hooks have written inside.

    Args:
        model: Whose forward hooks may run.

    Yields:
        Nothing.
    """
    befores = [
        _Before(hook) for module in model.modules() for hook in forward_hooks(module) if _home(hook) not in _OURS
    ]
    try:
        yield
    finally:
        for before in reversed(befores):
            before.put_back()


def _home(hook: Any) -> str:
    """Returns the package that something was written in."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    return str(getattr(hook, "__module__", "")).partition(".")[0]


class _Before:
    """The state of what a hook can write to."""

    def __init__(self, hook: Any) -> None:
        self.home = _home(hook)
        self.seen: dict[int, Any] = {}  # holds the things too, so that no id is given twice
        self.mappings: list[tuple[dict[Any, Any], dict[Any, Any], Callable[[Any], bool]]] = []
        self.sequences: list[tuple[Any, list[Any]]] = []
        self.sets: list[tuple[set[Any], set[Any]]] = []
        self.cells: list[tuple[CellType, Any]] = []
        self._take_down(hook, _DEPTH)

    def put_back(self) -> None:
        """Make everything what it was."""
        for cell, value in self.cells:
            cell.cell_contents = value
        for sequence, items in self.sequences:
            if len(sequence) != len(items) or any(a is not b for a, b in zip(sequence, items, strict=True)):
                sequence.clear()
                sequence.extend(items)
        for found, members in self.sets:
            found.intersection_update(members)
            found.update(members)
        for mapping, old, concerns in self.mappings:
            for name in [name for name in mapping if concerns(name) and name not in old]:
                del mapping[name]
            for name, value in old.items():
                if mapping.get(name, _NOTHING) is not value:
                    mapping[name] = value

    def _take_down(self, thing: Any, depth: int) -> None:
        if depth and id(thing) not in self.seen:
            self.seen[id(thing)] = thing
            for part in self._parts(thing):
                self._take_down(part, depth - 1)

    def _parts(self, thing: Any) -> list[Any]:
        """Takes down one thing; returns what it holds."""
        if isinstance(thing, FunctionType):
            return self._of_function(thing) if _home(thing) == self.home else []
        if isinstance(thing, MethodType):
            return [thing.__self__, thing.__func__]
        if isinstance(thing, functools.partial):
            return [thing.func, *thing.args, *thing.keywords.values()]
        if type(thing) in _DICTS:
            self.mappings.append((thing, dict(thing), lambda name: True))
            return list(thing.values()) if len(thing) < _MANY else []
        if type(thing) in (list, deque):
            self.sequences.append((thing, list(thing)))
            return list(thing) if len(thing) < _MANY else []
        if type(thing) is set:
            self.sets.append((thing, set(thing)))
        return list(thing) if type(thing) is tuple else self._of_object(thing)

    def _of_function(self, function: FunctionType) -> list[Any]:
        written = set(_written(function.__code__))
        held: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                held.append(cell.cell_contents)
            except ValueError:  # a variable that has no value yet
                continue
            if name in written:
                self.cells.append((cell, held[-1]))
        space = function.__globals__
        named = {name: space[name] for name in _named(function.__code__) if name in space}
        old = {name: value for name, value in named.items() if name in written}
        self.mappings.append((space, old, written.__contains__))
        return [*held, *named.values()]

    def _of_object(self, thing: Any) -> list[Any]:
        attributes = getattr(thing, "__dict__", None)
        if type(attributes) is not dict or _home(type(thing)) != self.home:
            return []
        # A module is the model's, but for what the user has put beside its parameters, its parts and its mode.
        theirs = _is_theirs if isinstance(thing, nn.Module) else lambda name: True
        own = {name: value for name, value in attributes.items() if theirs(name)}
        self.mappings.append((attributes, own, theirs))
        return list(own.values())


def _is_theirs(name: str) -> bool:
    return not name.startswith("_") and name != "training"


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _named(code: CodeType) -> Iterator[str]:
    for part in _codes(code):
        yield from part.co_names


def _written(code: CodeType) -> Iterator[str]:
    """Yields the variables outside of a function that it gives new values."""
    for part in _codes(code):
        for step in dis.get_instructions(part):
            if step.opname in {"STORE_GLOBAL", "STORE_DEREF"}:
                yield step.argval

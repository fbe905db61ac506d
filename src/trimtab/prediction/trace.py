"""Riding along one real forward pass: which operations ran on which tensors.

A `TorchDispatchMode` sees every operation below autograd, functional calls and control flow included. Tensors are told
apart by the memory they occupy; what does not depend on the batch (weights and what is made of them, masks, dropout's
noise) is *known* and measured where an operation uses it. No tensor is kept.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.hooks import unserializable_hook

from trimtab._torch import is_traced
from trimtab.prediction.lookups import repeats
from trimtab.prediction.measuring import likened, measured_state, moments, shown_moments
from trimtab.prediction.registry import Call, Value, plain_name
from trimtab.prediction.state import NoRuleError, State, measure

Key = tuple[int, int, tuple[int, ...], tuple[int, ...]]

FACTORIES = frozenset(
    f"aten.{name}" for name in ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_empty",
    "new_zeros", "new_ones", "new_full", "randint_like")
)  # fmt: skip
"""What takes a shape and no values from its argument."""

SAME = frozenset({"aten.detach", "aten.alias", "aten.lift_fresh"})
"""What gives another handle on the same tensor."""


LOOKUPS = frozenset({"aten.index", "aten.index_select", "aten.gather"})


def key_of(tensor: Tensor) -> Key | None:
    """Where a tensor lies in memory and how, None if it has no memory of its own."""
    if tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return None
    pointer = tensor.untyped_storage().data_ptr()
    place = int(tensor.storage_offset())
    return (pointer, place, tuple(tensor.shape), tuple(tensor.stride())) if pointer else None


def _place(part: Key, whole: Key) -> tuple[int, ...] | None:
    """The shape of a part as one of as many dimensions as the whole, told by how far apart its entries lie in memory."""
    left = {stride: n for n, stride in zip(part[2], part[3], strict=True) if n > 1}
    shape = tuple(left.pop(stride, 1) if n > 1 else 1 for n, stride in zip(whole[2], whole[3], strict=True))
    return None if left else shape


@dataclass(frozen=True, slots=True)
class _Seen:
    """The tensors that an operation is given, which values they are, whether any is signal, and the states of the others."""

    given: list[Tensor]
    values: dict[int, Value | None]
    signal: bool
    states: dict[int, State]


def _hidden_where(name: str, args: tuple[Any, ...]) -> bool | None:
    """The value of a boolean mask that stands for what is left out, None where there is no mask."""
    if name == "aten.where" and len(args) == 3:
        return not (isinstance(args[1], Tensor) and args[1].ndim > 0)
    return True if name == "aten.masked_fill" else None


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own lacks types
    """Writes down the operations that run while `listening`.

    Attributes:
        calls: The operations on the signal, in order.
        sources: The states that are read from the batch, by tensor.
        values: What was measured of each floating result that is not a view: mean square and mean.
        listening: Whether operations are written down.
        fault: What went wrong in writing down, if anything did; nothing is written from then on.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.sources: dict[int, State] = {}
        self.values: dict[int, tuple[float, float]] = {}
        self.listening = False
        self.fault: Exception | None = None
        self._ids: dict[Key, Value] = {}
        self._in_storage: dict[int, set[Key]] = {}
        self._signal: set[int] = set()  # storages that hold part of the signal
        self._written: dict[
            int, tuple[Value | None, dict[Key, Value]]
        ] = {}  # what was there before, and parts written since
        self._known: dict[tuple[int, int, bool | None], State] = {}
        self._count = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether the compiler may work as if this mode were not there: it would never compile again what it saw under one."""
        return True

    def add_source(self, tensor: Tensor) -> None:
        """Take a tensor of the batch for a beginning of the signal."""
        key = key_of(tensor)
        if key is not None and key not in self._ids:
            value = self._enter(key, False, tensor.is_floating_point())
            if value.real:
                self.sources[value.id] = likened(measure(tensor), tensor)

    def quietly(self, note: Callable[..., None]) -> Callable[..., None]:
        """A hook in a backward pass, which may be the user's own: a fault of ours ends the ride and not the pass.

        Args:
            note: Takes the gradients.

        Returns:
            The hook. Of one output of several that nothing has read torch gives no gradient, and `note` is not called.
        """

        def hook(*gradients: Any) -> None:
            try:
                if gradients[0] is not None:
                    note(*gradients)
            except Exception as error:
                self.fault = error

        return unserializable_hook(hook)  # type: ignore[no-untyped-call, no-any-return]

    def find(self, tensor: Tensor) -> Value | None:
        """The signal that lies in a tensor, None if there is none."""
        key = key_of(tensor)
        value = self._ids.get(key) if key is not None else None
        return None if value is None or value.known else value

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and write it down."""
        kwargs = kwargs or {}
        name = plain_name(function)
        if not self.listening or name in SAME or is_traced():
            return function(*args, **kwargs)
        self.listening = False
        try:
            seen = self._seen(name, args, kwargs)
            result = function(*args, **kwargs)
            if seen is not None:
                self._write_down(name, function, args, kwargs, seen, result)
            return result
        finally:
            self.listening = self.fault is None

    def _seen(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Seen | None:
        """What is known of the arguments; None where that could not be told: the user's operation runs all the same."""
        try:
            given = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
            values = {id(t): self._value(t) for t in given}
            signal = name not in FACTORIES and any(v is not None and not v.known for v in values.values())
            hidden = _hidden_where(name, args) if signal else None
            return _Seen(given, values, signal, self._known_states(given, values, hidden) if signal else {})
        except Exception as error:
            self.fault = error
            return None

    def _write_down(
        self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], seen: _Seen, result: Any
    ) -> None:
        """The operation that has run, unless that could not be told."""
        try:
            values = seen.values
            outputs = self._outputs(function, seen.given, result, seen.signal)
            if seen.signal and any(outputs):
                new_args, new_kwargs = tree_map(lambda t: values[id(t)] if isinstance(t, Tensor) else t, (args, kwargs))
                call = Call(name, function, new_args, new_kwargs, outputs, seen.states)
                if name in LOOKUPS:
                    call.repeats.update({values[k].id: v for k, v in repeats(args).items() if values[k]})  # type: ignore[union-attr]
                self._write(call, [v for v in values.values() if v is not None], seen.given, result)
        except Exception as error:
            self.fault = error

    def _outputs(self, function: Any, given: list[Tensor], result: Any, signal: bool) -> tuple[Value | None, ...]:
        """New names for the floating results; none at all where all of them are tensors that have one already."""
        storages = {key[0] for t in given if (key := key_of(t)) is not None}
        writes = function._schema.is_mutable
        results = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor)]
        keys = [key_of(t) for t in results]
        if not writes and results and all(k is not None and k[0] in storages and k in self._ids for k in keys):
            return ()
        outputs: list[Value | None] = []
        for tensor, key in zip(results, keys, strict=True):
            if key is None:
                outputs.append(None)
                continue
            before: Value | None = None
            if key[0] not in storages:
                self._forget(key[0])
            elif writes:
                before = self._whole(key)
                self._forget(key[0], but=key)
            value = self._enter(key, not signal, tensor.is_floating_point())
            if writes and before is None:
                self._written.pop(key[0], None)
            elif writes and signal and before is not None:
                self._written.setdefault(key[0], (None if before.known else before, {}))[1][key] = value
            outputs.append(value if value.real else None)
        return tuple(outputs)

    def _write(self, call: Call, values: list[Value], given: list[Tensor], result: Any) -> None:
        results = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor)]
        read = not any(v.real for v in values if not v.known)
        if not read:
            self.calls.append(call)
        storages = {key[0] for t in given if (key := key_of(t)) is not None}
        for tensor, value in zip(results, call.outputs, strict=True):
            if value is None:
                continue
            if read:  # rows of a table that indices of the batch look up: read from both
                self.sources[value.id] = measured_state(tensor)
            elif call.function._schema.is_mutable or tensor.untyped_storage().data_ptr() not in storages:
                self.values[value.id] = shown_moments(tensor)

    def _known_states(
        self, given: list[Tensor], values: dict[int, Value | None], hidden: bool | None
    ) -> dict[int, State]:
        """What is known of the arguments that are no signal."""
        found = {}
        for tensor in given:
            value = values[id(tensor)]
            if value is None or not (value.known or not value.real):
                continue
            mark = (value.id, tensor._version, hidden)
            if mark not in self._known:
                try:
                    self._known[mark] = measured_state(tensor, hidden)
                except NoRuleError:
                    continue
            found[value.id] = self._known[mark]
        return found

    def _value(self, tensor: Tensor) -> Value | None:
        key = key_of(tensor)
        if key is None:
            return None
        if key in self._ids:
            return self._ids[key]
        value = self._enter(key, key[0] not in self._signal, tensor.is_floating_point())
        if not value.known and value.real:  # a tensor that was written piece by piece
            self.values[value.id] = moments(tensor)
            base, parts = self._written.get(key[0], (None, {}))
            places = [_place(part, key) for part in parts]
            self.calls.append(
                Call("trimtab.written_in_parts", None, (base, list(parts.values()), places), {}, (value,))
            )
        return value

    def _whole(self, key: Key) -> Value | None:
        """A tensor that a written one is part of, as far as it has a name."""
        known = self._in_storage.get(key[0], set())
        largest = max(known, key=lambda k: math.prod(k[2]), default=key)
        return self._ids[largest] if math.prod(largest[2]) > math.prod(key[2]) else None

    def _enter(self, key: Key, known: bool, real: bool) -> Value:
        self._count += 1
        value = Value(self._count, key[2], known, real)
        self._ids[key] = value
        self._in_storage.setdefault(key[0], set()).add(key)
        if not known:
            self._signal.add(key[0])
        return value

    def _forget(self, storage: int, but: Key | None = None) -> None:
        """What a write has changed: all of the storage, but for parts beside the one that was written (chunks of one split)."""
        keys = self._in_storage.pop(storage, set())
        kept = {key for key in keys if but is not None and key[2:] == but[2:]}
        for key in keys - kept:
            self._ids.pop(key, None)
        if kept:
            self._in_storage[storage] = kept
        if but is None:
            self._signal.discard(storage)
            self._written.pop(storage, None)

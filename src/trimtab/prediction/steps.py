"""Operations that did not run but stand for one that did, written down one after the other."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trimtab.prediction.registry import Call, Value
from trimtab.prediction.state import State


@dataclass(slots=True)
class Steps:
    """A list of operations that is being written.

    Attributes:
        states: The states of known tensors, which all of them share.
        calls: The operations so far.
        numbers: Names of tensors that never were, below zero.
    """

    states: dict[int, State] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(-1, -1))

    def new(self, shape: Sequence[int], known: bool = False) -> Value:
        """A tensor that never was."""
        return Value(next(self.numbers), tuple(shape), known)

    def add(self, name: str, args: tuple[Any, ...], *outputs: Value) -> Value:
        """One more operation of aten.

        Args:
            name: Its name.
            args: Its arguments.
            *outputs: What it gives.

        Returns:
            The first of them.
        """
        function = getattr(torch.ops.aten, name)
        overload = getattr(function, function.overloads()[0])
        self.calls.append(Call(f"aten.{name}", overload, args, {}, outputs, self.states))
        return outputs[0]

    def view(self, value: Value, shape: Sequence[int], out: Value | None = None) -> Value:
        """The same entries in another shape."""
        return self.add("view", (value, list(shape)), out or self.new(shape))

    def product(self, a: Value, b: Value, out: Value | None = None) -> Value:
        """A product of matrices over leading dimensions."""
        *batch, n, k = a.shape
        m, count = b.shape[-1], math.prod(batch)
        factors = self.view(a, (count, n, k)), self.view(b, (count, k, m))
        return self.view(self.add("bmm", factors, self.new((count, n, m))), (*batch, n, m), out)

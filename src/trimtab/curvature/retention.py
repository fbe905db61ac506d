"""Whether the graphs of a problem's gradients are kept between products, or made anew for each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor
from torch.utils import _pytree as pytree

from trimtab.curvature._checks import require_choice
from trimtab.curvature.memory import KEPT_PER_SAVED, available_bytes, in_words
from trimtab.curvature.problem import Problem

METHODS = ("auto", "retained", "recompute")

T = TypeVar("T")

SHARE = 0.5
"""Graphs are kept where they need at most this share of what memory there is: vectors and the user's run need some, too."""


@dataclass(frozen=True)
class Retention:
    """What was decided, and on what.

    Attributes:
        method: "retained", each product being one backward pass of a kept graph; or "recompute", each product being a forward
            pass and two backward passes of each batch in turn.
        estimate: Bytes that kept graphs of all batches need, about.
        one_batch: Bytes that the graph of the largest batch needs, about: the peak where graphs are made anew.
        available: Bytes there were; None where it could not be told.
    """

    method: str
    estimate: float
    one_batch: float
    available: int | None

    def __str__(self) -> str:
        there = f" of {in_words(self.available)}" if self.available is not None else ""
        if self.method == "retained":
            return f"graphs kept, about {in_words(self.estimate)}{there}"
        return f"graphs made anew for each product, about {in_words(self.one_batch)}{there} (kept: {in_words(self.estimate)})"


def retention_of(problem: Problem, method: str = "auto") -> Retention:
    """Keep the graphs, or not.

    Args:
        problem: What is to be differentiated; its first batch's forward pass was measured when it was made.
        method: "retained", "recompute", or "auto" for what memory allows.

    Returns:
        The decision.
    """
    require_choice("method", method, METHODS)
    sizes = [sum(leaf.numel() for leaf in pytree.tree_leaves(b) if isinstance(leaf, Tensor)) for b in problem.batches]
    unit = KEPT_PER_SAVED * problem.saved_bytes / max(1, sizes[0])
    estimate, one_batch = unit * sum(sizes), unit * max(sizes)
    available = available_bytes(problem.device)
    if method == "auto":
        fits = available is None or estimate <= SHARE * available
        method = "retained" if fits else "recompute"
    return Retention(method, estimate, one_batch, available)


class Graphs(Generic[T]):
    """What is differentiated again for each product, batch by batch.

    Args:
        count: How many batches there are.
        retention: Whether what was made is kept; else it is made anew at each pass.
        make: Makes it of a batch.
    """

    def __init__(self, count: int, retention: Retention, make: Callable[[int], T]) -> None:
        self._count = count
        self._keep = retention.method == "retained"
        self._make = make
        self._kept: list[T] = []

    def __iter__(self) -> Iterator[T]:
        for index in range(self._count):
            if index < len(self._kept):
                yield self._kept[index]
                continue
            made = self._make(index)
            if self._keep:
                self._kept.append(made)
            yield made

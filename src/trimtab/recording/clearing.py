"""Whether anybody clears the gradients between two steps, told from the identity and values of a few gradients."""

import weakref

import torch
from torch import Tensor
from torch.optim import Optimizer

from trimtab._distributed import local

SAMPLE = 3
"""Gradients of an optimizer that are looked at."""


class Clearing:
    """Follows a few gradients of each optimizer from its step to the passes after it."""

    def __init__(self) -> None:
        self._kept: dict[int, list[tuple[weakref.ref[Tensor], int]]] = {}
        self._cleared: dict[int, bool] = {}

    def remember(self, index: int, optimizer: Optimizer) -> None:
        """Note which gradients the step of optimizer `index` has used."""
        kept: list[tuple[weakref.ref[Tensor], int]] = []
        for group in reversed(optimizer.param_groups):  # the last layers' gradients are the last to be exactly zero
            for parameter in reversed(group["params"]):
                grad = parameter.grad
                if grad is not None and grad.layout == torch.strided and len(kept) < SAMPLE:
                    kept.append((weakref.ref(parameter), id(grad)))
            if len(kept) == SAMPLE:
                break
        self._kept[index] = kept
        self._cleared[index] = not kept

    def look(self) -> None:
        """A backward pass is about to begin: see which gradients are gone by now."""
        for index, kept in self._kept.items():
            if not self._cleared[index] and all(_gone(*entry) for entry in kept):
                self._cleared[index] = True

    def uncleared(self, index: int) -> bool:
        """Whether the gradients that the last step of this optimizer used were still there in every pass since."""
        return not self._cleared.get(index, True)


def _gone(reference: "weakref.ref[Tensor]", identity: int) -> bool:
    """Whether a gradient is no more, is another tensor, or has been set to zero."""
    parameter = reference()
    grad = None if parameter is None else parameter.grad
    if grad is None or id(grad) != identity:
        return True
    return not bool(local(grad).any())  # `grad.data.zero_()` leaves the version as it was

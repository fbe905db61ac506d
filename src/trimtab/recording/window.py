"""What one open training step has brought so far, and how it becomes one row of the record.

A forward call belongs to training when a backward pass that deposits into `.grad` has reached it; everything else (evaluation,
a forward that was aborted, a saliency map) is dropped here.
"""

import math
import weakref
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from trimtab.recording.parts import COPIED, SHARED, SPREAD, Part
from trimtab.stats import merge_rows

CHANNELS = 16
"""Channels of a batch normalization whose running statistics are compared between ranks."""

Deposit: TypeAlias = tuple["weakref.ref[Tensor]", int, int]
"""A parameter, and the identity and version of its gradient."""


@dataclass(slots=True)
class Window:
    """The rows of one step, by what they belong to; a row is an index into the step's tape.

    Attributes:
        step: Number of the step.
        recording: Whether it is recorded in full.
        detail: Whether units and links are looked at as well.
        forwards: Row, site and scope (forward call of a root) of each output.
        gradients: Row, site and pass of each gradient at an output.
        live: Scopes that a training pass has reached.
        reached: Scopes that the running pass has reached.
        modes: Whether the root was in training mode, by scope.
        foreign: Scopes that ran with weights which are not the model's own.
        parameters: Row by site of everything read at the optimizer's step; the last reading counts.
        raw: Row of each parameter's gradient at the end of the last pass that left something in it, by site.
        deposits: The parameters whose gradients the passes so far have changed, with the identity and version they left.
        scales: What a site's rows must be divided by (gradients that a fused optimizer unscales itself).
        samples: Number of elements of what a site's row saw only a sample of.
        rates: Learning rates of an optimizer's groups as its step used them, by its index.
        units: Scope, site, number of the module's call and unit summary on its device.
        channels: Scope, site and channel rows on their device.
        batch: Samples of the batch: the first axis of the first tensor that a root was called with.
        kept: Running statistics of batch normalizations when the step began, by model and name.
        details: Key and value of what was looked at in detail.
        links: Where each module's input comes from, by "model:name" and call (`call_name`), in the order in which they ran.
        losses: What each backward pass started from, a loss scale divided out.
        copies: Ranks that average their gradients: a gradient at an output is divided by it, as the averaged loss has it.
        halves: Whether ranks compute parts of one and the same output (tensor parallelism).
        broadcast: Whether the first rank's buffers are sent to all at each forward call.
        spread: Sites of parameters of which this rank has a shard, with the first of the ranks that share it out.
        place: Which share of the data this rank sees.
        loss_scale: What mixed precision multiplied the last one by: the parameters' gradients stand in these units.
        pass_scales: The same by the number of the pass, where it is known: the gradients at outputs stand in these units.
        passes: Backward passes so far.
        first_pass: Passes before this one deposited nothing that the step used.
        optimizers: Bits of the optimizers that have stepped.
        closure: Whether the step runs a closure, which may run many passes.
        before_closure: Losses that were there when the closure began.
        written: Whether it has been handed over to be written.
        uncleared: Optimizers that used gradients nobody had cleared since their last step.
    """

    step: int
    recording: bool
    detail: bool
    forwards: list[tuple[int, int, int]] = field(default_factory=list)
    gradients: list[tuple[int, int, int]] = field(default_factory=list)
    live: set[int] = field(default_factory=set)
    reached: set[int] = field(default_factory=set)
    modes: dict[int, bool] = field(default_factory=dict)
    foreign: set[int] = field(default_factory=set)
    parameters: dict[int, int] = field(default_factory=dict)
    raw: dict[int, int] = field(default_factory=dict)
    deposits: dict[int, Deposit] = field(default_factory=dict)
    scales: dict[int, float] = field(default_factory=dict)
    samples: dict[int, int] = field(default_factory=dict)
    rates: dict[int, list[float | Tensor]] = field(default_factory=dict)
    units: list[tuple[int, int, int, Tensor]] = field(default_factory=list)
    channels: list[tuple[int, int, Tensor]] = field(default_factory=list)
    batch: int = 0
    kept: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    details: dict[str, object] = field(default_factory=dict)
    links: dict[str, dict[str, Any]] = field(default_factory=dict)
    losses: list[Tensor | float] = field(default_factory=list)
    copies: int = 1
    halves: bool = False
    broadcast: bool = False
    spread: dict[int, int] = field(default_factory=dict)
    place: int = 0
    loss_scale: Tensor | None = None
    pass_scales: dict[int, Tensor] = field(default_factory=dict)
    passes: int = 0
    first_pass: int = 0
    optimizers: int = 0
    closure: bool = False
    before_closure: int = 0
    uncleared: list[int] = field(default_factory=list)
    written: bool = False
    _begun: tuple[int, int] = (0, 0)

    @property
    def training(self) -> bool | None:
        """Whether the first root that a training pass has reached was in training mode, None when none was reached."""
        return next((mode for scope, mode in self.modes.items() if scope in self.live), None)

    def begin_pass(self) -> None:
        """A backward pass begins."""
        self.passes += 1
        self.reached.clear()
        self._begun = len(self.gradients), len(self.losses)

    def keep_scale(self, number: int, scale: Tensor | None) -> None:
        """What mixed precision has multiplied the loss of a pass by.

        Args:
            number: The pass.
            scale: The factor, None where there is none.
        """
        self.loss_scale = scale
        if scale is not None:
            self.pass_scales[number] = scale

    def note_rows(self, site: int, grad: Tensor) -> None:
        """Of how many rows a sparse gradient tells: its reading counts no others.

        Args:
            site: That of the gradient.
            grad: The gradient, which may name a row more than once.
        """
        touched = len(torch.unique(grad._indices(), dim=1).T)
        whole = math.prod(grad.shape[: grad.sparse_dim()])
        sparse: Any = self.details.setdefault("sparse", {})
        sparse[str(site)] = [touched, whole]

    def end_pass(self, deposited: bool) -> None:
        """A backward pass has ended.

        Args:
            deposited: Whether it left anything in the gradients of a parameter; else it was not for training.
        """
        if deposited:
            self.live |= self.reached
        else:
            self.passes -= 1
            del self.gradients[self._begun[0] :]
            del self.losses[self._begun[1] :]

    def begin_closure(self) -> None:
        """The optimizer's step runs a closure."""
        self.closure = True
        self.before_closure = len(self.losses)

    def end_closure(self) -> None:
        """The closure will not run again: the loss of the step is that of its first run, with what was there before."""
        if self.closure:
            self.closure = False
            del self.losses[self.before_closure + 1 :]

    def forget_passes(self) -> None:
        """Drop what the passes so far brought: their gradients were thrown away before a step used them."""
        self.first_pass = self.passes
        self.gradients.clear()
        self.live.clear()
        self.raw.clear()
        self.deposits.clear()
        # The loss of a closure is that of its first run: a later one does not take it away.
        if not self.closure or len(self.losses) <= self.before_closure:
            self.losses.clear()
            self.before_closure = 0

    def _taken(self) -> list[tuple[int, int]]:
        """Row and site of all that belongs to the step."""
        taken = [(row, site) for row, site, scope in self.forwards if scope in self.live]
        taken += [(row, site) for row, site, _ in self.gradients]
        taken += [(row, site) for site, row in self.parameters.items()]
        taken += [(row, site) for site, row in self.raw.items()]
        return [pair for pair in taken if pair[0] >= 0]

    def _scaled_rows(self) -> Iterator[tuple[int, float]]:
        """Row and divisor of every gradient in other units than the loss."""
        passes = {number: float(scale) for number, scale in self.pass_scales.items()}
        last = 1.0 if self.loss_scale is None else float(self.loss_scale)
        found = [(row, passes.get(number, 1.0)) for row, _, number in self.gradients]
        found += [(row, last) for row in self.raw.values()]
        found += [(self.parameters[site], scale) for site, scale in self.scales.items() if site in self.parameters]
        return ((row, divisor) for row, divisor in found if row >= 0 and divisor != 1)

    def rate(self) -> float | Tensor | None:
        """Learning rate of the first group of the first optimizer that has stepped."""
        return next((rates[0] for i, rates in sorted(self.rates.items()) if self.optimizers >> i & 1 and rates), None)

    def sampled(self, rows: Set[int]) -> list[int]:
        """Sites with a number that was taken from a sample.

        Args:
            rows: The rows of the step's tape that have such numbers.

        Returns:
            Their indices, in order.
        """
        sites = {site for row, site in self._taken() if row in rows} if rows else set()
        return sorted(sites | set(self.samples))

    def rows(self, tape: np.ndarray, sites: int) -> np.ndarray:
        """One moment row per site.

        Args:
            tape: All rows of the step, (n, 7); those of scaled gradients are put into true units in place.
            sites: Number of sites known by now.

        Returns:
            (sites, 7), with count 0 where a site was not seen.
        """
        taken = self._taken()
        if not taken:
            return np.zeros((sites, 7))
        for row, divisor in self._scaled_rows():
            tape[row, [1, 3, 4]] /= divisor
            tape[row, 2] /= divisor**2
        index = np.array(taken, dtype=np.int64)
        rows = merge_rows(tape[index[:, 0]], index[:, 1], sites)
        if self.copies > 1:
            at_outputs = list({site for _, site, _ in self.gradients})
            rows[np.ix_(at_outputs, [1, 3, 4])] /= self.copies
            rows[at_outputs, 2] /= self.copies**2
        for site, elements in self.samples.items():
            rows[site] = _whole(rows[site], elements)
        return rows

    def part(
        self, rows: np.ndarray, losses: list[tuple[int, float | None, float | None, int]], shared: np.ndarray, rank: int
    ) -> Part:
        """What this rank adds to the step of a distributed run.

        Args:
            rows: What `rows` gave, (sites, 7).
            losses: All that wait to be written, this step's last.
            shared: Sites at which the ranks hold the same, unless they are in `spread`: (sites,).
            rank: This rank.

        Returns:
            Its part.
        """
        modes = np.where(shared, SHARED, COPIED if self.halves else SPREAD).astype(np.int32)
        modes[list(self.spread)] = list(self.spread.values())
        bad = {int(site): ([rank], 1) for site in np.flatnonzero(rows[:, 6] > 0)}
        about = {
            "batch": self.batch,
            "place": self.place if self.halves else rank,
            "loss": losses[-1][1] if losses else None,
            "copies": self.copies,
            "halves": self.halves,
            "running": {} if self.broadcast else self._running(),
        }
        return Part(str(self.step), [rank], losses, rows, modes, bad, about={rank: about})

    def _running(self) -> dict[str, list[list[float]]]:
        """Mean and variance of the first channels of every batch normalization, as they were when the step began."""
        return {
            f"{model}:{name}": rows[:CHANNELS, 1:3].T.tolist()
            for model, kept in self.kept.items()
            for name, rows in kept.items()
        }


def _whole(row: np.ndarray, elements: int) -> np.ndarray:
    """The row of a sample as that of all `elements`: what counts or sums grows with their number."""
    seen = row[0] + row[6]
    if not seen:
        return row
    whole = row.copy()
    whole[[5, 6]] = np.round(row[[5, 6]] * elements / seen)
    whole[0] = elements - whole[6]
    whole[2] = row[2] * whole[0] / max(row[0], 1.0)
    return whole

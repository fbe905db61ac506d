"""What one open training step has brought so far, and how it becomes one row of the record.

A forward call belongs to training when a backward pass that deposits into `.grad` has reached it; everything else (evaluation,
a forward that was aborted, a saliency map) is dropped here.
"""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from trimtab.stats import merge_rows


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
        parameters: Row by site of everything read at the optimizer's step; the last reading counts.
        raw: Row and identity of each parameter's gradient at the end of the last backward pass, by site.
        scales: What a site's rows must be divided by (gradients that a fused optimizer unscales itself).
        units: Scope, site and unit summary on its device.
        channels: Scope, site and channel rows on their device.
        details: Key and value of what was looked at in detail.
        links: Where each module's input comes from, by "model:name", in the order in which the modules ran.
        losses: What each backward pass started from.
        passes: Backward passes so far.
        first_pass: Passes before this one deposited nothing that the step used.
        optimizers: Bits of the optimizers that have stepped.
        closure: Whether the step runs a closure, which may run many passes.
        uncleared: Optimizers that used gradients nobody had cleared since their last step.
        training: Whether the first root was in training mode, None before its forward.
    """

    step: int
    recording: bool
    detail: bool
    forwards: list[tuple[int, int, int]] = field(default_factory=list)
    gradients: list[tuple[int, int, int]] = field(default_factory=list)
    live: set[int] = field(default_factory=set)
    parameters: dict[int, int] = field(default_factory=dict)
    raw: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    scales: dict[int, float] = field(default_factory=dict)
    units: list[tuple[int, int, Tensor]] = field(default_factory=list)
    channels: list[tuple[int, int, Tensor]] = field(default_factory=list)
    details: dict[str, object] = field(default_factory=dict)
    links: dict[str, object] = field(default_factory=dict)
    losses: list[Tensor | float] = field(default_factory=list)
    passes: int = 0
    first_pass: int = 0
    optimizers: int = 0
    closure: bool = False
    uncleared: list[int] = field(default_factory=list)
    training: bool | None = None

    def forget_passes(self) -> None:
        """Drop what the passes so far brought: their gradients were thrown away before a step used them."""
        self.first_pass = self.passes
        self.gradients.clear()
        self.live.clear()
        self.losses.clear()
        self.raw.clear()

    def loss(self) -> float | None:
        """The objective of the step: the sum over its backward passes; the first one where a closure ran; None if unseen."""
        if not self.losses:
            return None
        values = self.losses[:1] if self.closure else self.losses
        return float(sum(float(value) for value in values))

    def rows(self, tape: np.ndarray, sites: int) -> np.ndarray:
        """One moment row per site.

        Args:
            tape: All rows of the step, (n, 7).
            sites: Number of sites known by now.

        Returns:
            (sites, 7), with count 0 where a site was not seen.
        """
        taken = [(row, site) for row, site, scope in self.forwards if scope in self.live]
        taken += [(row, site) for row, site, _ in self.gradients]
        taken += [(row, site) for site, row in self.parameters.items()]
        taken += [(entry[0], site) for site, entry in self.raw.items()]
        taken = [pair for pair in taken if pair[0] >= 0]
        if not taken:
            return np.zeros((sites, 7))
        index = np.array(taken, dtype=np.int64)
        rows = merge_rows(tape[index[:, 0]], index[:, 1], sites)
        for site, scale in self.scales.items():
            rows[site, [1, 3, 4]] /= scale
            rows[site, 2] /= scale**2
        return rows

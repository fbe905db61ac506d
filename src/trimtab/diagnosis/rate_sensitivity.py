"""How much a run's loss depends on its learning rate, as a number and a figure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trimtab._messages import say
from trimtab._setup import Setup
from trimtab._style import COLOURS, INK, LABEL, SMALL, TITLE, empty, quiet, ruled, saved, styled, verbatim
from trimtab.diagnosis import probes
from trimtab.diagnosis.probes.trials import trial
from trimtab.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FACTORS = tuple(10 ** (i / 2) for i in range(-4, 5))
"""Rates over the setup's own: two decades to both sides, half a decade apart."""


@dataclass(frozen=True, slots=True)
class RateSensitivity:
    """Losses over learning rates.

    Attributes:
        name: What was trained, for the figure.
        rates: Learning rates, ascending.
        losses: Loss at the end of a run at each, infinite where it broke.
        first: Loss at initialization.
    """

    name: str
    rates: tuple[float, ...]
    losses: tuple[float, ...]
    first: float

    @property
    def best(self) -> float:
        """The rate with the lowest loss."""
        return self.rates[int(np.argmin(self.losses))]

    @property
    def value(self) -> float:
        """Learning-rate sensitivity: mean over the rates of min(loss, loss at initialization), less the lowest loss.

        Wortsman et al. 2023, arXiv:2309.14322, section 2.2. It is 0 where every rate ends equally low. The rates should be evenly
        spaced in their logarithm.
        """
        held = np.minimum(self.losses, self.first)
        return float(held.mean() - held.min())

    def __str__(self) -> str:
        rows = [
            f"{rate:>10.3g}  {say('broke') if math.isinf(loss) else f'{loss:.4g}'}"
            for rate, loss in zip(self.rates, self.losses, strict=True)
        ]
        head = say(
            "{name}: learning-rate sensitivity {value}, lowest loss at {best}",
            name=self.name,
            value=f"{self.value:.3g}",
            best=f"{self.best:.3g}",
        )
        return "\n".join([head, *rows]) + "\n"


def rate_sensitivity(
    setup: Setup,
    *,
    name: str = "",
    factors: Sequence[float] = FACTORS,
    steps: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RateSensitivity:
    """Train copies of a setup at several learning rates.

    Args:
        setup: The run; it is not trained, and everything is as it was afterwards.
        name: For the figure; the class of the model where it is empty.
        factors: Rates to try, over the setup's own.
        steps: Steps of each; None for the setup's own.
        progress: Told steps done and all steps.

    Returns:
        The losses: the mean of the last quarter of each run.

    Raises:
        UsageError: `factors` is empty or holds what is no positive number.
        SetupError: The batches cannot be used.
        Declined: A copy cannot be made or trained.
    """
    if not factors or not all(f > 0 and math.isfinite(f) for f in factors):
        raise UsageError(f"factors must be positive numbers, at least one, but they are {list(factors)!r}")
    count = setup.steps if steps is None else steps
    drawn = probes.drawn(setup, count)
    rate = max(group["lr"] for optimizer in setup.optimizers for group in optimizer.param_groups)
    runs = []
    for done, factor in enumerate(sorted(factors)):
        told = (
            None if progress is None else (lambda at, _, done=done: progress(done * count + at, len(factors) * count))
        )
        runs.append(trial(setup, drawn, count, factor=factor, told=told))
    rates = tuple(float(rate * factor) for factor in sorted(factors))
    first = float(runs[0].losses[0])
    return RateSensitivity(name or type(setup.model).__name__, rates, tuple(run.end for run in runs), first)


@styled
def sensitivity_figure(found: Sequence[RateSensitivity], path: str | Path | None = None) -> "Figure":
    """Loss over learning rate, a line for each run: with a repair and without it, say.

    Args:
        found: The runs, at least one.
        path: Where to save the figure, as PNG unless it ends in .svg or .pdf; None saves nothing.

    Returns:
        The figure. A run that broke stands at its loss at initialization, as an open mark.

    Raises:
        ValueError: There is no run.
    """
    if not found:
        raise ValueError("sensitivity_figure needs at least one run, got none")
    figure = empty(4.6, 3.2)
    axes = figure.subplots()
    for run, colour in zip(found, COLOURS * len(found), strict=False):
        shown = np.minimum(run.losses, run.first)
        label = verbatim(f"{run.name}: {run.value:.2g}")
        axes.plot(run.rates, shown, color=colour, linewidth=1.4, label=label)
        broke = np.isinf(run.losses)
        axes.plot(np.array(run.rates)[~broke], shown[~broke], "o", color=colour, markersize=4)
        axes.plot(np.array(run.rates)[broke], shown[broke], "o", color=colour, markersize=5, markerfacecolor="white")
    axes.set_xscale("log")
    axes.set_xlabel(say("learning rate"), fontsize=LABEL, color=INK)
    axes.set_ylabel(say("loss at the end, at most the first"), fontsize=LABEL, color=INK)
    axes.set_title(say("learning-rate sensitivity"), fontsize=TITLE, color=INK, pad=8)
    ruled(axes, "both")
    quiet(axes)
    axes.legend(fontsize=SMALL, frameon=False, labelcolor=INK)
    return saved(figure, path)

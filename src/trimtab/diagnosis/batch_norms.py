"""The batch normalizations of a watched model: what they were given, look by look, beside the statistics they keep."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trimtab.diagnosis.layers import links_of
from trimtab.recording import Kind, Record

SHARE = 1 / 3
"""Looks from this share of the run on count as late: the weights move little by then."""

LATEST = 6
"""How many of them, at most."""

MEDIAN = 0.455
"""Median of the square of a standard normal number: what a median of squares is of their mean."""

FADED = 1e-3
"""Variance of a channel, over that of the layer's median channel, below which it is dead and tells nothing."""


@dataclass(frozen=True)
class BatchNorm:
    """One batch normalization.

    Attributes:
        model: Index of its model.
        name: Its name in the model.
        cls: Its class.
        momentum: Weight of the newest batch in the running statistics; None for a plain average.
        keeps: Whether it keeps running statistics.
        samples: Samples of a batch.
        elements: Values behind one statistic.
        sites: Positions a sample brings to a statistic, at most.
        padding: Share of padded positions, shift of the mean and factor of the variance by them, by look
            (`recording.batch_statistics.padding`).
        run: Steps of the run.
        steps: The looks.
        training: Whether it was in training mode, by look.
        counts: Values behind a statistic, by look.
        mean: Mean of each channel of what it was given, by look.
        variance: Biased variance of the same.
        kept_mean: Running mean when the step began; NaN where there is none.
        kept_variance: Running variance when the step began.
    """

    model: int
    name: str
    cls: str
    momentum: float | None
    keeps: bool
    samples: int
    padding: np.ndarray
    run: int
    steps: np.ndarray
    training: np.ndarray
    counts: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    kept_mean: np.ndarray
    kept_variance: np.ndarray

    @property
    def elements(self) -> int:
        """Values behind one statistic of a batch, at the median look."""
        return int(np.median(self.counts))

    @cached_property
    def normalizes_by_batch(self) -> bool:
        """Whether it uses the statistics of the batch at most of the late looks."""
        return bool(np.mean(self.training[self.late]) > 0.5) or not self.keeps

    @property
    def left_training(self) -> bool:
        """Whether it began in training mode and ended in evaluation mode."""
        return bool(self.training[0]) and not self.normalizes_by_batch

    @cached_property
    def late(self) -> np.ndarray:
        """Indices of the late looks; the last look where none was late."""
        after = np.flatnonzero(self.steps >= SHARE * self.run)
        return after[-LATEST:] if len(after) else np.array([len(self.steps) - 1])

    @cached_property
    def alive(self) -> np.ndarray:
        """Channels that vary at the late looks."""
        level = self.variance[self.late].mean(0)
        positive = level[level > 0]
        found: np.ndarray = level > FADED * (np.median(positive) if len(positive) else math.inf)
        return found

    def _late(self, values: np.ndarray) -> np.ndarray:
        found: np.ndarray = values[self.late][:, self.alive]
        return found

    @cached_property
    def spread(self) -> np.ndarray:
        """Variance within a batch of each living channel at the late looks, unbiased as the running one is."""
        unbiased = self.counts / np.maximum(self.counts - 1, 1)
        found: np.ndarray = self._late(self.variance * unbiased[:, None]).mean(0)
        return found

    @cached_property
    def between(self) -> float:
        """Variance of the batches' means over that within a batch, at the late looks: 1/m for m independent values."""
        if len(self.late) < 2 or not self.alive.any():
            return math.nan
        return float(np.mean(self._late(self.mean).var(0, ddof=1) / self.spread))

    @cached_property
    def memory(self) -> float:
        """Share of the variance of one batch's mean that stays in the running mean: a/(2-a) for momentum a."""
        return 0.0 if self.momentum is None else self.momentum / max(2 - self.momentum, 1e-9)

    @cached_property
    def offset(self) -> float:
        """Distance of the running mean from the batches' mean in standard deviations, beyond what chance and drift give.

        Root mean square over the living channels at the late looks; NaN where it cannot be told.
        """
        if not self.keeps or len(self.late) < 2 or not self.alive.any():
            return math.nan
        distance = self._late(self.mean).mean(0) - self._late(self.kept_mean).mean(0)
        chance = self.between * (1 / len(self.late) + self.memory)
        return math.sqrt(max(float(np.mean(distance**2 / self.spread)) - chance, 0.0))

    @cached_property
    def stretch(self) -> float:
        """Running variance over that of the batches: the factor of the median living channel at the late looks."""
        if not self.keeps or len(self.late) < 2 or not self.alive.any():
            return math.nan
        ratio = self._late(self.kept_variance).mean(0) / self.spread
        return float(np.median(ratio))

    @cached_property
    def effective(self) -> float:
        """How many independent values a statistic has: what the scatter of the batches' variances is worth.

        The logarithm of a variance of m normal values scatters with variance psi'((m - 1)/2), about 1/x + 1/(2 x^2) at x = (m - 1)/2.
        From second differences, as `noise`; NaN with fewer than three looks in a row.
        """
        after = self._in_a_row
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(self.variance[:, self.alive])
            squares = (logs[after + 1] - 2 * logs[after] + logs[after - 1]) ** 2 / 6
        squares = squares[np.isfinite(squares)]
        if not len(squares):
            return math.nan
        scatter = max(float(np.median(squares)) / MEDIAN, 1e-12)
        return 1 + (1 + math.sqrt(1 + 2 * scatter)) / scatter

    @property
    def _in_a_row(self) -> np.ndarray:
        """Looks whose neighbours are the steps next to theirs."""
        inner = np.arange(1, len(self.steps) - 1)
        found: np.ndarray = inner[self.steps[inner + 1] - self.steps[inner - 1] == 2]
        return found

    @cached_property
    def noise(self) -> float:
        """Variance of a batch's mean over that within a batch, from looks at steps that follow one another.

        Second differences, over 6: a steady drift of the weights drops out. NaN with fewer than three such looks.
        """
        i = self._in_a_row
        if not len(i) or not self.alive.any():
            return math.nan
        mean, unbiased = self.mean[:, self.alive], self.counts[i] / np.maximum(self.counts[i] - 1, 1)
        second = mean[i + 1] - 2 * mean[i] + mean[i - 1]
        within = (self.variance[i][:, self.alive] * unbiased[:, None]).mean(0)
        ratio = (second**2).mean(0) / 6 / np.where(within > 0, within, np.nan)
        return float(np.nanmean(ratio)) if np.isfinite(ratio).any() else math.nan


def batch_norms(record: Record) -> list[BatchNorm]:
    """The batch normalizations of every active model that ran, in forward order.

    Args:
        record: The record.

    Returns:
        Those that were looked at.
    """
    found = []
    for model, facts in enumerate(record.models):
        if facts.get("active", True):
            for name in links_of(record, model):
                norm = _of(record, model, name, facts["modules"].get(name, {}))
                if norm is not None:
                    found.append(norm)
    return found


def _of(record: Record, model: int, name: str, facts: dict[str, Any]) -> BatchNorm | None:
    given = _looks(record, model, name, "batch-statistics")
    if not given:
        return None
    kept = _looks(record, model, name, "running-statistics")
    links = {step: links.get(f"{model}:{name}", {}) for step, links in record.details.get("links", [])}
    steps = [step for step in given if step in links]
    shape = given[steps[0]].shape if steps else (0, 7)
    steps = [step for step in steps if given[step].shape == shape]
    if not steps:
        return None
    nothing = np.full(shape, np.nan)
    batch = np.stack([given[step] for step in steps])
    running = np.stack([kept.get(step, nothing) for step in steps])
    momentum = facts.get("attributes", {}).get("momentum", math.nan)
    return BatchNorm(
        model=model,
        name=name,
        cls=facts.get("class", ""),
        momentum=momentum,
        keeps=bool(kept),
        samples=int(np.median([links[step].get("samples") or 0 for step in steps])),
        padding=np.array([_padding(links[step].get("padding")) for step in steps]),
        run=record.step_count,
        steps=np.array(steps),
        training=np.array([bool(links[step].get("training", True)) for step in steps]),
        counts=(batch[:, :, 0] + batch[:, :, 6]).max(1),  # also those that are no number
        mean=batch[:, :, 1],
        variance=batch[:, :, 2] ** 2,
        kept_mean=running[:, :, 1],
        kept_variance=running[:, :, 2] ** 2,
    )


def _padding(found: dict[str, float] | None) -> list[float]:
    return [found["share"], found["shift"], found["spread"]] if found else [0.0, 0.0, 1.0]


def _looks(record: Record, model: int, name: str, kind: Kind) -> dict[int, np.ndarray]:
    site = record.site(model, name, kind)
    return {} if site is None else dict(record.channels.get(site.index, []))

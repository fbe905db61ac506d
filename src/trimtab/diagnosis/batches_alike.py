"""Whether the batches of a run are alike, as batches of shuffled samples are."""

import math

import numpy as np

from trimtab.diagnosis.view import View

ALIKE = 4.0
"""Scatter of the batches' means, times the samples of a batch, over the variance of the samples: 1 for shuffled samples, whatever
their distribution. Shuffled runs stay below 1.3."""

LOOKS = 5
"""Batches that must have been seen to tell."""

SAMPLES = 8
"""Samples of a batch below which the input of the first norm tells nothing: its weights move as much."""


def scatter_of_means(view: View) -> tuple[float, int]:
    """How much the batches' means scatter, by the inputs of the model, or else by what its first norm is given.

    Args:
        view: The record.

    Returns:
        The variance of the means times the samples of a batch over the variance of the samples, 1 for shuffled ones, NaN where it
        cannot be told; and the last step looked at.
    """
    norms = view.batch_norms
    if not norms:
        return math.nan, 0
    first, samples = norms[0], norms[0].samples
    for site in view.sites("input"):
        looks = view.record.channels.get(site.index, [])
        looks = [(step, rows) for step, rows in looks if rows.shape == looks[0][1].shape]
        if site.model == first.model and len(looks) >= LOOKS and samples > 1:
            mean = np.stack([rows[:, 1] for _, rows in looks])
            within = np.stack([rows[:, 2] ** 2 for _, rows in looks]).mean(0) * samples / (samples - 1)
            moves = np.isfinite(within) & (within > 0)
            if moves.any():
                return float(samples * np.mean(mean.var(0, ddof=1)[moves]) / np.mean(within[moves])), looks[-1][0]
    several = samples > SAMPLES and len(first.steps) >= LOOKS
    return (first.noise * samples if several else math.nan), int(first.steps[-1])


def alike(view: View) -> bool:
    """Whether the batches are alike, or nobody knows.

    Args:
        view: The record.

    Returns:
        False where their means scatter far more than those of shuffled samples.
    """
    return not scatter_of_means(view)[0] > ALIKE

"""Batch normalizations: the statistics of the batch beside those they keep for evaluation."""

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.batch_norms import BatchNorm
from trimtab.diagnosis.view import View
from trimtab.report.charts import Chart, Curve, LineChart

MEDIAN, LOW, HIGH = 50, 10, 90
"""Percentiles over the channels."""


def statistics(view: View) -> tuple[list[Chart], list[str]]:
    """How far running mean and variance are from the batch's, layer by layer, at the late looks."""
    norms = [norm for norm in view.batch_norms if norm.keeps and norm.alive.any()]
    if not norms:
        return [], []
    names = tuple(view.name(norm.model, norm.name) for norm in norms)
    shifts, ratios = zip(*(_compared(norm) for norm in norms), strict=True)
    step = max(int(norm.steps[-1]) for norm in norms)
    caption = say(
        "Of each batch normalization at its last looks (up to step {step:,}): the median channel, and the band from the 10th to the 90th percentile.",
        step=step,
    )
    return [
        _chart(
            "running-mean",
            say("Running mean against the batch's"),
            names,
            np.array(shifts),
            0.0,
            say("(running - batch mean) / batch standard deviation"),
            caption,
            log=False,
        ),
        _chart(
            "running-variance",
            say("Running variance against the batch's"),
            names,
            np.array(ratios),
            1.0,
            say("running / batch variance"),
            caption,
            log=True,
        ),
    ], []


def _compared(norm: BatchNorm) -> tuple[list[float], list[float]]:
    """Percentiles over the living channels of the distance of the means and of the ratio of the variances."""
    late, alive = norm.late, norm.alive
    mean, kept_mean = norm.mean[late][:, alive].mean(0), norm.kept_mean[late][:, alive].mean(0)
    shift = (kept_mean - mean) / np.sqrt(norm.spread)
    ratio = norm.kept_variance[late][:, alive].mean(0) / norm.spread
    return _percentiles(shift), _percentiles(ratio)


def _percentiles(values: np.ndarray) -> list[float]:
    seen = values[np.isfinite(values)]
    return np.percentile(seen, [LOW, MEDIAN, HIGH]).tolist() if len(seen) else [np.nan] * 3


def _chart(
    key: str,
    title: str,
    names: tuple[str, ...],
    values: np.ndarray,
    even: float,
    unit: str,
    caption: str,
    log: bool,
) -> LineChart:
    low, middle, high = values.T
    curves = (
        Curve(say("median channel"), middle, "points", low, high),
        Curve(say("equal"), np.full(len(middle), even), "limit"),
    )
    return LineChart(
        key=key,
        section="normalization",
        title=title,
        x=np.arange(1.0, len(names) + 1),
        curves=curves,
        x_label=say("batch normalizations in the order of the forward pass"),
        y_label=unit,
        log=log,
        names=names,
        caption=caption,
    )

"""What theory expects of a run's sites: the prediction that rode along the first pass of each model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.propagation import activation, saturated_share, silent_share
from trimtab.recording import Record, split_call
from trimtab.report.prediction import Prediction, Site

RECURRENT = ("RNN", "LSTM", "GRU")
"""Modules whose steps are sites of their own, `name[3]`."""

STEPS = 8
"""Calls of one module in a pass from which on they are looked at along time."""


def predictions(record: Record) -> dict[int, Prediction]:
    """The prediction of each model along whose first pass one rode.

    Args:
        record: The record.

    Returns:
        Prediction by index of the model.
    """
    found = record.facts.get("predictions") or {}
    return {int(model): Prediction.from_dict(data) for model, data in found.items() if "declined" not in data}


def saturated(site: Site | None, name: str) -> float | None:
    """Share of saturated values that the weights foretell behind a pre-activation, None where nothing is known of it.

    Args:
        site: The pre-activation.
        name: The activation.

    Returns:
        The share.
    """
    if site is None or not site.forward > site.mean**2:
        return None
    return saturated_share(activation(name), site.forward - site.mean**2, mean=site.mean)


def silent(site: Site | None, samples: int) -> float | None:
    """Share of rectifiers that the weights foretell to be off on all samples, None where nothing is known of what they are given.

    Args:
        site: The pre-activation.
        samples: Samples of the batch.

    Returns:
        The share.
    """
    known = site is not None and site.forward > 0 and math.isfinite(site.mean) and abs(site.alike) <= 1
    return (
        silent_share(site.forward, site.mean, site.alike, samples) if site is not None and known and samples else None
    )


@dataclass(frozen=True, slots=True)
class TimeFlow:
    """The gradient along the time steps of one recurrent module, from the first to the last.

    Attributes:
        model: Index of the model.
        name: The module.
        measured: Second moment of the gradient at each step.
        predicted: The same, from the weights; nan where it was not foretold.
        tolerance: Factor by which a finite width may move what the first step gets (3 sigma).
    """

    model: int
    name: str
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    tolerance: float

    @property
    def log_total(self) -> float:
        """log10 of the squared gradient at the first step over that at the last; -inf where nothing arrives."""
        return _log_ratio(self.measured)

    @property
    def log_predicted(self) -> float:
        """The same, predicted."""
        return _log_ratio(self.predicted)

    @property
    def per_step(self) -> float:
        """Geometric mean of what a step back multiplies the squared gradient by, over the steps at which any arrives."""
        return _per_step(self.measured)

    @property
    def predicted_per_step(self) -> float:
        """The same, predicted."""
        return _per_step(self.predicted)


def time_flows(model: int, prediction: Prediction) -> list[TimeFlow]:
    """The gradient along time of every module that ran in many steps, each behind the one before.

    Args:
        model: Index of the model.
        prediction: Its prediction, which has heard each step.

    Returns:
        One flow for each fused recurrent layer, and for each module that was called once a step.
    """
    steps: dict[str, list[Site]] = {}
    for site in prediction:
        if site.kind in RECURRENT and site.name.endswith("]"):
            steps.setdefault(site.name.rpartition("[")[0], []).append(site)
        else:
            steps.setdefault(split_call(site.name)[0], []).append(site)
    found = []
    for name, sites in steps.items():
        measured = tuple(site.backward_measured for site in sites)
        if len(sites) >= STEPS and measured[-1] > 0 and all(math.isfinite(value) for value in measured):
            within = next((s.backward_tolerance for s in sites if math.isfinite(s.backward_tolerance)), math.nan)
            found.append(TimeFlow(model, name, measured, tuple(site.backward for site in sites), within))
    return found


def _log_ratio(values: Sequence[float]) -> float:
    first, last = values[0], next((v for v in reversed(values) if math.isfinite(v)), math.nan)
    if not (math.isfinite(first) and last > 0):
        return math.nan
    return math.log10(first / last) if first > 0 else -math.inf


def _per_step(values: Sequence[float]) -> float:
    seen = [(t, math.log(v)) for t, v in enumerate(values) if v > 0 and math.isfinite(v)]
    if len(seen) < 2:
        return math.nan
    (first, low), (last, high) = seen[0], seen[-1]
    return math.exp((low - high) / (last - first))

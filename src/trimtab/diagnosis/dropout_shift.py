"""How much more a norm's input varies in training than in evaluation because of dropout in front of it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trimtab.diagnosis.batch_norms import BatchNorm
from trimtab.diagnosis.layers import Layer, is_norm, links_of
from trimtab.diagnosis.view import View

MAX_HOPS = 4
"""Modules between dropout and norm that are looked through."""


@dataclass(frozen=True, slots=True)
class Shift:
    """What dropout does to a norm.

    Attributes:
        norm: The norm.
        dropout: Name of the dropout module.
        ratio: Variance of the norm's input in training over that in evaluation, of the median channel.
    """

    norm: BatchNorm
    dropout: str
    ratio: float


def dropout_shifts(view: View, norm: BatchNorm) -> Iterator[Shift]:
    """Variance shift by dropout, from what was measured in training.

    Inverted dropout of rate p keeps the mean m of a value and makes its variance v + p/(1-p) (v + m^2); solved for v. Behind a linear
    map the terms p/(1-p) w^2 (v + m^2) of its inputs add up, which is taken from the mean squares of weight and input.

    Args:
        view: The record.
        norm: A batch normalization.

    Yields:
        One shift for each dropout that nothing but weight layers, activations and poolings part from the norm.
    """
    links = links_of(view.record, norm.model)
    modules = view.record.models[norm.model]["modules"]
    layers = {layer.name: layer for layer in view.layers if layer.model == norm.model}
    queue: list[tuple[str, int, str]] = [(norm.name, 0, "")]
    seen = {norm.name}
    while queue:
        current, hops, layer = queue.pop(0)
        for source in links.get(current, {}).get("sources", []):
            facts = modules.get(view.module(norm.model, source), {})
            if source in seen or hops >= MAX_HOPS or is_norm(facts.get("class", "")):
                continue
            seen.add(source)
            rate = facts.get("attributes", {}).get("p", 0.0) if "Dropout" in facts.get("class", "") else 0.0
            if rate and 0 < rate < 1:
                ratio = _directly(norm, rate) if not layer else _through(view, norm, layers[layer], source, rate)
                yield Shift(norm, source, ratio)
                continue
            queue.append((source, hops + 1, source if source in layers and not layer else layer))


def _directly(norm: BatchNorm, rate: float) -> float:
    """The shift where the dropped values go into the norm themselves."""
    unbiased = (norm.counts / np.maximum(norm.counts - 1, 1))[norm.late][:, None]
    variance = (norm.variance[norm.late][:, norm.alive] * unbiased).mean(0)
    mean = norm.mean[norm.late][:, norm.alive].mean(0)
    quiet = (1 - rate) * variance - rate * mean**2
    ratio = variance / np.maximum(quiet, 1e-3 * variance)
    return float(np.median(ratio)) if len(ratio) else 1.0


def _through(view: View, norm: BatchNorm, layer: Layer, dropout: str, rate: float) -> float:
    """The shift where a weight layer lies between."""
    dropped = view.series(norm.model, dropout, "output")
    if dropped is None or not len(layer.values) or not norm.alive.any() or not len(norm.late):
        return 1.0
    # p/(1-p) E x^2 before dropout is p E x^2 behind it
    noise = layer.fan_in * float(layer.values.second_moment[-1]) * rate * float(dropped.second_moment[-1])
    whole = float(norm.variance[norm.late][:, norm.alive].mean())
    return whole / max(whole - noise, 1e-3 * whole) if whole > 0 else 1.0

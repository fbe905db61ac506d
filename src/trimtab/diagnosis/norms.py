"""What the record tells of normalization layers: their kind, how many values a statistic is of, gain, bias and eps."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trimtab.diagnosis.layers import is_norm
from trimtab.diagnosis.view import View

BASES = {
    "LayerNorm": "layer",
    "RMSNorm": "rms",
    "GroupNorm": "group",
    "_InstanceNorm": "instance",
    "_BatchNorm": "batch",
}
"""Kind of a norm by the class of torch that it is made from."""

NAMES = (
    ("RMSNorm", "rms"),
    ("LayerNorm", "layer"),
    ("GroupNorm", "group"),
    ("InstanceNorm", "instance"),
    ("BatchNorm", "batch"),
)
"""The same for norms written by hand, by what their class is called."""

EPS = ("eps", "epsilon", "variance_epsilon", "norm_eps")
"""What a norm calls its epsilon."""


def kind_of(facts: Mapping[str, Any]) -> str:
    """The kind of a norm.

    Args:
        facts: Facts of a module.

    Returns:
        "batch", "layer", "group", "instance" or "rms"; "" where it is none of these.
    """
    bases = facts.get("bases", ())
    if "_InstanceNorm" in bases:  # InstanceNorm shares torch's class for norms with running statistics
        return "instance"
    found = next((BASES[base] for base in bases if base in BASES), "")
    if found or facts.get("library"):
        return found
    cls = facts.get("class", "")
    return next((kind for name, kind in NAMES if name in cls), "") if is_norm(cls) else ""


def values_per_statistic(facts: Mapping[str, Any], shape: Sequence[int] | None) -> int | None:
    """How many values one statistic of a norm is taken over.

    Args:
        facts: Facts of a module.
        shape: Shape of its input, None where that was not seen.

    Returns:
        The number; None for what is no norm, or where its settings do not tell.
    """
    kind, attributes = kind_of(facts), facts.get("attributes", {})
    if kind in ("layer", "rms"):
        normalized = attributes.get("normalized_shape")
        if isinstance(normalized, int):
            return normalized
        if isinstance(normalized, (list, tuple)) and all(isinstance(n, int) for n in normalized):
            return math.prod(normalized)
        return None
    if shape is None or len(shape) < 2:
        return None
    positions = math.prod(shape[2:])
    if kind == "batch":
        return shape[0] * positions
    groups = attributes.get("num_groups")
    if kind == "group" and isinstance(groups, int) and groups > 0:
        return shape[1] // groups * positions
    if kind == "instance" and facts.get("bases") and not _keeps_statistics(facts):
        return _positions_of_instance(facts, shape)
    return None


def _keeps_statistics(facts: Mapping[str, Any]) -> bool:
    """Whether it normalizes by running statistics, as in evaluation."""
    return bool(facts["attributes"].get("track_running_stats")) and not facts.get("training", True)


def _positions_of_instance(facts: Mapping[str, Any], shape: Sequence[int]) -> int:
    """Positions of a channel, whether or not there is an axis of samples."""
    axes = next((int(base[-2]) for base in facts["bases"] if base.startswith("InstanceNorm") and base[-1] == "d"), 0)
    return math.prod(shape[-axes:]) if axes else math.prod(shape[2:])


def shape_of(link: Mapping[str, Any]) -> list[int] | None:
    """Shape of what a norm was given: that of its input, or of its output where it was called by keywords.

    Args:
        link: The link of a call.

    Returns:
        The shape, None where neither was seen.
    """
    found: list[int] | None = link.get("input") or link.get("output")
    return found


def eps_of(facts: Mapping[str, Any]) -> float | None:
    """The epsilon of a module, None where it has none.

    Args:
        facts: Facts of a module.

    Returns:
        Its value.
    """
    attributes = facts.get("attributes", {})
    return next((float(attributes[name]) for name in EPS if isinstance(attributes.get(name), (int, float))), None)


def gain_squared(view: View, model: int, call: str) -> np.ndarray | None:
    """Mean square of a norm's gain at each recorded step, None where it has none.

    Args:
        view: The record.
        model: Index of the model.
        call: The norm, or a call of it.

    Returns:
        One number a step at which the gain was seen.
    """
    module = view.module(model, call)
    series = view.series(model, f"{module}.weight" if module else "weight", "parameter")
    return None if series is None else series.second_moment


def is_only_way(links: Mapping[str, Mapping[str, Any]], ends: Sequence[str], name: str) -> bool:
    """Whether everything that reaches the loss goes through one call.

    A sum whose other term no module has made may have the raw input in it, so that it counts as a way around.

    Args:
        links: Links of a model, as `layers.links_of` gives them.
        ends: The calls that the loss is made of.
        name: The call.

    Returns:
        False where another way leads from the input to the loss, or the loss's origin was not seen.
    """
    queue, seen = [end for end in ends if end != name and end in links], set(ends)
    if not queue:
        return name in ends
    reached = name in ends
    while queue:
        link = links[queue.pop()]
        sources = link["sources"]
        if not sources or ("Add" in link["operations"] and len(sources) < 2):
            return False
        for source in sources:
            reached = reached or source == name
            if source != name and source in links and source not in seen:
                seen.add(source)
                queue.append(source)
    return reached


def ends_of(view: View, model: int) -> list[str]:
    """The calls of one model that the loss is made of.

    Args:
        view: The record.
        model: Index of the model.

    Returns:
        Their names.
    """
    return [name for owner, name in map(view.split, view.loss.get("sources", [])) if owner == model]

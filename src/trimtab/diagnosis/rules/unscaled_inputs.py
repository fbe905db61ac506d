"""`unscaled-inputs`: features of very different or very large size, and nothing that takes the scale off."""

import math
from collections.abc import Iterator

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.layers import is_norm
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair

SPREAD = 30.0
"""Largest over median root mean square of the features: the curvature along the largest is its square, about 1000 times that of
the others, and the stable step is set by the largest alone (H = X'X/N: eta < 2/lambda_max)."""

SIZE = 30.0
"""Root mean square of all features: the curvature of the first layer is about 1000 times that of standardized inputs."""

OFFSET = 30.0
"""Mean over standard deviation: the squares of the mean rule the curvature in the same way."""


def find(view: View) -> Iterator[Found]:
    """Inputs that a standardization would change by orders of magnitude, in a run that does not learn."""
    if view.learned:
        return
    for model in view.active:
        for site in view.sites("input"):
            rows = view.record.channels.get(site.index)
            if site.model != model or not rows or _is_normalized_at_once(view, model):
                continue
            found = _judge(view, site.name, rows[0][1], rows[0][0])
            if found is not None:
                yield found
                return


def _is_normalized_at_once(view: View, model: int) -> bool:
    """Whether a norm stands before the first weight layer or right behind it."""
    modules = view.record.models[model]["modules"]
    order = [name for name in view.forward_order(model) if modules.get(name, {}).get("leaf", True)]
    weights = 0
    for name in order:
        facts = modules.get(name, {})
        if is_norm(facts.get("class", "")):
            return True
        weights += bool(facts.get("parameters"))
        if weights > 1:
            return False
    return False


def _judge(view: View, name: str, rows: np.ndarray, step: int) -> Found | None:
    usable = np.isfinite(rows[:, 1]) & np.isfinite(rows[:, 2])
    mean, std = np.abs(rows[usable, 1]), rows[usable, 2]
    rms = np.hypot(mean, std)
    used = rms[rms > 0]
    if not len(used):
        return None
    spread = float(used.max() / np.median(used))
    size = float(np.sqrt(np.mean(used**2)))
    offset = float(np.median(mean)) / max(float(np.median(std)), 1e-30)
    far = offset > OFFSET and size > 1
    if spread < SPREAD and size < SIZE and not far:
        return None
    largest = int(np.flatnonzero(usable)[np.argmax(rms)])
    if spread >= SPREAD:
        what = say(
            "feature {index} of {name} is {ratio:.0f} times as large as the median feature",
            index=largest,
            name=name,
            ratio=spread,
        )
    elif size >= SIZE:
        what = say("the features of {name} are of size {size:.3g}", name=name, size=size)
    else:
        what = say(
            "the features of {name} lie {offset:.3g} times their spread away from zero", name=name, offset=offset
        )
    evidence = [
        Evidence(say("largest over median root mean square of the features"), spread, 1.0, SPREAD, "x", step),
        Evidence(say("root mean square of the features"), size, 1.0, SIZE, "", step),
        Evidence(say("largest feature (index {index})", index=largest), float(rms.max()), 1.0, None, "", step),
    ]
    if far:
        evidence.insert(0, Evidence(say("mean over spread of the median feature"), offset, 0.0, OFFSET, "x", step))
    return Found(
        Finding(
            code="unscaled-inputs",
            severity="error",
            where=("data",),
            summary=say(
                "The inputs are not standardized: {what}. The loss is steepest along it, and no step suits it and the rest at once.",
                what=what,
            ),
            evidence=tuple(e for e in evidence if isinstance(e.measured, float) and math.isfinite(e.measured)),
            repairs=(
                Repair(
                    say("Standardize every feature with the training set's mean and spread"),
                    "mean, std = x_train.mean(0), x_train.std(0)\nx_train, x_test = (x_train - mean) / std, (x_test - mean) / std",
                ),
                Repair(say("Let the model do it: a BatchNorm1d(features, affine=False) as its first layer")),
            ),
            location=view.place("forward"),
        )
    )

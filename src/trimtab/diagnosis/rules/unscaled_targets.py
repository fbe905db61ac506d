"""`unscaled-targets`: regression targets far from the size of a fresh network's output."""

from collections.abc import Iterator
from typing import Any

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair

FAR = 30.0
"""Targets over outputs: a fresh network answers with numbers of order 1; 30 times that is a loss 1000 times as steep as meant."""


def find(view: View) -> Iterator[Found]:
    """Floating targets whose size is far above 1 and above the first predictions, in a run that does not learn."""
    if view.learned:
        return
    target, prediction = _target(view), view.loss.get("prediction", {})
    if target is None:
        return
    size = _rms(target)
    output = max(_rms(prediction), 1.0) if "std" in prediction else 1.0
    if size < FAR * output:
        return
    yield Found(
        Finding(
            code="unscaled-targets",
            severity="error",
            where=("data",),
            summary=say(
                "The targets are of size {size:.3g} (mean {mean:.3g}, spread {std:.3g}); a fresh network answers with numbers of size {output:.2g}. "
                "The optimizer spends the run on reaching their scale.",
                size=size,
                mean=target.get("mean", 0.0),
                std=target.get("std", 0.0),
                output=output,
            ),
            evidence=(
                Evidence(say("root mean square of the targets"), size, output, FAR, "", 0),
                Evidence(say("share of the first loss that is gone at the end"), view.progress.gained, 1.0),
            ),
            repairs=(
                Repair(
                    say("Train on standardized targets and undo the scaling when predicting"),
                    "mean, std = y_train.mean(), y_train.std()\nloss = F.mse_loss(model(x), (y - mean) / std)\nprediction = model(x) * std + mean",
                ),
            ),
            location=view.place("backward", "forward"),
        )
    )


def _target(view: View) -> dict[str, Any] | None:
    """Facts of the target, from the loss's own graph or from the batch; None for class indices."""
    target: dict[str, Any] | None = view.loss.get("target")
    if target is not None:
        return target if "std" in target else None
    for site in view.sites("target"):
        series = view.record.series(site)
        if len(series):
            return {"mean": float(series.mean[0]), "std": float(series.std[0])}
    return None


def _rms(facts: dict[str, Any]) -> float:
    return float((facts.get("mean", 0.0) ** 2 + facts.get("std", 0.0) ** 2) ** 0.5)

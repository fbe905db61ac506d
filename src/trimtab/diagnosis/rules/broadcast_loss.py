"""`broadcast-loss`: prediction and target have shapes that are stretched against each other, so that every answer meets every target."""

import math
from collections.abc import Iterator
from typing import Any

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair


def find(view: View) -> Iterator[Found]:
    """The first operation of the loss that lays a table of all pairs out of two lists of the same samples, where nobody made room for it."""
    pairs = next((found for found in view.loss.get("broadcasts") or () if _is_fault(found)), None)
    if pairs is None:
        return
    prediction, target, result = pairs["prediction"], pairs["target"], pairs["result"]
    source = next((view.split(key) for key in pairs["sources"]), None)
    module = "" if source is None else view.name(*source)
    stray = bool(module) and prediction[-1:] == [1]
    yield Found(
        Finding(
            code="broadcast-loss",
            severity="error",
            where=("loss", module) if stray else ("loss",),
            summary=say(
                "The loss lays what the model gives, of shape {prediction}, against {target}, and stretches both to {result}: every answer is "
                "compared with every target, and the best answer to all of them is one and the same, their mean.",
                prediction=_shape(prediction),
                target=say("another shape") if target is None else say("shape {shape}", shape=_shape(target)),
                result=_shape(result),
            ),
            evidence=(
                Evidence(say("terms of the loss"), float(math.prod(result)), float(math.prod(prediction)), None, "", 0),
            ),
            repairs=(
                Repair(
                    say("Give both the same shape"),
                    "loss = F.mse_loss(model(x).squeeze(-1), y)     # both (N,)"
                    if stray
                    else "loss = F.mse_loss(prediction, y.reshape(prediction.shape))",
                ),
                Repair(
                    say("Hold the loss to it, so that it cannot come back"),
                    "assert prediction.shape == y.shape, (prediction.shape, y.shape)",
                ),
            ),
            location=view.place("backward", "forward"),
        )
    )


def _is_fault(pairs: dict[str, Any]) -> bool:
    """Whether a loss of PyTorch's does it, which is for entries side by side, or a difference of two lists as long as each other."""
    if pairs["named"]:
        return True
    prediction, result = pairs["prediction"], pairs["result"]
    before = [1] * (len(result) - len(prediction)) + prediction
    repeated = {size for size, own in zip(result, before, strict=True) if own == 1 < size}
    return not pairs["laid_out"] and bool(repeated & set(prediction))


def _shape(shape: list[int]) -> str:
    return str(tuple(shape))

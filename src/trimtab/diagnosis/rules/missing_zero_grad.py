"""`missing-zero-grad`: nobody clears the gradients between steps, so each step uses the sum of all so far."""

from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair

SHARE = 0.9
"""Gradient accumulation clears after every step; a loop that never clears is seen at every step after the first. One forgotten
branch that clears now and then stays below this."""

ENOUGH = 3
"""Steps at which it must have been seen."""


def find(view: View) -> Iterator[Found]:
    """Steps whose backward passes found the last step's gradients still in place: identity and version tell exactly."""
    after_first = [info for info in view.record.info[1:] if info["optimizers"]]
    seen = [info for info in after_first if info["uncleared"]]
    if len(seen) < ENOUGH or len(seen) < SHARE * len(after_first):
        return
    yield Found(
        Finding(
            code="missing-zero-grad",
            severity="warning" if view.learned else "error",
            where=("loop",),
            summary=say(
                "The gradients are never cleared: in {seen} of {all} recorded steps the backward pass added to the gradients the last step had "
                "used, so each step goes along the sum of all gradients so far.",
                seen=len(seen),
                all=len(after_first),
            ),
            evidence=(
                Evidence(say("steps whose gradients were not cleared"), len(seen) / len(after_first), 0.0, None, ""),
            ),
            repairs=(
                Repair(
                    say("Clear the gradients in every step"),
                    "optimizer.zero_grad()\nloss = loss_fn(model(x), y)\nloss.backward()\noptimizer.step()",
                ),
            ),
            location=view.place("step", "backward"),
        )
    )

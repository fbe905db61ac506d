"""`nonfinite-data`: NaN or infinity in what the model is fed with."""

from collections.abc import Iterator

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis import ranks
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair


def find(view: View) -> Iterator[Found]:
    """Any input or target with a value that is no number, if it gets through; the count is exact, so there is no threshold."""
    for site in view.sites("input", "target"):
        series = view.record.series(site)
        bad = np.flatnonzero(series.nonfinite > 0)
        harmful = [i for i in bad if _gets_through(view, int(series.steps[i]))]
        if not harmful:
            continue  # an attention mask of -inf, missing values that the model or the loss leaves out
        first = harmful[0]
        step = int(series.steps[first])
        if _was_broken_before(view, step):
            continue  # a model fed with another model's output, or a run that was lost already
        yield Found(
            Finding(
                code="nonfinite-data",
                severity="error",
                where=("data",),
                summary=say(
                    "The batch of step {step} holds {count} NaN or infinite values ({name}): every weight they reach is lost with the next update.",
                    step=step,
                    count=int(series.nonfinite[first]),
                    name=site.name,
                ),
                evidence=(
                    *ranks.bad_values(view, step, site),
                    Evidence(
                        say("NaN or infinite values in {name}", name=site.name),
                        float(series.nonfinite[first]),
                        0.0,
                        step=step,
                    ),
                    Evidence(
                        say("recorded batches with such values, which reached the loss or its gradient"),
                        float(len(bad)),
                        0.0,
                    ),
                ),
                repairs=(
                    Repair(
                        say("Fill or drop the missing values before training, and check what the loader gives"),
                        "assert torch.isfinite(x).all()   # in the data set, where it can still tell which sample\n"
                        "x = torch.nan_to_num(x)          # or the column's mean",
                    ),
                ),
                location=view.place("forward"),
            ),
            step,
        )
        return


def _gets_through(view: View, step: int) -> bool:
    """Whether the loss or a gradient of `step` is no number either."""
    record = view.record
    losses = record.losses[record.loss_seen & (record.loss_steps == step)]
    columns = [site.index for site in view.sites("gradient", "raw-gradient", "parameter-gradient")]
    return bool(not np.isfinite(losses).all() or (record.readings[record.steps == step][:, columns, 6] > 0).any())


def _was_broken_before(view: View, step: int) -> bool:
    """Whether a loss, a weight or an update was no number before `step`."""
    record = view.record
    lost = record.losses[record.loss_seen & (record.loss_steps < step)]
    if not np.isfinite(lost).all():
        return True
    earlier = record.steps < step
    columns = [site.index for site in view.sites("parameter", "update", "parameter-gradient")]
    now = [site.index for site in view.sites("parameter")]
    return bool(
        (record.readings[earlier][:, columns, 6] > 0).any()
        or (record.readings[record.steps == step][:, now, 6] > 0).any()
    )

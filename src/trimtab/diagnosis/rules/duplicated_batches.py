"""`duplicated-batches`: every rank of a data-parallel run trains on the same batch, so that all but one work for nothing."""

import math
from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis import ranks
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair

STEPS = 3
"""Recorded steps with one loss on all ranks, each step another: two batches do not agree to the last bit by chance so often."""


def find(view: View) -> Iterator[Found]:
    """The loss of every rank equals the first's to the last bit, at every recorded step."""
    told = [(step, facts["loss"]) for step, facts in ranks.told(view.record) if facts["copies"] > 1]
    if any(facts["halves"] for _, facts in ranks.told(view.record)):
        return  # ranks that compute parts of one output are to see one batch
    for _, losses in told:
        if None in losses or not math.isfinite(losses[0]) or any(loss != losses[0] for loss in losses):
            return
    if len({losses[0] for _, losses in told}) < STEPS:
        return
    count = len(told[0][1])
    yield Found(
        Finding(
            code="duplicated-batches",
            severity="warning",
            where=("data",),
            summary=say(
                "All {count} ranks have the same loss to the last bit at each of {steps} recorded steps: they train on the same batches, "
                "and the run does the work of one rank at the price of {count}.",
                count=count,
                steps=len(told),
            ),
            evidence=(
                Evidence(say("recorded steps at which all ranks have one loss"), float(len(told)), 0.0),
                Evidence(say("different batches a step"), 1.0, float(count)),
            ),
            repairs=(
                Repair(
                    say("Give each rank its share of the data"),
                    "sampler = torch.utils.data.DistributedSampler(dataset)\n"
                    "loader = torch.utils.data.DataLoader(dataset, batch_size=B, sampler=sampler)\n"
                    "sampler.set_epoch(epoch)   # at the start of each epoch",
                ),
                Repair(
                    say("Where batches are drawn at random, seed each rank differently: torch.manual_seed(seed + rank)")
                ),
            ),
            location=view.place("forward"),
        )
    )

"""`unequal-batches`: ranks of a data-parallel run average their gradients alike though their batches differ in size."""

from collections.abc import Iterator

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis import ranks
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair

RATIO = 1.25
"""Largest batch over the smallest: a sample of the small one weighs so much more."""

MOST = 0.5
"""Share of the recorded steps at which that is so: the last batch of an epoch may well be short on some ranks."""


def find(view: View) -> Iterator[Found]:
    """The first axis of what the model is fed with, rank by rank."""
    sizes = [(step, facts["batch"]) for step, facts in ranks.told(view.record) if facts["copies"] > 1]
    sizes = [(step, batch) for step, batch in sizes if min(batch) > 0]
    uneven = [(step, batch) for step, batch in sizes if max(batch) / min(batch) > RATIO]
    if not sizes or len(uneven) <= MOST * len(sizes):
        return
    step, batch = uneven[0]
    ratio = float(np.median([max(batch) / min(batch) for _, batch in uneven]))
    yield Found(
        Finding(
            code="unequal-batches",
            severity="warning",
            where=("data",),
            summary=say(
                "At {many} of {whole} recorded steps the ranks' batches differ in size (step {step}: {least} to {most} samples); each rank's "
                "mean gradient weighs the same, so that a sample of the smallest batch weighs {ratio:.3g} times one of the largest.",
                many=len(uneven),
                whole=len(sizes),
                step=step,
                least=min(batch),
                most=max(batch),
                ratio=ratio,
            ),
            evidence=(
                Evidence(say("largest batch over the smallest"), ratio, 1.0, RATIO, "x", step),
                Evidence(say("share of the recorded steps"), len(uneven) / len(sizes), 0.0, MOST),
            ),
            repairs=(
                Repair(
                    say("Give each rank batches of one size"),
                    "torch.utils.data.DistributedSampler(dataset, drop_last=True)   # and drop_last=True in the DataLoader",
                ),
                Repair(
                    say("Or weigh each rank's loss by its share of all samples, or tokens"),
                    "loss = losses.sum() * world_size / samples_of_all_ranks",
                ),
            ),
            location=view.place("forward"),
        )
    )

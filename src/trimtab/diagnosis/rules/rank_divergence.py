"""`rank-divergence`: ranks that are to train one model hold different weights, or running statistics of different data."""

from collections.abc import Iterator

import numpy as np

from trimtab._messages import say
from trimtab.diagnosis import ranks
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.recording import Site
from trimtab.report import Evidence, Finding, Repair

BROKEN = 1e-3
"""Relative difference of a parameter from which on the ranks train different models; below, rounding may have pulled them apart."""

SHIFT = 0.5
"""Standard deviations between two ranks' running means: batches of one data set, shared out at random, stay far below."""

RATIO = 2.0
"""Ratio of two ranks' running variances, likewise."""


def find(view: View) -> Iterator[Found]:
    """Weights are compared to the last bit at each recorded step, running statistics at the last step that was looked at in detail."""
    told = ranks.told(view.record)
    for step, facts in told:
        parameters = ranks.apart(view, facts, "parameter")
        if parameters and ranks.are_averaged(view, step, facts):
            yield _weights(view, step, parameters)
            return
    with_statistics = [(step, facts) for step, facts in told if facts["running"] and facts["copies"] > 1]
    if with_statistics:
        yield from _statistics(view, *with_statistics[-1])


def _weights(view: View, step: int, parameters: list[tuple[Site, list[int], int, float]]) -> Found:
    parameters = sorted(parameters, key=lambda entry: -entry[3])
    site, which, count, off = parameters[0]
    whole = len(list(view.sites("parameter")))
    return Found(
        Finding(
            code="rank-divergence",
            severity="error" if off >= BROKEN else "warning",
            where=tuple(view.name(entry[0].model, entry[0].name) for entry in parameters[:3]),
            summary=say(
                "At step {step} the ranks hold different weights in {many} of {whole} parameters, {name} differing by {off:.2g} of its size: "
                "averaged gradients move each away from its own start, and no two evaluate the same model.",
                step=step,
                many=len(parameters),
                whole=whole,
                name=view.name(site.model, site.name),
                off=off,
            ),
            evidence=(
                Evidence(
                    say("largest difference of mean or standard deviation between ranks, over the root mean square"),
                    off,
                    0.0,
                    step=step,
                    site=view.name(site.model, site.name),
                ),
                Evidence(say("parameters that differ"), float(len(parameters)), 0.0, step=step),
                Evidence(
                    say("ranks that differ from the first"),
                    ranks.named(which, count, ranks.size(view.record)),
                    say("none"),
                    step=step,
                ),
            ),
            repairs=(
                Repair(
                    say(
                        "Send the first rank's weights to all before training; DistributedDataParallel does so when it wraps the model"
                    ),
                    "for tensor in [*model.parameters(), *model.buffers()]:\n    torch.distributed.broadcast(tensor.data, src=0)",
                ),
                Repair(
                    say(
                        "Load checkpoints, reset and initialize on every rank alike, and let every rank step: nothing that changes weights may stand under `if rank == 0`"
                    )
                ),
            ),
            location=view.place("step"),
        ),
        step,
    )


def _statistics(view: View, step: int, facts: dict[str, object]) -> Iterator[Found]:
    far = [entry for entry in facts["running"] if entry[2] > SHIFT or entry[3] > RATIO]  # type: ignore[attr-defined]
    if not far:
        return
    layer, rank, shift, ratio = max(far, key=lambda entry: max(entry[2] / SHIFT, np.log(entry[3]) / np.log(RATIO)))
    names = tuple(view.name(*view.split(entry[0])) for entry in far[:3])
    yield Found(
        Finding(
            code="rank-divergence",
            severity="warning",
            where=names,
            summary=say(
                "The running statistics of {name} on rank {rank} lie {shift:.2g} standard deviations and a factor of {ratio:.3g} in variance "
                "from the first rank's: the ranks see different data, and the checkpoint of one keeps the statistics of its share alone.",
                name=view.name(*view.split(layer)),
                rank=rank,
                shift=shift,
                ratio=ratio,
            ),
            evidence=(
                Evidence(say("distance of the running means, in standard deviations"), shift, 0.0, SHIFT, step=step),
                Evidence(say("ratio of the running variances"), ratio, 1.0, RATIO, "x", step),
            ),
            repairs=(
                Repair(
                    say(
                        "Share the samples out at random: a DistributedSampler that shuffles, with set_epoch at each epoch"
                    ),
                    "sampler = torch.utils.data.DistributedSampler(dataset, shuffle=True)",
                ),
                Repair(
                    say("Take the statistics over all ranks"),
                    "model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)   # before wrapping it",
                ),
            ),
        ),
        step,
    )

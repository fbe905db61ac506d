"""Exact running statistics of BatchNorm: pooled over all batches with their counts, layer by layer."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trimtab._messages import say
from trimtab.errors import NormalizationError
from trimtab.norms._arguments import (
    refuse,
    require_flag,
    require_function,
    require_module,
    require_names,
    require_values,
    require_word,
)
from trimtab.norms._kinds import kind_of
from trimtab.norms._passes import Batches, Forward, copy_of, feed, fresh_passes, undisturbed
from trimtab.norms._pooled import Pool
from trimtab.norms._sweeps import in_one_pass, kept_on_failure, layer_by_layer

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

WORTH_A_WARNING = 0.1  # by how much mean batch variance and pooled variance may differ


class UnequalBatchesWarning(UserWarning):
    """The mean of the batch variances and the pooled variance of a layer differ: the batches are not alike."""


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """The statistics of one layer; vectors are float64 of shape (C,), on the layer's device.

    Attributes:
        name: The layer.
        count: Values per channel, over all batches and ranks.
        batches: Forward calls of the layer, over all ranks.
        mean: Pooled mean, now the running mean.
        variance: Pooled unbiased variance, now the running variance.
        mean_of_variances: Mean over batches of their unbiased variances, each batch counting as one: what `update_bn`
            writes, and what the weights were trained with. Batches of one value per channel have none.
        old_mean: The running mean before.
        old_variance: The running variance before.
        exact: Whether the statistics are those of what the layer sees in evaluation mode. False for a layer called more
            than once in a forward pass, and with `upstream="batch"` for all but the first.
    """

    name: str
    count: int
    batches: int
    mean: Tensor
    variance: Tensor
    mean_of_variances: Tensor
    old_mean: Tensor
    old_variance: Tensor
    exact: bool

    @property
    def gap(self) -> float:
        """Share of the pooled variance that lies between the batches: 1 - mean of variances / pooled, channels' mean."""
        moves = self.variance > 0
        return float((1.0 - self.mean_of_variances / self.variance)[moves].mean()) if bool(moves.any()) else 0.0

    @property
    def shift(self) -> Tensor:
        """|new mean - old mean| in new standard deviations, per channel."""
        return (self.mean - self.old_mean).abs() / self.variance.sqrt().clamp(min=torch.finfo(torch.float64).tiny)


@dataclass(frozen=True, slots=True)
class Recalibrated:
    """A model with new running statistics.

    Attributes:
        model: The model that was given, or its copy with `inplace=False`.
        layers: One for each layer that was recalibrated, in the order in which they are called.
        skipped: Name and reason for each BatchNorm that was not.
    """

    model: nn.Module
    layers: tuple[LayerStatistics, ...]
    skipped: tuple[tuple[str, str], ...]

    def __getitem__(self, name: str) -> LayerStatistics:
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(name)


def recalibrate(
    model: nn.Module,
    batches: Batches,
    *,
    upstream: str = "running",
    layers: Sequence[str] | None = None,
    group: "ProcessGroup | None" = None,
    inplace: bool = True,
    forward: Forward = feed,
) -> Recalibrated:
    """Compute the running statistics of every BatchNorm anew, from data.

    Mean and variance are pooled over all values of all batches by Chan, Golub and LeVeque (1979), in float64, so that a
    batch of 2 counts as 2 and the spread of the batch means counts as variance: what comes out does not depend on how
    the data is cut into batches. The running variance is the unbiased one, as PyTorch's.

    What a layer sees depends on how the layers before it normalize. With `upstream="running"` they do so by their
    new running statistics, as they will in evaluation: layer after layer, each with a pass over the batches that stops
    at the layer, n passes for n layers. On the same data every layer's output then has exactly mean `bias` and variance
    `weight²` (up to eps). With `upstream="batch"` they normalize by the statistics of the batch, as in training, and as
    `update_bn` does: one pass, but what later layers get depends on how the data is cut.

    The rest of the model is in evaluation mode meanwhile, so that dropout, which is off in evaluation, does not
    enter the statistics. Afterwards every module is in its old mode, the random state is the old one, and
    `num_batches_tracked` is the number of batches (of batch renormalization, whose limits it opens, the old one); momentum, weight and bias are untouched. Should anything fail, all
    statistics are the old ones. Hooks run, since they may be part of the function; what they have noted in Python objects
    meanwhile is taken back, what they have printed or written to files is not.

    Args:
        model: The model; of a `DistributedDataParallel` give its `module`.
        batches: A DataLoader, a list or a function that returns a fresh iterable. A one-shot iterator will do for
            `upstream="batch"` alone.
        upstream: "running" or "batch".
        layers: Names of the layers; None for all that have running statistics.
        group: Process group whose ranks pool their values, `torch.distributed.group.WORLD` for all; every rank must
            call this, numbers of batches may differ, and gets the same statistics. None for this process alone.
        inplace: Whether to write to the model that is given; otherwise to a copy.
        forward: `forward(model, batch)` calls the model; by default with the batch, its first element if it is a tuple
            or list, or its items as keyword arguments.

    Returns:
        The model and the statistics of each layer. An `UnequalBatchesWarning` names layers for which the mean of
        the batch variances differs from the pooled variance by more than 10 %.

    Raises:
        NormalizationError: If an option is unknown, the model has no running statistics, the batches are too few or one-shot,
            or a layer's input is not finite; the message names the first such layer.
    """
    require_word("upstream", upstream, ("running", "batch"))
    require_module("model", model)
    require_values(model)
    require_flag(inplace=inplace)
    require_function("forward", forward, "forward(model, batch)")
    model = model if inplace else copy_of(model)
    if group is not None and not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        refuse("group", group, "a torch.distributed.ProcessGroup, or None for this process alone, is needed")
    chosen = _chosen(model, layers)
    one_pass = fresh_passes(batches, several=upstream == "running")
    pools = {name: Pool(name, model.get_submodule(name), group) for name in chosen}
    with undisturbed(model), kept_on_failure(pools.values()):
        if upstream == "running":
            order = layer_by_layer(model, pools, one_pass, forward)
        else:
            order = in_one_pass(model, pools, one_pass, forward)
    told = tuple(_statistics(pools[name], exact) for name, exact in order)
    skipped = tuple(
        (name, "it was not called, or not with one tensor alone, as a masked layer is not")
        for name in pools
        if not pools[name].calls
    )
    if (message := _unequal([layer for layer in told if layer.exact or upstream == "batch"])) is not None:
        warnings.warn(message, UnequalBatchesWarning, stacklevel=2)
    return Recalibrated(model, told, skipped)


def _unequal(layers: list[LayerStatistics]) -> str | None:
    """Returns what to say of layers whose batches are not alike; none is there that mixes the places of a shared layer."""
    uneven = [layer for layer in layers if abs(layer.gap) > WORTH_A_WARNING]
    if not uneven:
        return None
    worst = max(uneven, key=lambda layer: abs(layer.gap))
    return say(
        "In {count} of {all} layers the mean of the batch variances differs from the pooled variance by more than "
        "10 %, most in {name}, by {gap:.0%}: the batches are not alike. Evaluation now uses the pooled variance; the "
        "weights were trained with the batches' own.",
        count=len(uneven),
        all=len(layers),
        name=worst.name or "the model itself",
        gap=worst.gap,
    )


def _chosen(model: nn.Module, layers: Sequence[str] | None) -> list[str]:
    there = {
        name: module
        for name, module in model.named_modules()
        if kind_of(module) in ("batch_norm", "sync_batch_norm") and isinstance(module.running_mean, Tensor)
    }
    if layers is None:
        if not there:
            raise NormalizationError(
                "the model has no BatchNorm with running statistics; there is nothing to recalibrate"
            )
        return list(there)
    layers = require_names("layers", layers, "modules")
    if unknown := [name for name in layers if name not in there]:
        raise NormalizationError(
            f"layers holds {unknown[0]!r}, which is no BatchNorm with running statistics; there are: {', '.join(there)}"
        )
    return [name for name in there if name in set(layers)]


def _statistics(pool: Pool, exact: bool) -> LayerStatistics:
    assert pool.moments is not None
    return LayerStatistics(
        pool.name,
        pool.moments.count,
        pool.calls,
        pool.moments.mean,
        pool.moments.variance,
        pool.mean_of_variances,
        pool.old_mean,
        pool.old_variance,
        exact,
    )

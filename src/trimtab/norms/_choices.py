"""The rules of `recommend`, one function for each family of tasks; each gives a layer and the reasons for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

ENOUGH_IMAGES = 16  # a device: Wu & He 2018, arXiv:1803.08494, fig. 1, where batch norm's error begins to rise below
ENOUGH_ROWS = 32  # a device, where a statistic has one value a row: nothing lost at 32, 4.5 points at 4 (measured)
MANY_LAYERS = 100  # pre-norm's gradient, first over last layer, grows as sqrt(depth): 2.5, 4.4, 6.7 at 6, 18, 36 layers

IN_BRANCHES = ("language-model", "transformer", "vision-transformer")


@dataclass(slots=True)
class Case:
    """What is asked, in the words of `recommend`, and the reasons as they are found."""

    task: str
    family: str
    batch_size: int | None
    channels: int | None
    positions: int | None
    padded: bool
    dtype: torch.dtype
    gradient_penalty: bool
    ranks: int
    depth: int | None
    pretrained: bool
    reasons: list[str] = field(default_factory=list)

    def because(self, reason: str) -> None:
        """Note a reason.

        Args:
            reason: One sentence.
        """
        self.reasons.append(reason)


def placement_of(case: Case, layer: str) -> str:
    """Where the layer stands.

    Args:
        case: What is asked; a reason is noted.
        layer: The layer that was chosen.

    Returns:
        The place.
    """
    if layer == "spectral_norm":
        return "on the weight of every linear layer and convolution"
    if layer == "FrozenBatchNorm":
        return "where the trained BatchNorm stands"
    if case.family not in IN_BRANCHES:
        return f"between {'linear layer' if case.family == 'dense' else 'layer'} and activation"
    if case.depth is not None and case.depth >= MANY_LAYERS:
        case.because(
            f"{case.depth} layers: pre-norm's gradient grows towards the first layer as sqrt(depth); with DeepNorm "
            "(arXiv:2203.00555) first over last layer stays at 1.03 to 1.05 (measured up to 36 layers)"
        )
        return "deep: after the residual sum, with DeepNorm's alpha and beta"
    case.because(
        "before each branch: after the sum (post-norm) the same network did not leave chance without warm-up in three of "
        "three runs (measured)"
    )
    return "pre: before each branch, and a final one after the last layer"


def _convolutional(case: Case) -> str:
    if (layer := _without_batch(case)) is not None:
        return layer
    if case.batch_size is None:
        case.because("the batch size is not given: GroupNorm does not depend on it")
        return "GroupNorm"
    together = case.batch_size * case.ranks
    if case.batch_size >= ENOUGH_IMAGES:
        case.because(f"{case.batch_size} images a device: enough for the statistics of a batch (from {ENOUGH_IMAGES})")
        return "BatchNorm"
    if case.pretrained:
        case.because(f"{case.batch_size} images a device are too few to move trained statistics: keep them frozen")
        return "FrozenBatchNorm"
    if case.ranks > 1 and together >= ENOUGH_IMAGES:
        case.because(f"{case.batch_size} images a device are too few, {together} over {case.ranks} ranks are enough")
        return "SyncBatchNorm"
    case.because(
        f"{case.batch_size} images a device are too few for the statistics of a batch: evaluation accuracy fell by 53 "
        "points at 2 and by 4.5 at 4, where GroupNorm lost nothing (digits, measured)"
    )
    return "GroupNorm"


def _dense(case: Case) -> str:
    if case.gradient_penalty or case.padded or case.batch_size is None or case.batch_size < ENOUGH_ROWS:
        size = "not given" if case.batch_size is None else f"{case.batch_size} rows"
        case.because(
            f"batch size {size}: LayerNorm takes its statistics of each row (BatchNorm from {ENOUGH_ROWS} rows)"
        )
        _without_batch(case)
        return "LayerNorm"
    case.because(f"{case.batch_size} rows a device: enough for the statistics of a batch (from {ENOUGH_ROWS})")
    return "BatchNorm"


def _without_batch(case: Case) -> str | None:
    """Returns the layer where statistics of the batch are out of the question."""
    if case.gradient_penalty:
        case.because(
            "a gradient penalty is a norm per sample (arXiv:1704.00028): no layer may mix samples, as BatchNorm does"
        )
        return "GroupNorm"
    if case.padded:
        case.because(
            "padding enters the statistics of batch, group and instance norm: mean 0.98 for a true 1.96 in a small example "
            "(measured); LayerNorm over the channels takes each position by itself, a masked BatchNorm leaves padding out"
        )
        return "LayerNorm"
    return None


def _medical(case: Case) -> str:
    if case.padded:
        return _without_batch(case) or "LayerNorm"
    case.because(
        "intensities differ from scan to scan and batches are small: each scan is its own scale, as in nnU-Net"
    )
    return "InstanceNorm"


def _style(case: Case) -> str:
    case.because("mean and variance of each channel of each image are its style: InstanceNorm takes them off")
    return "InstanceNorm"


def _generator(case: Case) -> str:
    layer = _convolutional(case)
    case.because(
        "sampling in evaluation mode depends on running statistics: recalibrate them after an average of weights"
    )
    return layer


def _critic(case: Case) -> str:
    if case.gradient_penalty:
        return _without_batch(case) or "GroupNorm"
    case.because(
        "spectral normalization bounds the critic; of a convolution it must bound the operator, not the reshaped kernel"
    )
    case.because("BatchNorm would give real and generated samples away by the batch that they stand in")
    return "spectral_norm"


def _diffusion(case: Case) -> str:
    if case.padded:
        return _without_batch(case) or "LayerNorm"
    case.because("samples of one batch stand at different noise levels: statistics of each sample by itself")
    return "GroupNorm"


def _language_model(case: Case) -> str:
    case.because("RMSNorm has no mean to compute and no bias; llama, qwen3, gemma3 and olmo2 use it")
    case.because("statistics of each token by itself: neither padding nor the batch size enters")
    return "RMSNorm"


def _transformer(case: Case) -> str:
    case.because("statistics of each token by itself: neither padding nor the batch size enters")
    return "LayerNorm"


def _recurrent(case: Case) -> str:
    case.because("statistics of a batch differ from time step to time step; LayerNorm takes each step by itself")
    if case.padded:
        _without_batch(case)
    return "LayerNorm"


def _private(case: Case) -> str:
    case.because("each sample's gradient must depend on that sample alone: BatchNorm mixes them")
    return "GroupNorm"


CHOICES: Mapping[str, Callable[[Case], str]] = {
    "convolutional": _convolutional,
    "detection": _convolutional,
    "medical": _medical,
    "style": _style,
    "generator": _generator,
    "critic": _critic,
    "diffusion": _diffusion,
    "language-model": _language_model,
    "transformer": _transformer,
    "vision-transformer": _transformer,
    "recurrent": _recurrent,
    "dense": _dense,
    "private": _private,
}

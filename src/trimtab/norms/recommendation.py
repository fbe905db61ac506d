"""Which normalization to use, with which numbers, and why."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from trimtab.norms._arguments import refuse, require_flag, require_whole
from trimtab.norms._choices import CHOICES, IN_BRANCHES, Case, placement_of
from trimtab.norms._groups import group_count
from trimtab.norms._kinds import CONVOLUTIONS, TRANSPOSED
from trimtab.norms._practice import Practice, practice_of
from trimtab.norms._tasks import FAMILIES, known_task, task_of

HALF_NORMAL = torch.finfo(torch.float16).smallest_normal

NO_DECAY = "no weight decay on weight and bias of the normalization, nor on other parameters of fewer than two axes"
SCALE_FREE = "; the weights before it are scale-free: decay leaves the function as it is and raises their effective learning rate"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to use.

    Attributes:
        task: The task it is for.
        layer: "BatchNorm", "SyncBatchNorm", "FrozenBatchNorm", "GroupNorm", "LayerNorm", "InstanceNorm", "RMSNorm" or
            "spectral_norm".
        eps: Its eps; None for spectral_norm.
        affine: Whether it has weight and bias (RMSNorm: a weight).
        groups: Number of groups of a GroupNorm; None for other layers, or where `channels` was not given.
        placement: Where it stands.
        decay: What to do about weight decay.
        reasons: Why, one sentence each.
        practice: What leading projects do.
    """

    task: str
    layer: str
    eps: float | None
    affine: bool
    groups: int | None
    placement: str
    decay: str
    reasons: tuple[str, ...]
    practice: tuple[Practice, ...]

    def __str__(self) -> str:
        groups = "" if self.groups is None else f", {self.groups} groups"
        eps = "" if self.eps is None else f", eps {self.eps:g}"
        affine = "" if not self.affine else ", with weight" if self.layer == "RMSNorm" else ", with weight and bias"
        head = f"{self.layer}{groups}{eps}{affine}; {self.placement}"
        used = [f"  {p.project}: {p.choice} ({p.source})" for p in self.practice]
        return "\n".join([head, self.decay, *(f"- {reason}" for reason in self.reasons), *used])


def recommend(
    task: str | nn.Module,
    batch: Any = None,
    *,
    batch_size: int | None = None,
    channels: int | None = None,
    positions: int | None = None,
    padded: bool = False,
    dtype: torch.dtype | None = None,
    gradient_penalty: bool = False,
    ranks: int | None = None,
    depth: int | None = None,
    pretrained: bool = False,
) -> Recommendation:
    """Recommend a normalization, with the reasons and with what leading projects use.

    Args:
        task: What the network does, such as "image-classification"; or a model, whose layers show it as far as they can.
        batch: A batch of the model's, for its size.
        batch_size: Samples in a batch of one device; None if not known, and then a layer is chosen that does not care.
        channels: Channels of the layer, of which a GroupNorm's groups must be a divisor; for several widths their
            greatest common divisor.
        positions: Pixels or time steps per channel and sample.
        padded: Whether sequences or images are padded to one length.
        dtype: Of the activations; None for the model's, or float32.
        gradient_penalty: Whether the loss holds the norm of a gradient for each sample, as WGAN-GP's.
        ranks: Processes that train together; None for the size of the process group, or 1.
        depth: Number of layers, for transformers.
        pretrained: Whether trained statistics are there, to be fine-tuned.

    Returns:
        The layer, its numbers, where it stands, and why.

    Raises:
        NormalizationError: If the task is unknown, the model shows none, a number is less than 1, or the batch holds no tensor.
    """
    reasons = []
    if isinstance(task, nn.Module):
        model = task
        name, seen = task_of(model)
        reasons.append(f"the task was read off the model: {seen}")
        meant = _size_of(batch)
        channels = _width_of(model) if channels is None else channels
        dtype = next((p.dtype for p in model.parameters()), None) if dtype is None else dtype
    else:
        name, meant = known_task(task)
        meant = _size_of(batch) or meant
    if batch is not None and _size_of(batch) is None:
        refuse(
            "batch", batch, "a tensor, or a tuple, list or mapping that holds one, samples first, is needed, or None"
        )
    batch_size = meant if batch_size is None else batch_size
    ranks = (dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1) if ranks is None else ranks
    numbers = {"batch_size": batch_size, "channels": channels, "positions": positions, "ranks": ranks, "depth": depth}
    require_whole(**{what: value for what, value in numbers.items() if value is not None})
    require_flag(padded=padded, gradient_penalty=gradient_penalty, pretrained=pretrained)
    if dtype is not None and not isinstance(dtype, torch.dtype):
        refuse("dtype", dtype, "a torch.dtype such as torch.float16, or None, is needed")
    case = Case(
        name,
        FAMILIES[name],
        batch_size,
        channels,
        positions,
        padded,
        dtype or torch.float32,
        gradient_penalty,
        ranks,
        depth,
        pretrained,
        reasons,
    )
    return _answer(case, CHOICES[case.family](case))


def _answer(case: Case, layer: str) -> Recommendation:
    groups = _groups(case) if layer == "GroupNorm" else None
    if case.dtype in (torch.float16, torch.bfloat16):
        case.because(
            "in half precision: PyTorch's layers compute in float32 inside; keep running statistics in float32; a norm "
            f"written by hand in float16 needs eps >= {HALF_NORMAL:.2g}"
        )
        if layer == "RMSNorm":
            case.because("give eps: None is float32's 1.2e-7 in half precision too")
    return Recommendation(
        case.task,
        layer,
        _eps(case, layer),
        layer != "spectral_norm",
        groups,
        placement_of(case, layer),
        _decay(case, layer),
        tuple(case.reasons),
        practice_of((case.family,)),
    )


def _groups(case: Case) -> int | None:
    if case.channels is None:
        case.because("groups: the largest divisor of the channels up to 32 that leaves 4 channels to a group")
        return None
    groups = group_count(case.channels, case.positions or 1)
    text = f"{groups} groups of {case.channels // groups} channels"
    case.because(text if case.channels % 32 == 0 else f"{text}: GroupNorm(32, {case.channels}) raises")
    return groups


def _eps(case: Case, layer: str) -> float | None:
    if layer == "spectral_norm":
        return None
    return 1e-6 if layer == "RMSNorm" or case.family == "vision-transformer" else 1e-5


def _decay(case: Case, layer: str) -> str:
    if layer == "spectral_norm":
        return "weight decay leaves normalized weights the same function; it is of no use on them"
    if layer == "FrozenBatchNorm":
        return "nothing of the layer trains; the weights before it are decayed as any others"
    return NO_DECAY + ("" if case.family in IN_BRANCHES else SCALE_FREE)


def _size_of(batch: Any) -> int | None:
    """Returns the first axis of the first tensor of a batch."""
    if isinstance(batch, (Tensor, np.ndarray)):
        return batch.shape[0] if batch.ndim else None
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, (tuple, list)):
        return next((size for size in map(_size_of, batch) if size is not None), None)
    return None


def _width_of(model: nn.Module) -> int | None:
    """Returns the greatest common divisor of the convolutions' outputs, a GroupNorm's groups suit them all."""
    widths = [m.out_channels for m in model.modules() if isinstance(m, (*CONVOLUTIONS, *TRANSPOSED))]
    return math.gcd(*widths) if widths else None

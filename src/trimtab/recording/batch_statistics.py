"""What batch normalizations are given, and what they keep of it: looked at at the steps that are looked at in detail."""

from collections.abc import Iterator
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from trimtab.recording.watched import WatchedModel
from trimtab.stats import channel_rows

SHOWN = 128
"""Channels of one layer that are kept; of more, evenly spaced ones."""

ENDING = 2
"""Equal positions at the end of a sample from which on they count as padding; a single one may be chance."""


def is_batch_norm(module: nn.Module) -> bool:
    """Whether a module normalizes each channel over all samples and positions, or keeps statistics for that.

    Args:
        module: Torch's own, or another.

    Returns:
        False for one that leaves positions out by a mask: its statistics are not those of its whole input.
    """
    if "Masked" in type(module).__name__:
        return False
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return True
    keeps = all(isinstance(getattr(module, name, None), Tensor) for name in ("running_mean", "running_var"))
    return keeps and not isinstance(module, nn.modules.instancenorm._InstanceNorm)


def running_statistics(watched: WatchedModel) -> Iterator[tuple[str, Tensor]]:
    """The buffers of a model's batch normalizations as they are now.

    Args:
        watched: The model.

    Yields:
        Name and moment rows (channels, 7) with count 1, the running mean and the running variance.
    """
    for name, module in watched.named_modules():
        if is_batch_norm(module) and _readable(module.running_mean) and _readable(module.running_var):
            mean, variance = (_shown(t.detach(), 0).flatten() for t in (module.running_mean, module.running_var))
            if mean.shape == variance.shape:
                rows = torch.zeros((len(mean), 7), dtype=torch.float64, device=mean.device)
                rows[:, 0], rows[:, 1], rows[:, 2] = 1.0, mean, variance
                yield name, rows


def _readable(buffer: object) -> TypeGuard[Tensor]:
    if not isinstance(buffer, Tensor) or nn.parameter.is_lazy(buffer):
        return False
    return buffer.layout == torch.strided and buffer.is_floating_point() and not (buffer.is_nested or buffer.is_meta)


def batch_statistics(given: Tensor) -> Tensor | None:
    """Moment rows of the channels of what a batch normalization was given.

    Args:
        given: Its input (samples, channels, ...).

    Returns:
        (channels, 7); None where there are no channels.
    """
    if not _readable(given) or given.ndim < 2 or not given.numel():
        return None
    return channel_rows(_shown(given.detach(), 1), 1)


@torch.no_grad()
def padding(given: Tensor, samples: int) -> dict[str, float] | None:
    """How much of a sequence is the same vector up to its end (or from its beginning), and what that does to the statistics.

    Args:
        given: The input of a batch normalization: (samples, channels, positions), or (samples * positions, channels).
        samples: Samples of the batch.

    Returns:
        "share" of the positions; "shift" of the channels' mean by them, in standard deviations without them (root mean
        square over the channels); "spread", the variance with them over that without (median). None where it is no
        sequence, or nothing is repeated.
    """
    if not _readable(given):
        return None
    if given.ndim == 2 and samples and given.shape[0] > samples and given.shape[0] % samples == 0:
        given = given.detach().reshape(samples, -1, given.shape[1]).movedim(2, 1)
    if given.ndim != 3 or given.shape[2] < 2 * ENDING:
        return None
    x = given.detach().double()
    channels = torch.arange(1, x.shape[1] + 1, dtype=torch.float64, device=x.device)
    marks = torch.einsum("ncl,c->nl", x, torch.cos(channels * 2**0.5))  # one number for a vector: equal ones stay equal
    mask = max((_ending(marks), _ending(marks.flip(1)).flip(1)), key=lambda found: int(found.sum()))
    share = float(mask.double().mean())
    if not 0 < share < 1:
        return None
    real = x.movedim(1, 0)[:, ~mask]
    mean, variance = x.mean((0, 2)), x.var((0, 2), correction=0)
    own_mean, own_variance = real.mean(1), real.var(1, correction=0).clamp(min=1e-30)
    shift = ((mean - own_mean).square() / own_variance).mean().sqrt()
    return {"share": share, "shift": float(shift), "spread": float((variance / own_variance).median())}


def _ending(marks: Tensor) -> Tensor:
    """Where each sample's last vector repeats up to its end, where that vector is the same in all samples that repeat theirs."""
    run = (marks == marks[:, -1:]).flip(1).cumprod(1).flip(1).bool()
    long = run.sum(1) >= ENDING
    if not bool(long.any()):
        return torch.zeros_like(run)
    common = marks[long, -1].mode().values
    return run & (long & (marks[:, -1] == common))[:, None]


def _shown(tensor: Tensor, axis: int) -> Tensor:
    """Of many channels, evenly spaced ones."""
    every = -(-tensor.shape[axis] // SHOWN) if tensor.ndim > axis else 1
    return tensor[(slice(None),) * axis + (slice(None, None, every),)] if every > 1 else tensor


def given_to(args: tuple[Any, ...]) -> Tensor | None:
    """The argument of a module's call, where it is one tensor alone: with a mask beside it not all of it counts."""
    return args[0] if len(args) == 1 and isinstance(args[0], Tensor) else None

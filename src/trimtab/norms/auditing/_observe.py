"""What an example shows of each normalization: shape, dtype and variance of its input."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.norms._kinds import BATCH_KINDS, kind_of
from trimtab.norms._passes import call, undisturbed
from trimtab.norms.auditing._fact import Seen


def observe(model: nn.Module, norms: Mapping[str, nn.Module], example: Any) -> tuple[dict[str, Seen], bool]:
    """Run the example once, in evaluation mode, in which no statistic moves and no batch is too small.

    Args:
        model: The model.
        norms: Its normalizations by name.
        example: What it is called with, as for `call`.

    Returns:
        What was seen, by name, for the layers that were called; and whether the pass came to its end. PyTorch stops it at
        a layer whose statistics are of one value, without naming the layer; what was seen up to there tells which.

    Raises:
        ValueError: What the model raises, where no such layer is the reason.
    """
    seen: dict[str, Seen] = {}
    last = ""

    def before(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            if not (args and isinstance(args[0], Tensor)):
                return
            nonlocal last
            last = name
            calls = seen[name].calls + 1 if name in seen else 1
            x = args[0]
            seen[name] = Seen(tuple(x.shape), x.dtype, _variance(module, x), calls)

        return hook

    handles = [norm.register_forward_pre_hook(before(name)) for name, norm in norms.items()]
    try:
        with undisturbed(model):
            call(model, example)
    except ValueError:
        if last not in seen or elements(norms[last], seen[last].shape) != 1:
            raise
        return seen, False
    finally:
        for handle in handles:
            handle.remove()
    return seen, True


def elements(norm: nn.Module, shape: tuple[int, ...] | None) -> int | None:
    """How many values a statistic of a layer is taken over.

    Args:
        norm: A normalization.
        shape: Shape of its input, None if not known.

    Returns:
        The number, None if it depends on what is not known.
    """
    kind = kind_of(norm)
    if kind in ("layer_norm", "rms_norm"):
        return int(torch.Size(norm.normalized_shape).numel())  # type: ignore[arg-type]
    if shape is None or len(shape) < 2:
        return None
    positions = int(torch.Size(shape[2:]).numel())
    if kind in BATCH_KINDS:
        return shape[0] * positions
    if isinstance(norm, nn.GroupNorm):
        return shape[1] // norm.num_groups * positions
    return positions if len(shape) > 2 else shape[1]  # an InstanceNorm takes (N, C) for one sample (C, L)


def _variance(norm: nn.Module, x: Tensor) -> float:
    """Returns the median over the statistics of a layer of the variance that they are to measure."""
    kind = kind_of(norm)
    values = x.detach().float() if x.dtype != torch.float64 else x.detach()
    if not values.numel():
        return float("nan")
    if kind in ("layer_norm", "rms_norm"):
        rows = values.reshape(-1, int(torch.Size(norm.normalized_shape).numel()))  # type: ignore[arg-type]
    elif kind in BATCH_KINDS:
        rows = values.movedim(1, 0).flatten(1)
    elif isinstance(norm, nn.GroupNorm):
        rows = values.reshape(values.shape[0] * norm.num_groups, -1)
    else:
        rows = values.flatten(0, 1).flatten(1) if values.dim() > 2 else values
    spread = rows.square().mean(1) if kind == "rms_norm" else rows.var(1, correction=0)
    return float(spread.median())

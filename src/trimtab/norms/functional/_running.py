"""Running statistics, moved in place as PyTorch moves them."""

from typing import Any

import torch
from torch import Tensor

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import is_number, refuse, require_tensor
from trimtab.norms.functional._layout import check_parameters

Buffers = tuple[Tensor, Tensor] | None


def check_buffers(running_mean: Tensor | None, running_var: Tensor | None, channels: int) -> Buffers:
    """Both running statistics, or none.

    Args:
        running_mean: Shape (channels,), or None.
        running_var: Shape (channels,), or None.
        channels: How many there are.

    Returns:
        The two, or None.

    Raises:
        NormalizationError: If only one was given, or their shape is another one.
    """
    check_parameters((channels,), "one value a channel", running_mean=running_mean, running_var=running_var)
    if running_mean is None and running_var is None:
        return None
    if running_mean is None or running_var is None:
        missing = "running_mean" if running_mean is None else "running_var"
        raise NormalizationError(f"{missing} is None and its partner is not; both are needed, or neither")
    return running_mean, running_var


def check_update(momentum: float | None, num_batches_tracked: Tensor | None) -> None:
    """Let only what running statistics can be moved with pass.

    Args:
        momentum: A finite number, or None.
        num_batches_tracked: A tensor of one whole number, or None.

    Raises:
        NormalizationError: If one is something else.
    """
    if momentum is not None and not is_number(momentum):
        refuse("momentum", momentum, "a finite number is needed, or None for the average over all batches")
    if num_batches_tracked is not None:
        require_tensor("num_batches_tracked", num_batches_tracked)
        if num_batches_tracked.dim() or num_batches_tracked.is_floating_point() or num_batches_tracked.is_complex():
            raise NormalizationError(
                f"num_batches_tracked has shape {tuple(num_batches_tracked.shape)} and dtype {num_batches_tracked.dtype}; "
                "a scalar integer tensor is needed, such as torch.tensor(0)"
            )


def needed(buffers: Buffers, option: str) -> tuple[Tensor, Tensor]:
    """The running statistics, where nothing else can be normalized with.

    Args:
        buffers: The two, or None.
        option: The setting that calls for them, for the message.

    Returns:
        The two.

    Raises:
        NormalizationError: If there are none.
    """
    if buffers is None:
        raise NormalizationError(
            f"running_mean and running_var are None with {option}; both are needed, or statistics of the input instead"
        )
    return buffers


class _Move(torch.autograd.Function):
    """The update, as a function of its own: so it reaches buffers that torch.func.grad and jvp have not wrapped."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        mean: Tensor,
        variance: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        count: int | Tensor,
        momentum: float | None,
        batches: Tensor | None,
    ) -> Tensor:
        if batches is not None:
            batches.add_(1)
        weight: Any = momentum if momentum is not None or batches is None else batches.to(mean.dtype).reciprocal()
        if isinstance(count, int):
            mean, variance = mean.mean(0), variance.mean(0) * (count / (count - 1))
        else:
            alive = count > 1
            rows = alive.sum().clamp(min=1)
            variance = variance * (count / (count - 1).clamp(min=1))
            mean, variance = (
                torch.where(alive, mean, 0.0).sum(0) / rows,
                torch.where(alive, variance, 0.0).sum(0) / rows,
            )
            weight = weight * alive.any().to(mean.dtype)
        for buffer, fresh in ((running_mean, mean), (running_var, variance)):
            buffer.copy_(buffer.to(fresh.dtype) * (1.0 - weight) + fresh * weight)  # full width for half buffers too
        return mean.new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        return (None,) * 7


def move(
    buffers: tuple[Tensor, Tensor],
    mean: Tensor,
    variance: Tensor,
    count: int | Tensor,
    momentum: float | None,
    num_batches_tracked: Tensor | None,
) -> None:
    """Move both: buffer = (1 - momentum) * buffer + momentum * statistic, with the unbiased variance.

    Rows of statistics (instance normalization has one a sample) are averaged first. A row of a single value has no
    unbiased variance and is left out; where no row is left, as in an empty batch, only the counter moves.

    Args:
        buffers: Running mean and variance, shape (C,).
        mean: Shape (C,) or (rows, C).
        variance: Biased, likewise.
        count: Values behind each statistic: a number, or a tensor with one element a row.
        momentum: Weight of the new statistic, or None for the plain average over all batches.
        num_batches_tracked: Batches so far, a scalar, counted up by one; needed where momentum is None.

    Raises:
        NormalizationError: If momentum is None and nothing counts the batches.
    """
    if momentum is None and num_batches_tracked is None:
        raise NormalizationError(
            "momentum is None, the average over all batches, but num_batches_tracked is None too; "
            "hand in the counter of the batches so far (a scalar integer tensor), or a momentum"
        )
    mean, variance = (statistic.detach().reshape(-1, statistic.shape[-1]) for statistic in (mean, variance))
    if isinstance(count, int) and (count < 2 or not len(mean)):
        if num_batches_tracked is not None:
            num_batches_tracked.add_(1)
        return
    count = count if isinstance(count, int) else count.reshape(-1, 1).to(mean.dtype)  # integers divide to float32
    run = _Move.forward if torch.compiler.is_compiling() else _Move.apply
    run(mean, variance, *buffers, count, momentum, num_batches_tracked)

"""What the BatchNorm layers of this package share: PyTorch's constructor, its checks and its running statistics."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import (
    require_device_and_dtype,
    require_eps,
    require_flag,
    require_number,
    require_tensor,
    require_whole,
)


class BatchNormBase(nn.Module):
    """Mixed into `nn.BatchNorm1d`, `2d` and `3d`, which come after it in the order of bases."""

    num_features: int
    eps: float
    momentum: float | None
    affine: bool
    track_running_stats: bool
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    weight: Any  # a parameter or None; PyTorch's own annotation leaves the None out
    bias: Any
    _check_input_dim: Callable[[Tensor], None]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        require_whole(0, num_features=num_features)
        require_eps(eps)
        if momentum is not None:
            require_number(momentum=momentum)
        require_flag(affine=affine, track_running_stats=track_running_stats, bias=bias)
        require_device_and_dtype(device, dtype)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def require_input(self, x: Tensor) -> None:
        """Let only inputs of the layer's shape pass.

        Args:
            x: The input.

        Raises:
            NormalizationError: If it is no tensor, or its number of axes or of channels is another.
        """
        try:
            self._check_input_dim(x)
        except (ValueError, AttributeError) as error:
            require_tensor("input", x)  # asked only now, so that tensors, which come at every step, pay nothing
            raise NormalizationError(f"{type(self).__name__}: {error}") from None
        if x.shape[1] != self.num_features:
            raise NormalizationError(
                f"the input has shape {tuple(x.shape)}, that is {x.shape[1]} channels in its second axis; "
                f"{type(self).__name__}({self.num_features}) needs {self.num_features}"
            )

    @property
    def tracks(self) -> bool:
        """Whether a forward call moves the running statistics."""
        return self.training and self.track_running_stats and self.running_mean is not None

    def move_running(self, mean: Tensor, unbiased: Tensor, share: Tensor | float = 1.0) -> None:
        """Count a batch and move the running statistics.

        Args:
            mean: Mean of the batch, shape (C,).
            unbiased: Its unbiased variance, shape (C,).
            share: Factor of the momentum; 0 for a batch that says nothing.
        """
        if self.running_mean is not None and self.running_var is not None:
            seen, momentum = self.num_batches_tracked, self.momentum
            move_running(self.running_mean, self.running_var, seen, mean, unbiased, momentum, share)


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel, in float32 or better.

    Args:
        x: Shape (N, C, *).

    Returns:
        Two of shape (C,).
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, [0, *range(2, x.dim())], correction=0)
    return mean, variance


@torch.no_grad()
def move_running(
    running_mean: Tensor,
    running_var: Tensor,
    seen: Tensor | None,
    mean: Tensor,
    unbiased: Tensor,
    momentum: float | None,
    share: Tensor | float = 1.0,
) -> None:
    """Count a batch and move the running statistics: running = (1 - momentum) running + momentum batch.

    Args:
        running_mean: Changed in place, shape (C,).
        running_var: Changed in place, shape (C,).
        seen: Number of batches before, raised by one.
        mean: Mean of the batch, shape (C,).
        unbiased: Its unbiased variance, shape (C,).
        momentum: Weight of the batch; None is 1 / (batches seen).
        share: Factor of the momentum.
    """
    if seen is not None:
        seen.add_(1)
    if momentum is None:
        momentum = 1.0 / float(seen) if seen is not None else 0.0
    for running, batch in ((running_mean, mean), (running_var, unbiased)):
        if running.dtype == batch.dtype:
            running.lerp_(batch, momentum * share)
        else:
            work = torch.promote_types(running.dtype, batch.dtype)
            running.copy_(running.to(work).lerp_(batch.to(work), momentum * share))

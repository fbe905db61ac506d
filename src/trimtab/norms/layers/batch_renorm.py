"""Batch renormalization: BatchNorm for small batches (Ioffe 2017, arXiv:1702.03275)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import is_whole, refuse, require_at_least
from trimtab.norms.layers._batch import BatchNormBase, batch_statistics, move_running
from trimtab.norms.layers._paths import eager_on_cpu

# Below so many values a second look at them costs less than a function of our own.
_LEAST = 1 << 15


class _Renormalized(torch.autograd.Function):
    """Batch normalization by batch statistics that were taken already: PyTorch's kernels, without its second look.

    The gradient runs through the statistics, as in BatchNorm.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float
    ) -> Tensor:
        y = torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, eps)[0]
        ctx.save_for_backward(x, weight, mean, torch.rsqrt(variance + eps))
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, mean, inverse = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad[:3])
        gradients = torch.ops.aten.native_batch_norm_backward(
            dy, x, weight, None, None, mean, inverse, True, ctx.eps, wanted
        )
        return *gradients, None, None, None


def _limits(seen: Tensor, r_max: float, d_max: float, warm_up: Sequence[int], kind: torch.dtype) -> tuple[Any, Any]:
    """Returns the limits of r and d: numbers where the count is at hand, tensors where nothing should wait for it."""
    begin, r_end, d_end = warm_up
    if eager_on_cpu(seen):
        step = int(seen)
        r_share, d_share = (min(max((step - begin) / max(end - begin, 1), 0.0), 1.0) for end in (r_end, d_end))
        return 1.0 + (r_max - 1.0) * r_share, d_max * d_share
    since = seen.to(torch.promote_types(kind, torch.float32)) - begin
    shares = ((since / max(end - begin, 1)).clamp(0.0, 1.0) for end in (r_end, d_end))
    return 1.0 + (r_max - 1.0) * next(shares), d_max * next(shares)


def _correct(
    running_mean: Tensor,
    running_var: Tensor,
    seen: Tensor,
    mean: Tensor,
    variance: Tensor,
    bessel: float,
    momentum: float,
    eps: float,
    r_max: float,
    d_max: float,
    warm_up: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Returns r and d, and moves the running statistics; a negative momentum is None."""
    kind = running_mean.dtype
    sigma, sigma_batch = (running_var.to(mean.dtype) + eps).sqrt(), (variance + eps).sqrt()
    r_limit, d_limit = _limits(seen, r_max, d_max, warm_up, kind)
    r = torch.clamp(sigma_batch / sigma, 1.0 / r_limit, r_limit).to(kind)
    d = torch.clamp((mean - running_mean) / sigma, -d_limit, d_limit).to(kind)
    move_running(running_mean, running_var, seen, mean, variance * bessel, None if momentum < 0.0 else momentum)
    return r, d


# Compiled code must take r and d from one operation. As several, AOTAutograd computes them again in its backward pass, from
# running statistics that have moved by then, and dweight is wrong (torch 2.13).
_correct_compiled = torch.library.custom_op(
    "trimtab::batch_renorm", _correct, mutates_args=("running_mean", "running_var", "seen")
)


@_correct_compiled.register_fake
def _(running_mean: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(running_mean), torch.empty_like(running_mean)


class _BatchRenorm(BatchNormBase):
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
        r_max: float = 3.0,
        d_max: float = 5.0,
        warm_up: tuple[int, int, int] = (5000, 40000, 25000),
    ) -> None:
        require_at_least(1.0, r_max=r_max)
        require_at_least(0.0, d_max=d_max)
        several = isinstance(warm_up, (tuple, list)) and len(warm_up) == 3 and all(map(is_whole, warm_up))
        if not several or not 0 <= warm_up[0] <= min(warm_up[1:]):
            refuse(
                "warm_up",
                warm_up,
                "three step numbers are needed: where the limits begin to rise, and, not before it, where r_max and "
                "where d_max is reached",
            )
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.r_max, self.d_max, self.warm_up = r_max, d_max, tuple(warm_up)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, r_max={self.r_max}, d_max={self.d_max}, warm_up={self.warm_up}"

    def limits(self) -> tuple[Tensor | float, Tensor | float]:
        """How far the statistics of the next batch may be corrected.

        Returns:
            The limits of r and of d, numbers, or tensors on a device that nothing should wait for; 1 and 0 where there are no
            running statistics.
        """
        if self.num_batches_tracked is None or self.running_mean is None:
            return 1.0, 0.0
        return _limits(self.num_batches_tracked, self.r_max, self.d_max, self.warm_up, self.running_mean.dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize.

        Args:
            input: Shape (N, C, *).

        Returns:
            The shape of input.

        Raises:
            NormalizationError: If the input is not of the layer's shape, or has one value a channel.
        """
        self.require_input(input)
        values = input.shape[0] * input.shape[2:].numel()
        running_mean, running_var, seen = self.running_mean, self.running_var, self.num_batches_tracked
        if not self.tracks or running_mean is None or running_var is None or seen is None or values == 0:
            return super().forward(input)  # type: ignore[no-any-return]
        if values == 1:
            raise NormalizationError(
                f"the input {tuple(input.shape)} has one value a channel, which has no variance; two are needed"
            )
        ours = eager_on_cpu(input, self.weight, self.bias)
        compiling = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
        with torch.no_grad():
            mean, variance = _statistics(input, ours)
            r, d = (_correct_compiled if compiling else _correct)(
                running_mean,
                running_var,
                seen,
                mean,
                variance,
                values / (values - 1),
                -1.0 if self.momentum is None else self.momentum,
                self.eps,
                self.r_max,
                self.d_max,
                self.warm_up,
            )
        weight = r if self.weight is None else self.weight * r
        bias = d if self.weight is None else self.weight * d
        bias = bias if self.bias is None else bias + self.bias
        if ours and input.numel() >= _LEAST and mean.dtype == input.dtype == weight.dtype:
            y: Tensor = _Renormalized.apply(input, weight, bias, mean, variance, self.eps)  # type: ignore[no-untyped-call]
            return y
        return functional.batch_norm(input, None, None, weight, bias, True, 0.0, self.eps)


def _statistics(x: Tensor, by_kernel: bool) -> tuple[Tensor, Tensor]:
    """Returns mean and biased variance of each channel, in float32 or better."""
    if by_kernel and x.dtype in {torch.float32, torch.float64}:
        mean, variance = torch.batch_norm_update_stats(x, None, None, 0.0)
        return mean, variance
    return batch_statistics(x)


class BatchRenorm1d(_BatchRenorm, nn.BatchNorm1d):
    """BatchNorm that corrects a batch's statistics towards the running ones (Ioffe 2017, arXiv:1702.03275).

    y = weight ((x - mean_B) / s_B · r + d) + bias, with s = sqrt(var + eps), r = s_B / s_running within [1 / r_max, r_max]
    and d = (mean_B - mean_running) / s_running within [-d_max, d_max]. No gradient runs through r and d; through the batch's
    statistics it runs as in BatchNorm. Within the limits, the output is what evaluation mode gives, so small batches are
    normalized alike in training and evaluation.

    The limits rise with the number of batches seen, `num_batches_tracked`: 1 and 0 (plain BatchNorm) up to warm_up[0],
    then linearly to r_max at warm_up[1] and to d_max at warm_up[2]; the defaults are the paper's. The running statistics
    are PyTorch's, an average of the unbiased variance and not of the standard deviation as in the paper. In evaluation
    mode, and where no statistics are tracked, the layer is PyTorch's.

    A repair for `small-batch-batchnorm` and `train-eval-gap`.

    Constructor and state_dict are those of `torch.nn.BatchNorm1d`. Cost: on the CPU that of PyTorch's layer at 50 MB
    in float32 and float64, and a fixed 0.25 ms, 2.9 times its time at (64, 32); of small inputs, elsewhere, and under a
    compiler, one more look at the input.

    Shapes: x (N, C) or (N, C, L).

    Args:
        num_features: Channels, C.
        eps: Added to the variance.
        momentum: Weight of a new batch in the running statistics; None for the mean of all batches.
        affine: Whether there are weight and bias.
        track_running_stats: Whether there are running statistics.
        device: Where the tensors are made.
        dtype: Their type.
        bias: Whether there is a bias.
        r_max: Largest factor by which a standard deviation is corrected, 1 or more.
        d_max: Largest shift, in running standard deviations, 0 or more.
        warm_up: Batches after which the limits begin to rise, and after which r_max and d_max are reached.

    Raises:
        NormalizationError: If eps is not above zero, r_max below 1, d_max below 0, or warm_up out of order.
    """


class BatchRenorm2d(_BatchRenorm, nn.BatchNorm2d):
    """`BatchRenorm1d` for x (N, C, H, W); stands for `torch.nn.BatchNorm2d`."""


class BatchRenorm3d(_BatchRenorm, nn.BatchNorm3d):
    """`BatchRenorm1d` for x (N, C, D, H, W); stands for `torch.nn.BatchNorm3d`."""

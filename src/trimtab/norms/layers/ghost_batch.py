"""Ghost batch normalization: statistics over small parts of a large batch."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import require_whole
from trimtab.norms.layers._batch import BatchNormBase


class _GhostBatchNorm(BatchNormBase):
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
        ghost_size: int = 32,
    ) -> None:
        require_whole(ghost_size=ghost_size)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.ghost_size = ghost_size

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, ghost_size={self.ghost_size}"

    def forward(self, input: Tensor) -> Tensor:
        """Normalize.

        Args:
            input: Shape (N, C, *).

        Returns:
            The shape of input.

        Raises:
            NormalizationError: If the input is not of the layer's shape, or a ghost has one value a channel.
        """
        self.require_input(input)
        samples = input.shape[0]
        ghosts = samples // self.ghost_size
        if not self.training or ghosts < 2:
            return super().forward(input)  # type: ignore[no-any-return]
        size, larger = divmod(samples, ghosts)
        positions = input.shape[2:].numel()
        if size * positions < 2:
            raise NormalizationError(
                f"ghosts of {size} sample give one value a channel for the input {tuple(input.shape)}, which has no variance; "
                f"make ghost_size 2 or more"
            )
        border = larger * (size + 1)
        parts = [(input[:border], larger), (input[border:], ghosts - larger)] if larger else [(input, ghosts)]
        found = [self._one_size(part, count) for part, count in parts]
        if self.tracks:
            sizes = [part.shape[0] // count * positions for part, count in parts]
            self._track([(means, variances, n) for (_, means, variances), n in zip(found, sizes, strict=True)])
        return found[0][0] if len(found) == 1 else torch.cat([y for y, _, _ in found])

    def _one_size(self, x: Tensor, ghosts: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns y, and the means and unbiased variances of the ghosts, (ghosts, C) each."""
        channels, given = self.num_features, self.weight if self.weight is not None else self.running_mean
        kind = torch.promote_types(x.dtype, torch.float32) if given is None else given.dtype
        mean, variance = (x.new_zeros(ghosts * channels, dtype=kind) for _ in range(2))
        # Sample i is in ghost i mod ghosts: seen so, a ghost's channel is a channel, and nothing needs to be copied.
        seen = x.reshape(x.shape[0] // ghosts, ghosts * channels, *x.shape[2:])
        # As `repeat`, in half the time.
        weight, bias = (None if p is None else p.expand(ghosts, -1).reshape(-1) for p in (self.weight, self.bias))
        y = functional.batch_norm(seen, mean, variance, weight, bias, True, 1.0, self.eps)
        return y.reshape(x.shape), mean.view(ghosts, channels), variance.view(ghosts, channels)

    def _track(self, parts: list[tuple[Tensor, Tensor, int]]) -> None:
        """Move the running statistics by those of the whole batch, merged from its ghosts (Chan)."""
        total = sum(means.shape[0] * n for means, _, n in parts)
        if len(parts) == 1:
            means, variances, n = parts[0]
            spread, mean = torch.var_mean(means, 0, correction=0)
            share = means.shape[0] / (total - 1)
            unbiased = spread.mul_(n * share).add_(variances.mean(0), alpha=(n - 1) * share)
        else:
            mean = torch.stack([means.sum(0) * (n / total) for means, _, n in parts]).sum(0)
            each = [((n - 1) * variances + n * (means - mean).square()).sum(0) for means, variances, n in parts]
            unbiased = torch.stack(each).sum(0) / (total - 1)
        self.move_running(mean, unbiased)


class GhostBatchNorm1d(_GhostBatchNorm, nn.BatchNorm1d):
    """BatchNorm over ghosts, small parts of a batch (Hoffer, Hubara and Soudry 2017, arXiv:1705.08741).

    A batch of N samples is N // ghost_size ghosts of ghost_size samples or a few more, as equal as they can be; each is
    normalized by its own mean and biased variance, y = weight (x - mean) / sqrt(var + eps) + bias, with one weight and bias
    for all. Sample i belongs to ghost i mod (N // ghost_size), so that no data is moved. (Where the sizes are unequal, this
    holds in two parts of the batch by themselves.)

    The running statistics move once a batch, by mean and unbiased variance of the whole batch, what `nn.BatchNorm1d` would
    have taken. The paper moves them once a ghost, which leaves out how the ghosts' means differ. In evaluation mode the
    layer is PyTorch's.

    Used where a repair makes the batch larger (`small-batch-batchnorm`: fewer accumulated micro-batches) and training should
    keep the noise that it was tuned with. It does not help batches that are small already.

    Constructor and state_dict are those of `torch.nn.BatchNorm1d`. Cost: that of PyTorch's layer at 50 MB, and a
    fixed 0.2 ms, 2.9 times its time at (64, 32); with channels_last memory or unequal ghosts a copy more.

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
        ghost_size: Samples of a ghost, at least.

    Raises:
        NormalizationError: If eps is not above zero, or ghost_size below one.
    """


class GhostBatchNorm2d(_GhostBatchNorm, nn.BatchNorm2d):
    """`GhostBatchNorm1d` for x (N, C, H, W); stands for `torch.nn.BatchNorm2d`."""


class GhostBatchNorm3d(_GhostBatchNorm, nn.BatchNorm3d):
    """`GhostBatchNorm1d` for x (N, C, D, H, W); stands for `torch.nn.BatchNorm3d`."""

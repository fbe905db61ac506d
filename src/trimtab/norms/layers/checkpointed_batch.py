"""BatchNorm that counts a batch once under activation checkpointing."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab._torch import in_backward
from trimtab.norms.layers._batch import BatchNormBase, batch_statistics, move_running


@torch.library.custom_op("trimtab::track_batch", mutates_args=("running_mean", "running_var", "seen"))
def _track(
    running_mean: Tensor, running_var: Tensor, seen: Tensor, mean: Tensor, unbiased: Tensor, momentum: float
) -> None:
    """Move the running statistics unless a backward pass is under way; a negative momentum is None.

    An operation, so that compiled code asks at each call and not once while it is compiled.
    """
    if not in_backward():
        move_running(running_mean, running_var, seen, mean, unbiased, None if momentum < 0.0 else momentum)


class _CheckpointedBatchNorm(BatchNormBase):
    def forward(self, input: Tensor) -> Tensor:
        """Normalize.

        Args:
            input: Shape (N, C, *).

        Returns:
            The shape of input.

        Raises:
            NormalizationError: If the input is not of the layer's shape.
        """
        self.require_input(input)
        if not self.tracks:
            return super().forward(input)  # type: ignore[no-any-return]
        compiling = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
        if compiling and self.num_batches_tracked is not None:
            return self._compiled(input)
        if not in_backward():
            return super().forward(input)  # type: ignore[no-any-return]
        # Momentum 0 leaves every bit of the buffers, and autograd saves what it saved the first time.
        return functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, True, 0.0, self.eps
        )

    def _compiled(self, x: Tensor) -> Tensor:
        values = x.shape[0] * x.shape[2:].numel()
        with torch.no_grad():
            mean, variance = batch_statistics(x)
            unbiased = variance * (values / max(values - 1, 1))
            momentum = -1.0 if self.momentum is None else self.momentum
            torch.ops.trimtab.track_batch(
                self.running_mean, self.running_var, self.num_batches_tracked, mean, unbiased, momentum
            )
        return functional.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)


class CheckpointedBatchNorm1d(_CheckpointedBatchNorm, nn.BatchNorm1d):
    """BatchNorm whose running statistics move once a step although checkpointing runs the forward pass twice.

    `torch.utils.checkpoint` runs a block again during the backward pass, and `nn.BatchNorm1d` counts the batch again:
    `num_batches_tracked` grows by 2 a step and the statistics move by 1 - (1 - momentum)² (pytorch#96136). Here a forward
    call inside a backward pass normalizes the same way and leaves the buffers alone, with use_reentrant true and false,
    nested, and around or inside compiled code. It follows that any forward call made on purpose inside a backward pass, in
    a hook, is not counted.

    The repair for running statistics that move twice a step (`stale-running-stats`, `train-eval-gap`).

    Constructor, state_dict and result are those of `torch.nn.BatchNorm1d`, and so is the cost.

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

    Raises:
        NormalizationError: If eps is not above zero.
    """


class CheckpointedBatchNorm2d(_CheckpointedBatchNorm, nn.BatchNorm2d):
    """`CheckpointedBatchNorm1d` for x (N, C, H, W); stands for `torch.nn.BatchNorm2d`."""


class CheckpointedBatchNorm3d(_CheckpointedBatchNorm, nn.BatchNorm3d):
    """`CheckpointedBatchNorm1d` for x (N, C, D, H, W); stands for `torch.nn.BatchNorm3d`."""

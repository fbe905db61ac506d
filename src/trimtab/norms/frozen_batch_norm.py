"""Batch normalization with statistics, weight and bias that nothing moves."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trimtab.norms._arguments import require_at_least, require_device_and_dtype, require_whole


class FrozenBatchNorm(nn.Module):
    """y = weight (x - running_mean) / sqrt(running_var + eps) + bias in both modes; nothing of it is trained or updated.

    A `BatchNorm` with `requires_grad=False` still moves its running statistics in training mode (pytorch#86590); this
    one holds all four vectors as buffers. It loads the state dict of a BatchNorm. The numbers are those of
    `nn.BatchNorm1d/2d/3d` in evaluation mode to the last bit, since the same kernel computes them.

    Args:
        num_features: Number of channels, C.
        eps: Added to the variance.
        device: Where the buffers lie.
        dtype: Their dtype.

    Shape:
        Input and output (N, C, ...), with any number of further axes.

    Raises:
        NormalizationError: If `num_features` is less than 1 or `eps` negative.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_whole(num_features=num_features)
        require_at_least(0.0, eps=eps)
        require_device_and_dtype(device, dtype)
        self.num_features = num_features
        self.eps = eps
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((num_features,), value, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift each channel.

        Args:
            x: Shape (N, C, ...).

        Returns:
            The same shape.
        """
        return functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )

    def extra_repr(self) -> str:
        """Returns channels and eps, for `print`."""
        return f"{self.num_features}, eps={self.eps}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.pop(prefix + "num_batches_tracked", None)  # of the BatchNorm that it once was
        super()._load_from_state_dict(state_dict, prefix, *rest)

"""Layers that PyTorch lacks, or has wrong or slow, with its signatures and state_dicts."""

from trimtab.norms.layers.batch_renorm import BatchRenorm1d, BatchRenorm2d, BatchRenorm3d
from trimtab.norms.layers.checkpointed_batch import (
    CheckpointedBatchNorm1d,
    CheckpointedBatchNorm2d,
    CheckpointedBatchNorm3d,
)
from trimtab.norms.layers.ghost_batch import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from trimtab.norms.layers.gradient_clipping import adaptive_clip_grad_, clip_gradients_adaptively
from trimtab.norms.layers.masked_batch import MaskedBatchNorm1d, MaskedBatchNorm2d, MaskedBatchNorm3d
from trimtab.norms.layers.rms import RMSNorm
from trimtab.norms.layers.weight_standardized import (
    WSConv1d,
    WSConv2d,
    WSConv3d,
    WSLinear,
    standardized_weight,
)

__all__ = [
    "BatchRenorm1d",
    "BatchRenorm2d",
    "BatchRenorm3d",
    "CheckpointedBatchNorm1d",
    "CheckpointedBatchNorm2d",
    "CheckpointedBatchNorm3d",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "GhostBatchNorm3d",
    "MaskedBatchNorm1d",
    "MaskedBatchNorm2d",
    "MaskedBatchNorm3d",
    "RMSNorm",
    "WSConv1d",
    "WSConv2d",
    "WSConv3d",
    "WSLinear",
    "adaptive_clip_grad_",
    "clip_gradients_adaptively",
    "standardized_weight",
]

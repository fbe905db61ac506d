"""Normalization: pure functions with explicit gradients, layers that PyTorch lacks, and what repairs of either are made of.

`functional` and `layers` are packages of their own. The standardizer's names load when they are first used, since its
estimator needs scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trimtab.errors import NormalizationError as NormalizationError
from trimtab.norms import functional as functional
from trimtab.norms import layers as layers
from trimtab.norms.auditing import Fact as Fact
from trimtab.norms.auditing import audit as audit
from trimtab.norms.auditing import momentum_for_updates as momentum_for_updates
from trimtab.norms.channel_layers import ChannelAffine as ChannelAffine
from trimtab.norms.channel_layers import ChannelLayerNorm as ChannelLayerNorm
from trimtab.norms.channel_layers import ChannelRMSNorm as ChannelRMSNorm
from trimtab.norms.converting import Converted as Converted
from trimtab.norms.converting import LayerChange as LayerChange
from trimtab.norms.converting import convert as convert
from trimtab.norms.folding import Folded as Folded
from trimtab.norms.folding import FoldedPair as FoldedPair
from trimtab.norms.folding import fold as fold
from trimtab.norms.frozen_batch_norm import FrozenBatchNorm as FrozenBatchNorm
from trimtab.norms.recalibration import LayerStatistics as LayerStatistics
from trimtab.norms.recalibration import Recalibrated as Recalibrated
from trimtab.norms.recalibration import UnequalBatchesWarning as UnequalBatchesWarning
from trimtab.norms.recalibration import recalibrate as recalibrate
from trimtab.norms.recommendation import Recommendation as Recommendation
from trimtab.norms.recommendation import recommend as recommend
from trimtab.norms.residual import DeepNormScale as DeepNormScale
from trimtab.norms.residual import Residual as Residual
from trimtab.norms.residual import deepnorm_scales as deepnorm_scales
from trimtab.norms.transformer import Transformer as Transformer
from trimtab.norms.transformer import TransformerLayer as TransformerLayer

if TYPE_CHECKING:
    from trimtab.norms.standardizer import Conditioning as Conditioning
    from trimtab.norms.standardizer import FoldReport as FoldReport
    from trimtab.norms.standardizer import Standardizer as Standardizer
    from trimtab.norms.standardizer import conditioning as conditioning

_LATER = ("Conditioning", "FoldReport", "Standardizer", "conditioning")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("trimtab.norms.standardizer"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})

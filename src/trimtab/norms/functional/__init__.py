"""Normalizations as pure functions, each with an explicit backward pass that gives every part of its gradient.

`NAME(...)` stands in for PyTorch's function; `NAME_forward(...)` returns all parts of the forward pass, from which
`NAME_backward(dy, parts)` computes all parts of the backward pass.

They are for diagnosis, masks and higher derivatives. Where PyTorch has a fused kernel, train with that: on one CPU core
these take four to nine times as long, forward and backward (RMS normalization 0.8 to 0.95 times).
"""

from trimtab.norms.functional._parts import Gradients as Gradients
from trimtab.norms.functional._parts import Normalized as Normalized
from trimtab.norms.functional._parts import SpectralGradients as SpectralGradients
from trimtab.norms.functional._parts import SpectralNormalized as SpectralNormalized
from trimtab.norms.functional._parts import WeightGradients as WeightGradients
from trimtab.norms.functional._parts import WeightNormalized as WeightNormalized
from trimtab.norms.functional.batch import batch_norm as batch_norm
from trimtab.norms.functional.batch import batch_norm_backward as batch_norm_backward
from trimtab.norms.functional.batch import batch_norm_forward as batch_norm_forward
from trimtab.norms.functional.group import group_norm as group_norm
from trimtab.norms.functional.group import group_norm_backward as group_norm_backward
from trimtab.norms.functional.group import group_norm_forward as group_norm_forward
from trimtab.norms.functional.group import instance_norm as instance_norm
from trimtab.norms.functional.group import instance_norm_backward as instance_norm_backward
from trimtab.norms.functional.group import instance_norm_forward as instance_norm_forward
from trimtab.norms.functional.layer import layer_norm as layer_norm
from trimtab.norms.functional.layer import layer_norm_backward as layer_norm_backward
from trimtab.norms.functional.layer import layer_norm_forward as layer_norm_forward
from trimtab.norms.functional.rms import rms_norm as rms_norm
from trimtab.norms.functional.rms import rms_norm_backward as rms_norm_backward
from trimtab.norms.functional.rms import rms_norm_forward as rms_norm_forward
from trimtab.norms.functional.spectral import spectral_norm as spectral_norm
from trimtab.norms.functional.spectral import spectral_norm_backward as spectral_norm_backward
from trimtab.norms.functional.spectral import spectral_norm_forward as spectral_norm_forward
from trimtab.norms.functional.spectral import spectral_state as spectral_state
from trimtab.norms.functional.weight import weight_norm as weight_norm
from trimtab.norms.functional.weight import weight_norm_backward as weight_norm_backward
from trimtab.norms.functional.weight import weight_norm_forward as weight_norm_forward

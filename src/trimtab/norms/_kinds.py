"""Which normalization a module is, and whether its forward is the one that its class is known for."""

import re

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from trimtab._torch import has_hooks
from trimtab.norms.frozen_batch_norm import FrozenBatchNorm
from trimtab.norms.layers._batch import BatchNormBase
from trimtab.norms.layers.rms import RMSNorm

BATCH_KINDS = ("batch_norm", "sync_batch_norm", "frozen_batch_norm")
ROW_KINDS = ("layer_norm", "rms_norm")  # of trailing axes; all others have their channels on axis 1
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
LINEAR_MAPS = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)

_KINDS: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.SyncBatchNorm, "sync_batch_norm"),
    (_BatchNorm, "batch_norm"),
    (FrozenBatchNorm, "frozen_batch_norm"),
    (_InstanceNorm, "instance_norm"),
    (nn.GroupNorm, "group_norm"),
    (nn.LayerNorm, "layer_norm"),
    (nn.RMSNorm, "rms_norm"),
)
_METHODS = ("forward", "_conv_forward")
_RANKS: dict[type[nn.Module], int] = {
    nn.BatchNorm2d: 4,
    nn.BatchNorm3d: 5,
    nn.InstanceNorm1d: 3,
    nn.InstanceNorm2d: 4,
    nn.InstanceNorm3d: 5,
}


def kind_of(module: nn.Module) -> str | None:
    """The kind of normalization, also of a subclass.

    Args:
        module: Any module.

    Returns:
        "batch_norm", "sync_batch_norm", "frozen_batch_norm", "instance_norm", "group_norm", "layer_norm", "rms_norm";
        None for anything else. Other libraries' FrozenBatchNorm2d is known by its name and its buffers.
    """
    for base, kind in _KINDS:
        if isinstance(module, base):
            return kind
    if type(module).__name__.startswith("FrozenBatchNorm"):
        names = {name for name, _ in module.named_buffers(recurse=False)}
        if {"weight", "bias", "running_mean", "running_var"} <= names and hasattr(module, "eps"):
            return "frozen_batch_norm"
    return None


def why_changed(module: nn.Module, own_class: bool = False) -> str | None:
    """Why a module may not do what its class is known for.

    Args:
        module: A normalization, linear layer or convolution.
        own_class: Whether a class with a forward of its own will do.

    Returns:
        Hooks, parametrizations, another forward, parameters that are not there yet; None where it is as PyTorch wrote it.
    """
    if parametrize.is_parametrized(module):
        return "its parameters are computed by parametrizations; remove_parametrizations first"
    if has_hooks(module):
        return "it has hooks, which see or change its input or output"
    if any(isinstance(p, UninitializedParameter) for p in module.parameters(recurse=False)):
        return "its parameters are not initialized; run a batch through the lazy layer first"
    if any(p.is_meta for p in module.parameters(recurse=False)):
        return "its parameters are on the meta device and have no values"
    if "forward" in module.__dict__:
        return "its forward was replaced"
    if not own_class and _overridden(module):
        return f"{type(module).__name__} has a forward of its own"
    return None


def rank_of(module: nn.Module) -> int | None:
    """How many axes the inputs of a normalization have, by its class.

    Args:
        module: A normalization.

    Returns:
        4 for a BatchNorm2d, also trimtab's and a subclass that checks its input as that does; None where the class leaves
        it open.
    """
    for base, rank in _RANKS.items():
        if isinstance(module, base):
            checks = (getattr(kind, "_check_input_dim", None) for kind in (type(module), base))
            return rank if next(checks) is next(checks) else None
    return None


def is_row_norm(module: nn.Module) -> bool:
    """Whether a module is, or by its name and parameters seems to be, a LayerNorm or an RMSNorm.

    Args:
        module: Any module.

    Returns:
        True for PyTorch's own, their subclasses, and classes such as LlamaRMSNorm with a weight and perhaps a bias.
    """
    if kind_of(module) in ROW_KINDS:
        return True
    held = dict(module.named_parameters(recurse=False))
    named = re.search("(RMS|Layer)Norm", type(module).__name__) is not None
    vectors = all(p.dim() == 1 for p in held.values()) and "weight" in held and held.keys() <= {"weight", "bias"}
    return named and vectors and not list(module.children())


def names_of(model: nn.Module, module: nn.Module) -> tuple[str, ...]:
    """Every name under which a module stands in a model.

    Args:
        model: The model.
        module: One of its modules.

    Returns:
        The names; more than one for a shared module.
    """
    return tuple(name for name, other in model.named_modules(remove_duplicate=False) if other is module)


def replace(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Put a module where another one stood.

    Args:
        model: The model, changed in place.
        name: A name in it, "" for the model itself.
        module: What is to stand there.

    Returns:
        The model: `module` itself where the name was "".
    """
    if not name:
        return module
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
    return model


def _overridden(module: nn.Module) -> bool:
    """Whether a subclass of somebody else's computes otherwise than the known class that it is derived from."""
    standard = next((base for base in type(module).__mro__ if _is_known(base)), None)
    if standard is None or not isinstance(module, (*LINEAR_MAPS, *(base for base, _ in _KINDS))):
        return False
    return any(getattr(type(module), name, None) is not getattr(standard, name, None) for name in _METHODS)


def _is_known(base: type) -> bool:
    """Whether it is PyTorch's, or one of trimtab's that computes the same: the batch layers in evaluation mode, unmasked."""
    ours = issubclass(base, (BatchNormBase, FrozenBatchNorm, RMSNorm)) and base.__module__.startswith("trimtab.norms.")
    return ours or base.__module__.startswith("torch.nn.")

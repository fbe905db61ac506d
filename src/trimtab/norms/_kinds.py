"""Which normalization a module is, and whether its forward is the one that its class is known for."""

import re

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from trimtab._torch import has_hooks
from trimtab.norms.frozen_batch_norm import FrozenBatchNorm

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
    known = next((b for b in (*LINEAR_MAPS, *(base for base, _ in _KINDS)) if isinstance(module, b)), None)
    if "forward" in module.__dict__:
        return "its forward was replaced"
    if known is not None and not own_class and _overridden(module, known):
        return f"{type(module).__name__} has a forward of its own"
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


def _overridden(module: nn.Module, known: type[nn.Module]) -> bool:
    standard = type(module) if type(module).__module__.startswith("torch.nn.") else known
    return any(getattr(type(module), name, None) is not getattr(standard, name, None) for name in _METHODS)

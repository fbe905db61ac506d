"""Layers and activations in the order in which their modules stand, for a model that is not run."""

import copy
import dataclasses
from dataclasses import dataclass

from torch import nn

from trimtab.initialization._weights import EMBEDDINGS, Shape, shape_of
from trimtab.norms._kinds import CONVOLUTIONS, TRANSPOSED, kind_of
from trimtab.norms.residual import Residual
from trimtab.propagation._activation import Activation
from trimtab.propagation._probe import RECURRENT
from trimtab.propagation.functions import as_activation

MIXING = (nn.Softmax, nn.Softmax2d, nn.Softmin, nn.LogSoftmax, nn.GLU, nn.MultiheadAttention)
CONTAINERS = (nn.Sequential, nn.ModuleList, Residual)


@dataclass(frozen=True, slots=True)
class Step:
    """One layer.

    Attributes:
        parameter: Its weight.
        shape: As products.
        activation: What stands before it.
        first: Whether it is fed with the input, or with an embedding or recurrent layer.
        normed: Whether a norm stands before it, or before its activation.
    """

    parameter: str
    shape: Shape
    activation: Activation | None
    first: bool
    normed: bool


def in_module_order(model: nn.Module) -> tuple[list[Step], tuple[str, ...]]:
    """Read the layers off the modules.

    Args:
        model: The model.

    Returns:
        The layers, and what the reader should know.
    """
    steps: list[Step] = []
    passed: list[nn.Module] = []
    first, normed = True, False
    own = [
        type(m).__name__
        for m in model.modules()
        if next(m.children(), None) is not None and not isinstance(m, CONTAINERS)
    ]
    for where, module in model.named_modules():
        if isinstance(module, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)):
            weight = f"{where}.weight".lstrip(".")
            if weight in dict(model.named_parameters()):
                steps.append(Step(weight, shape_of(module), _activation(passed), first, normed))
        elif isinstance(module, (*EMBEDDINGS, *RECURRENT)):
            passed, first, normed = [], True, False
            continue
        elif kind_of(module) is not None:
            passed, normed = [], True
            continue
        elif type(module).__module__ == "torch.nn.modules.activation" and not isinstance(module, MIXING):
            passed.append(module)
            continue
        else:
            continue
        passed, first, normed = [], False, False
    if not own:
        return steps, ()
    note = f"without a batch, what {own[0]}.forward does beside its modules is not seen: activations called as functions, skips"
    return steps, (note + "; give a batch",)


def _activation(modules: list[nn.Module]) -> Activation | None:
    """What one activation module, or several in a row, do to single units."""
    if not modules:
        return None
    own = [_of_single_units(module) for module in modules]
    name = " ".join(type(module).__name__.lower() for module in modules)
    return dataclasses.replace(as_activation(own[0] if len(own) == 1 else nn.Sequential(*own)), name=name)


def _of_single_units(module: nn.Module) -> nn.Module:
    own = copy.deepcopy(module).double().eval().cpu()
    if isinstance(own, nn.PReLU):  # of many channels: by their mean
        own.weight.data, own.num_parameters = own.weight.data.mean().reshape(1), 1
    return own

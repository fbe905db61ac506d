"""Layers and activations in the order in which their modules stand, for a model that is not run."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trimtab.norms._kinds import CONVOLUTIONS, TRANSPOSED, kind_of
from trimtab.norms.residual import Residual
from trimtab.propagation._activation import Activation
from trimtab.propagation._probe import RECURRENT
from trimtab.propagation.initialization._between import Function, activation_of
from trimtab.propagation.initialization._weights import EMBEDDINGS, Shape, shape_of

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
    names: list[str] = []
    functions: list[Function] = []
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
                activation = activation_of(" ".join(names), _chained(functions)) if names else None
                steps.append(Step(weight, shape_of(module), activation, first, normed))
        elif isinstance(module, (*EMBEDDINGS, *RECURRENT)):
            names, functions, first, normed = [], [], True, False
            continue
        elif kind_of(module) is not None:
            names, functions, normed = [], [], True
            continue
        elif type(module).__module__ == "torch.nn.modules.activation" and not isinstance(module, MIXING):
            names.append(type(module).__name__.lower())
            functions.append(_repeated(module))
            continue
        else:
            continue
        names, functions, first, normed = [], [], False, False
    if not own:
        return steps, ()
    note = f"without a batch, what {own[0]}.forward does beside its modules is not seen: activations called as functions, skips"
    return steps, (note + "; give a batch",)


def _repeated(module: nn.Module) -> Function:
    own = copy.deepcopy(module).double().eval().cpu()
    for parameter in own.parameters():
        parameter.requires_grad_(False)
    if isinstance(own, nn.PReLU):  # of many channels: by their mean
        own.weight.data = own.weight.data.mean().reshape(1)
    return lambda u: own(u.clone())


def _chained(functions: list[Function]) -> Function:
    def all_of_them(u: Tensor) -> Tensor:
        for function in functions:
            u = function(u)
        return torch.as_tensor(u)

    return all_of_them

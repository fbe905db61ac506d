"""Which weights may be set, how many products they take part in, and new values for them."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from trimtab.initialization._watching import CONVOLUTION, LinearMap
from trimtab.norms._kinds import CONVOLUTIONS, TRANSPOSED, kind_of
from trimtab.propagation._probe import RECURRENT
from trimtab.propagation.fans import fans, padded_fans

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True, slots=True)
class Shape:
    """A weight as products.

    Attributes:
        fan_in: Products that an output sums, on average over the outputs.
        matrices: Number, rows and columns of the matrices in the memory of the parameter.
    """

    fan_in: float
    matrices: tuple[int, int, int]


def reasons_to_leave(model: nn.Module) -> dict[str, str]:
    """Matrices and kernels that an initializer has no business with.

    Args:
        model: The model.

    Returns:
        Name and reason.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    owners: dict[int, list[tuple[str, nn.Module]]] = {}
    for where, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((where, module))
    left = {}
    for number, name in names.items():
        parameter, having = model.get_parameter(name), owners[number]
        if parameter.dim() > 1 and (reason := _reason(parameter, having)):
            left[name] = reason
    return left


def _reason(parameter: Tensor, having: list[tuple[str, nn.Module]]) -> str:
    modules = [module for _, module in having]
    if not parameter.requires_grad:
        return "frozen"
    if not parameter.is_floating_point():
        return f"its values are {str(parameter.dtype).removeprefix('torch.')}"
    if len(having) > 1:
        return f"tied: {' and '.join(where for where, _ in having)} share it"
    if any(kind_of(module) is not None for module in modules):
        return "of a norm"
    if any(isinstance(module, EMBEDDINGS) for module in modules):
        return "an embedding"
    if any(isinstance(module, RECURRENT) for module in modules):
        return "of a recurrent layer, whose gain along time is another matter"
    if any(
        isinstance(module, parametrize.ParametrizationList) or parametrize.is_parametrized(module) for module in modules
    ):
        return "a parametrization computes the weight from it"
    return ""


def shape_in_use(linear: LinearMap, parameter: Tensor) -> Shape:
    """The shape of a weight, from the operation that uses it: padding is zeros that count for nothing.

    Args:
        linear: The linear map.
        parameter: The weight, of which the map may use a view or a part.

    Returns:
        The shape.
    """
    if linear.node.name != CONVOLUTION:
        contracted = linear.weight.shape[-2 if linear.weight is not linear.arguments[0] else -1]
        many = parameter.shape[0] if parameter.dim() == 3 else 1
        return Shape(float(contracted), (many, parameter.numel() // many // parameter.shape[-1], parameter.shape[-1]))
    _, weight, _, stride, padding, dilation, transposed, _, groups = linear.arguments
    if transposed:
        return _kernel(weight, fans(weight.shape, stride, groups, transposed=True)[0], groups)
    size = linear.given.shape[2:] if linear.given.dim() == weight.dim() else linear.given.shape[1:]
    return _kernel(weight, padded_fans(weight.shape, size, stride, padding, dilation, groups)[0], groups)


def shape_of(module: nn.Module) -> Shape:
    """The shape of a layer's weight, from the layer alone: an image without edges.

    Args:
        module: A linear layer or a convolution.

    Returns:
        The shape.
    """
    weight = module.get_parameter("weight")
    if not isinstance(module, (*CONVOLUTIONS, *TRANSPOSED)):
        return Shape(float(weight.shape[-1]), (1, weight.shape[0], weight.shape[-1]))
    return _kernel(weight, fans(weight.shape, module.stride, module.groups, module.transposed)[0], module.groups)


def _kernel(weight: Tensor, fan_in: float, groups: int) -> Shape:
    return Shape(fan_in, (groups, weight.shape[0] // groups, weight[0].numel()))


def drawn(shape: Shape, like: Tensor, orthogonal: bool, generator: torch.Generator) -> Tensor:
    """Weights of mean square 1: independent Gaussians, or orthonormal rows or columns, whichever are fewer.

    An orthogonal matrix is drawn uniformly: Q of a Gaussian one, with the signs of R's diagonal (Mezzadri 2007,
    arXiv:math-ph/0609050). The kernel of a convolution is taken as one matrix a group, as by Saxe et al. (2014,
    arXiv:1312.6120), and as torch.nn.init.orthogonal_ does.

    Args:
        shape: The shape in products.
        like: The parameter.
        orthogonal: Whether they are orthogonal.
        generator: On the CPU, so that every device gets the same numbers.

    Returns:
        Values of the parameter's shape, float64 on the CPU.
    """
    values = torch.randn(shape.matrices, generator=generator, dtype=torch.float64)
    if orthogonal:
        wide = values.shape[1] < values.shape[2]
        q, r = torch.linalg.qr(values.mT if wide else values)
        q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]
        values = (q.mT if wide else q) * max(values.shape[1:]) ** 0.5
    return values.reshape(like.shape)

"""The squared norms of every sample's own gradient, layer by layer, from one backward pass to the layers' outputs.

With a the input of a layer and d the gradient at its output, the gradient of a linear layer's weight for sample n is d_n' a_n, so

    |d_n' a_n|^2 = |d_n|^2 |a_n|^2,     and over positions t of a sequence or an image   sum_tt' (a_t.a_t') (d_t.d_t')

so the gradient itself, one matrix a sample, is only formed where that is less work (Goodfellow 2015, arXiv 1510.01799; Li et al. 2022,
arXiv 2110.05679). Other modules are run once more on each sample's own input, under vmap, which any layer allows whose output for a
sample depends on that sample alone.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

Norms = Callable[[Tensor], dict[str, float]]
NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


def gradient_norms(module: nn.Module, given: Tensor, output: Tensor, parameters: dict[str, Tensor]) -> Norms | None:
    """What gives the squared norms of the gradients of a layer's own parameters.

    Args:
        module: The layer.
        given: Its input, samples along the first axis.
        output: What it returned.
        parameters: Those that are wanted, by their names in the layer, with the values the layer was run with.

    Returns:
        A function of the gradient at the layer's output: the sum over samples of |gradient of sample n|^2, by parameter. None
        where the layer cannot be run on a sample alone, or returns something else for it then.
    """
    forward = type(module).forward
    if isinstance(module, NORMS) and forward in {kind.forward for kind in NORMS}:
        return _norm(module, given, output, parameters)
    if forward is nn.Linear.forward:
        return _linear(given, parameters)
    if (
        isinstance(module, nn.Conv2d)
        and forward is nn.Conv2d.forward
        and module.groups == 1
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    ):
        return _convolution(module, given, parameters)
    return _any_layer(module, given, output, parameters)


def _linear(given: Tensor, parameters: dict[str, Tensor]) -> Norms:
    a = given.reshape(len(given), -1, given.shape[-1])
    if a.shape[1] > 1:
        return lambda d: _outer(a, d.reshape(len(a), -1, d.shape[-1]), parameters)
    squares = _square_norms(a.flatten(1))

    def norms(d: Tensor) -> dict[str, float]:
        each = _square_norms(d.flatten(1))
        sums = {"weight": lambda: float(each @ squares), "bias": lambda: float(each.sum())}
        return {name: sums[name]() for name in parameters}

    return norms


def _convolution(module: nn.Conv2d, given: Tensor, parameters: dict[str, Tensor]) -> Norms:
    padding: Any = module.padding
    a = nn.functional.unfold(given, module.kernel_size, module.dilation, padding, module.stride).transpose(1, 2)

    def norms(d: Tensor) -> dict[str, float]:
        return _outer(a, d.flatten(2).transpose(1, 2), parameters)

    return norms


def _outer(a: Tensor, d: Tensor, parameters: dict[str, Tensor]) -> dict[str, float]:
    """Of weight and bias, for inputs (N, T, p) and gradients (N, T, q) at T positions."""
    found = {}
    positions, p, q = a.shape[1], a.shape[2], d.shape[2]
    if "weight" in parameters:
        small = positions * (p + q) < p * q
        each = ((a @ a.mT) * (d @ d.mT)).sum((1, 2)) if small else _square_norms((d.mT @ a).flatten(1))
        found["weight"] = float(each.double().sum())
    if "bias" in parameters:
        found["bias"] = float(d.sum(1).square().double().sum())
    return found


def _norm(module: nn.Module, given: Tensor, output: Tensor, parameters: dict[str, Tensor]) -> Norms | None:
    """The output is weight * x + bias, x the normalized input: the gradient of the weight is d x, of the bias d, over all positions."""
    plain = {name: torch.full_like(p, 1.0 if name == "weight" else 0.0) for name, p in module.named_parameters()}
    if getattr(module, "training", False) and isinstance(module, nn.modules.batchnorm._BatchNorm):
        return None  # x depends on the other samples
    with torch.no_grad():
        x = functional_call(module, plain, (given,))
    count = len(x)
    wide = next(iter(plain.values())).numel()
    trailing = isinstance(module, (nn.LayerNorm, nn.RMSNorm))

    def arranged(t: Tensor) -> Tensor:
        """(N, positions, entries of the weight), or (N, entries) where there is one position."""
        t = t.reshape(count, -1, wide) if trailing else t.flatten(2).mT if t.ndim > 2 else t
        return t.flatten(1) if t.ndim == 3 and t.shape[1] == 1 else t

    x = arranged(x)

    def norms(d: Tensor) -> dict[str, float]:
        d = arranged(d)
        slopes = {"weight": d * x, "bias": d} if "weight" in parameters else {"bias": d}
        each = {name: _square_norms(s if s.ndim == 2 else s.sum(1)) for name, s in slopes.items()}
        return {name: float(each[name].sum()) for name in parameters}

    return norms


def _any_layer(module: nn.Module, given: Tensor, output: Tensor, parameters: dict[str, Tensor]) -> Norms | None:
    values = {name: value.detach() for name, value in parameters.items()}

    def run(chosen: dict[str, Tensor], a: Tensor) -> Tensor:
        result: Tensor = functional_call(module, chosen, (a[None],))
        return result[0]

    try:
        with torch.no_grad():
            alone = vmap(lambda a: run(values, a))(given)
    except Exception:  # no vmap for it, no sample alone: whatever a layer of the user's own may raise
        return None
    tolerance = 100 * torch.finfo(output.dtype).eps * float(output.detach().abs().max())
    if alone.shape != output.shape or not float((alone - output.detach()).abs().max()) <= tolerance:
        return None

    def of_one(a: Tensor, d: Tensor) -> dict[str, Tensor]:
        (pulled,) = vjp(lambda chosen: run(chosen, a), values)[1](d)
        return {name: g.square().sum() for name, g in pulled.items()}

    def norms(d: Tensor) -> dict[str, float]:
        with torch.no_grad():
            each = vmap(of_one)(given, d)
        return {name: float(values.double().sum()) for name, values in each.items()}

    return norms


def _square_norms(rows: Tensor) -> Tensor:
    """Of each row, in float64; `vector_norm` reads the rows once, but adds up long ones carelessly in float32."""
    if rows.shape[1] <= 4096:
        lengths: Tensor = torch.linalg.vector_norm(rows, dim=1).double()
        return lengths.square()
    return rows.square().sum(1).double()

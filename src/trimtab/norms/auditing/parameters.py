"""Parameters of normalizations and of other layers: decay, biases without effect, vectors of spectral normalization."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm

from trimtab.errors import NormalizationError
from trimtab.norms._kinds import LINEAR_MAPS, kind_of
from trimtab.norms._passes import copy_of
from trimtab.norms.auditing._fact import Fact, View, called
from trimtab.norms.folding._wiring import wire

LARGEST_LENGTH_ERROR = (
    0.01  # of |u| |v|, and so of the weight in evaluation: above what rounding in half precision makes
)


def parameter_facts(view: View) -> Iterator[Fact]:
    """Weight decay on norm parameters, biases that a normalization takes off again, vectors that lost their length.

    Args:
        view: What to look at.

    Yields:
        The facts.
    """
    yield from _decay(view)
    yield from _biases(view)
    yield from _spectral(view)


def _decay(view: View) -> Iterator[Fact]:
    decay = {
        id(p): float(group.get("weight_decay", 0.0))
        for optimizer in view.optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    }
    for name, norm in view.norms.items():
        found = {n: decay[id(p)] for n, p in norm.named_parameters(recurse=False) if id(p) in decay}
        if not found:
            continue
        most = max(found.values())
        text = f"{called(name)}: weight decay {most:g} on {' and '.join(found)}, 0 expected"
        if most > 0:
            text += ": decay pulls the scale to 0 and with it the signal; give norm parameters a group of their own"
        yield Fact("decay-on-norm", name, most, "0", text, most > 0)


def _biases(view: View) -> Iterator[Fact]:
    """Yields a fact where the source of a normalization is known to be a linear map."""
    try:
        twin = copy_of(view.model)
    except NormalizationError:  # whether there is such a bias is then not known
        return
    wiring = wire(twin.eval(), view.example)  # in evaluation mode no batch is too small
    for name, norm in view.norms.items():
        wired = wiring.wires.get(name)
        if wired is None or wired.source is None or not _takes_off_a_constant(norm):
            continue
        layer = view.model.get_submodule(wired.source)
        if not isinstance(layer, LINEAR_MAPS) or wiring.wires.get(wired.source) is None:
            continue
        alone = wiring.wires[wired.source].users == (name,)
        has = isinstance(layer.bias, Tensor) and alone
        text = f"{called(name)} stands behind {wired.source}, which has {'a' if has else 'no'} bias"
        text += (
            f": its gradient is zero, bias=False saves {layer.bias.numel()} parameters"
            if has and layer.bias is not None
            else ""
        )
        yield Fact("bias-before-norm", name, has, "False", text, False)  # harmless, if of no use


def _spectral(view: View) -> Iterator[Fact]:
    """Yields a fact for each weight under PyTorch's spectral_norm: in evaluation u and v are used at the length they have."""
    for name, part in view.model.named_modules():
        for tensor, steps in getattr(part, "parametrizations", {}).items():
            for step in steps:
                if not isinstance(step, _SpectralNorm) or not hasattr(step, "_u") or step._u.is_meta:
                    continue
                lengths = [float(torch.linalg.vector_norm(vector.double())) for vector in (step._u, step._v)]
                product = lengths[0] * lengths[1]
                amiss = not abs(product - 1.0) <= LARGEST_LENGTH_ERROR
                place = f"{name}.{tensor}" if name else tensor
                text = (
                    f"{place}: u and v of its spectral norm are {lengths[0]:.3g} and {lengths[1]:.3g} long, 1 expected"
                )
                if amiss:
                    text += f": evaluation takes sigma {product:.3g} times as large; bring them to length 1, or train a step"
                yield Fact("spectral-vectors", name, product, "1", text, amiss)


def _takes_off_a_constant(norm: nn.Module) -> bool:
    """Whether a constant added to a channel is taken off again."""
    kind = kind_of(norm)
    if kind in ("batch_norm", "sync_batch_norm", "instance_norm"):
        return norm.training or not isinstance(norm.running_mean, Tensor)
    return isinstance(norm, nn.GroupNorm) and norm.num_groups == norm.num_channels

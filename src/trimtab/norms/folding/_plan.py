"""What a fold is before it is made: the modules that change, and the chains that show whether it is exact."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trimtab.errors import NormalizationError
from trimtab.norms._kinds import names_of, rank_of, why_changed
from trimtab.norms.folding._wire import Wire
from trimtab.norms.folding._wiring import Wiring


class Refused(Exception):  # noqa: N818 -- a reason that is carried to the result, no error of the caller's
    """A fold would not be exact, or cannot be shown to be."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One fold.

    Attributes:
        kind: "batch_norm", "affine" or "centring".
        names: The modules it concerns, in the order of the data.
        new: What stands in their places afterwards.
        chains: Names of modules, applied one after the other, whose outcome must stay the same.
    """

    kind: str
    names: tuple[str, ...]
    new: dict[str, nn.Module]
    chains: tuple[tuple[str, ...], ...]


def wire_of(model: nn.Module, wiring: Wiring, name: str, own_class: bool = False) -> Wire:
    """The wire of a module that may be changed.

    Args:
        model: The model.
        wiring: Its wiring.
        name: The module.
        own_class: Whether a class with a forward of its own will do.

    Returns:
        Its one call.

    Raises:
        Refused: If the module is shared, tied, hooked, changed, or its place is not known.
    """
    module = model.get_submodule(name)
    if len(names := names_of(model, module)) > 1:
        raise Refused(f"{name} is shared: the same module is {' and '.join(names)}")
    if reason := why_changed(module, own_class):
        raise Refused(f"{name}: {reason}")
    if tied := _tied_to(model, module):
        raise Refused(f"{name}: its parameters are tied to those of {tied}")
    if name in wiring.problems:
        raise Refused(f"{name}: {wiring.problems[name]}")
    if name not in wiring.wires:
        hint = "" if wiring.example else "; an example may help"
        raise Refused(f"{name}: no call of it was seen in a traced forward, so its neighbours are not known{hint}")
    return wiring.wires[name]


def stand_in(norm: nn.Module, name: str, rank: int, wiring: Wiring) -> nn.Module:
    """What stands where a normalization was folded away.

    Args:
        norm: The normalization.
        name: Its name.
        rank: The number of axes of the inputs for which the fold is exact.
        wiring: What was seen of the model.

    Returns:
        An identity; where neither the layer's class nor an example has shown the rank, one that insists on it.

    Raises:
        Refused: If the layer normalizes inputs of another rank.
    """
    fixed = rank_of(norm)
    ranks = {fixed} if fixed else wiring.ranks.get(name, set())
    if ranks and ranks != {rank}:
        shown = ", ".join(map(str, sorted(ranks)))
        raise Refused(f"{name} normalizes axis 1 of inputs with {shown} axes; the fold is exact for {rank} axes")
    new: nn.Module = nn.Identity() if ranks else FixedRank(rank)
    return new.train(norm.training)


class FixedRank(nn.Identity):
    """An identity that insists on the number of axes for which a folded normalization was exact.

    A BatchNorm1d normalizes axis 1 of (N, C) and of (N, C, L); what it is folded into computes the first only.

    Args:
        rank: The number of axes.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def forward(self, x: Tensor) -> Tensor:
        """Hand the input on.

        Args:
            x: The input.

        Returns:
            The input.

        Raises:
            NormalizationError: If it has another number of axes.
        """
        if isinstance(x, Tensor) and x.dim() != self.rank:
            raise NormalizationError(
                f"the input has {x.dim()} axes; the normalization folded away here was folded for {self.rank}: "
                "fold again, with an example"
            )
        return x

    def extra_repr(self) -> str:
        """Returns the rank, for `print`."""
        return f"rank={self.rank}"


def with_parameters(module: nn.Module, weight: Tensor | None, bias: Tensor | None) -> None:
    """Give a module new weight and bias of the old dtype, device and `requires_grad`.

    Args:
        module: A linear map, changed in place; where it has no bias, it gets one that trains as its weight does.
        weight: Float64, None to keep the old one.
        bias: Float64, None to keep the old one.

    Raises:
        Refused: If a value does not fit into the dtype.
    """
    old = module.weight
    assert isinstance(old, Tensor)
    for name, value in (("weight", weight), ("bias", bias)):
        if value is None:
            continue
        before = getattr(module, name)
        like = old if before is None else before
        fitted = value.to(device=like.device, dtype=like.dtype)
        if not bool(torch.isfinite(fitted).all()):
            raise Refused(f"the folded {name} is not finite in {like.dtype}")
        setattr(module, name, nn.Parameter(fitted.contiguous(), requires_grad=like.requires_grad))


def float64(values: Tensor | None, like: Tensor, fill: float) -> Tensor:
    """A vector in float64 on the CPU, where folds are computed.

    Args:
        values: The vector; None for a constant.
        like: What has the shape of that constant.
        fill: The constant.

    Returns:
        Float64.
    """
    if values is None:
        return torch.full(like.shape, fill, dtype=torch.float64, device="cpu")
    return values.detach().double().cpu()


def _tied_to(model: nn.Module, module: nn.Module) -> str | None:
    own = {id(p) for p in module.parameters(recurse=False)}
    for name, other in model.named_modules():
        if other is not module and own & {id(p) for p in other.parameters(recurse=False)}:
            return name or "the model itself"
    return None

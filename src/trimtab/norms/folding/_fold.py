"""Fold normalizations into the linear layers beside them, with a proof for each."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import require_names, require_values
from trimtab.norms._kinds import BATCH_KINDS, is_row_norm, kind_of, replace
from trimtab.norms._passes import copy_of
from trimtab.norms.folding._plan import Plan, Refused
from trimtab.norms.folding._trace import closed_parts
from trimtab.norms.folding._verify import verify_model, verify_pair
from trimtab.norms.folding._wiring import Wiring, wire
from trimtab.norms.folding.affine import plan_affine
from trimtab.norms.folding.batch_norm import plan_batch_norm
from trimtab.norms.folding.centring import plan_centring

_Planner = Callable[[nn.Module, Wiring, str], Plan]
_PLANNERS: dict[
    str, tuple[Callable[[nn.Module], bool], _Planner]
] = {  # in this order: centring needs the bias to be gone
    "batch_norm": (lambda module: kind_of(module) in BATCH_KINDS, plan_batch_norm),
    "affine": (is_row_norm, plan_affine),
    "centring": (lambda module: kind_of(module) == "layer_norm", plan_centring),
}


@dataclass(frozen=True, slots=True)
class FoldedPair:
    """One fold that was made.

    Attributes:
        kind: "batch_norm", "affine" or "centring".
        names: The modules it concerns, in the order of the data.
        difference: Largest difference between them before and after, on random inputs in float64.
        traced: Whether it was read from a trace that they follow each other; otherwise it was seen on the example.
    """

    kind: str
    names: tuple[str, ...]
    difference: float
    traced: bool


@dataclass(frozen=True, slots=True)
class Folded:
    """A model with its normalizations folded.

    Attributes:
        model: The new model; the old one is untouched.
        pairs: The folds that were made, in the order in which they were made.
        max_difference: max |f(x) - g(x)| of the whole model on the example, in the model's own dtype; without an example
            the largest `difference` of the pairs.
        refused: Module names and the reason, for each fold that was not made.
        verified_on: "example" or "pairs": what `max_difference` was measured on.
    """

    model: nn.Module
    pairs: tuple[FoldedPair, ...]
    max_difference: float
    refused: tuple[tuple[tuple[str, ...], str], ...]
    verified_on: str


def fold(
    model: nn.Module,
    example: Any | None = None,
    *,
    kinds: Sequence[str] = ("batch_norm", "affine", "centring"),
) -> Folded:
    """Fold normalizations into the linear maps beside them, where that leaves the function what it is.

    - "batch_norm": batch normalization in evaluation mode into the linear layer, convolution or transposed convolution
      (grouped ones too) before it, or into those after it. After it, padding with zeros makes it inexact at the border,
      unless the layer shifts nothing, and it is refused; reflect, replicate and circular padding are exact.
    - "affine": weight and bias of LayerNorm and RMSNorm into all linear layers that take the output. Also in training
      mode.
    - "centring": LayerNorm to RMSNorm by centring the linear layer before it. Saves the mean; on a CPU PyTorch's RMSNorm
      is slower than its LayerNorm all the same.

    Who follows whom is read from a torch.fx trace. Parts of a model that cannot be traced need an example: there the calls
    are counted and every use of every module's output is seen, so that a fold is right for the way that the model takes
    on the example (`traced` is False where that was the only witness). Each fold is checked in float64 on random inputs, the whole model on the example. Whatever is
    not exact, or cannot be shown to be, is refused with a reason: shared modules (pytorch#197539), tied parameters, more
    than one user, training mode, no statistics, hooks, parametrizations, another layer between. Hooks of other modules run
    while the model is traced and compared; what they note is taken back.

    Args:
        model: The model; a copy of it is folded.
        example: What the model is called with: a tensor, a tuple of positional arguments or a mapping of keyword
            arguments; None for none.
        kinds: Which folds to make.

    Returns:
        The folded model, what was folded and what was not.

    Raises:
        NormalizationError: If the model is no module or cannot be copied, a kind is unknown, or the model returns for
            the example no floating tensor or no finite number.
    """
    kinds = require_names("kinds", kinds, "folds")
    if unknown := [kind for kind in kinds if kind not in _PLANNERS]:
        raise NormalizationError(f"kinds holds {unknown[0]!r}; known are {', '.join(map(repr, _PLANNERS))}")
    folded = copy_of(model)
    if example is not None:
        require_values(model)
    wiring = wire(copy.deepcopy(model), example)
    refused: list[tuple[tuple[str, ...], str]] = []
    made: list[tuple[Plan, float]] = []
    for kind in (kind for kind in _PLANNERS if kind in kinds):
        suits, planner = _PLANNERS[kind]
        for name in [n for n, module in folded.named_modules() if suits(module)]:
            try:
                plan, worst = _checked(folded, wiring, name, planner)
            except Refused as reason:
                refused.append(((name,), str(reason)))
                continue
            folded = _apply(folded, plan.new)
            made.append((plan, worst))
    if example is None:
        if made and closed_parts(copy.deepcopy(folded)) - closed_parts(copy.deepcopy(model)):
            refused += [(plan.names, "the model reads something of a layer that would be gone") for plan, _ in made]
            folded, made = copy_of(model), []
        return Folded(
            folded, _pairs(made, wiring), max((worst for _, worst in made), default=0.0), tuple(refused), "pairs"
        )
    largest, allowed = verify_model(copy.deepcopy(model), copy.deepcopy(folded), example)
    if not largest <= allowed:
        folded, made, largest = _one_by_one(model, made, example, refused)
    return Folded(folded, _pairs(made, wiring), largest, tuple(refused), "example")


def _checked(model: nn.Module, wiring: Wiring, name: str, planner: _Planner) -> tuple[Plan, float]:
    """Returns a fold that has been tried, and the largest difference it makes."""
    plan = planner(model, wiring, name)
    worst, allowed = verify_pair(model, plan)
    if not worst <= allowed:
        raise Refused(f"the outputs of {' and '.join(plan.names)} differ by {worst:.2g} after folding")
    return plan, worst


def _one_by_one(
    model: nn.Module, plans: list[tuple[Plan, float]], example: Any, refused: list[tuple[tuple[str, ...], str]]
) -> tuple[nn.Module, list[tuple[Plan, float]], float]:
    """Returns the model with only those folds that leave its output on the example as it was."""
    folded, made, last = copy.deepcopy(model), list[tuple[Plan, float]](), 0.0
    for plan, worst in plans:
        if any(set(plan.names) & set(other) for other, _ in refused):
            refused.append((plan.names, "it builds on a fold that changed the output of the model"))
            continue
        tried = _apply(copy.deepcopy(folded), plan.new)
        largest, allowed = verify_model(copy.deepcopy(model), copy.deepcopy(tried), example)
        if largest <= allowed:
            folded, last = tried, largest
            made.append((plan, worst))
        else:
            how_far = f"by {largest:.2g}" if math.isfinite(largest) else "in shape or finiteness"
            reason = (
                f"the output of the model on the example changes {how_far}: the parts are used in another way as well"
            )
            refused.append((plan.names, reason))
    return folded, made, last


def _apply(model: nn.Module, new: dict[str, nn.Module]) -> nn.Module:
    for name, module in new.items():
        model = replace(model, name, copy.deepcopy(module))
    return model


def _pairs(made: list[tuple[Plan, float]], wiring: Wiring) -> tuple[FoldedPair, ...]:
    return tuple(
        FoldedPair(plan.kind, plan.names, worst, wiring.observed.isdisjoint(plan.names)) for plan, worst in made
    )

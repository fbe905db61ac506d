"""How large residual branches are beside the stream that they are added to."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.lot import some_number, some_of
from trimtab.repairs.named import listed, loop_over, module_at
from trimtab.repairs.one_pass import branch_ends
from trimtab.repairs.patient import Patient
from trimtab.repairs.surgery import adopt, slow_path
from trimtab.report import Finding, Repair


class Times:
    """A hook that multiplies what a module gives, kept by value so that the model can be copied and pickled."""

    def __init__(self, factor: float | None) -> None:
        self.factor = factor

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """The output times the factor."""
        factor: Any = module.branch_scale if self.factor is None else self.factor
        if isinstance(output, Tensor):
            return output * factor
        return (output[0] * factor, *output[1:])  # attention and its weights


def scale_branches(setup: Setup, *, layers: Sequence[str], factor: float) -> None:
    """Multiply what the last layer of each branch gives with a constant."""
    for layer in _spoken(setup.model, layers):
        layer.register_forward_hook(Times(factor))
    slow_path(setup)


def rezero(setup: Setup, *, layers: Sequence[str], start: float = 0.0) -> None:
    """Multiply what the last layer of each branch gives with a learnt factor."""
    for layer in _spoken(setup.model, layers):
        like = next(layer.parameters())
        layer.register_parameter(
            "branch_scale", nn.Parameter(torch.full((), start, device=like.device, dtype=like.dtype))
        )
        layer.register_forward_hook(Times(None))
        adopt(setup, [layer.branch_scale])  # type: ignore[list-item]
    slow_path(setup)


def _spoken(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """The modules whose output is the branch's: an attention in place of its last layer, which it calls as a function."""
    found = []
    for name in names:
        parent = name.rpartition(".")[0]
        held = model.get_submodule(parent)
        found.append(held if isinstance(held, nn.MultiheadAttention) else module_at(model, name, (nn.Module,)))
    if any(hasattr(module, "branch_scale") for module in found):
        raise RepairError("the branches have a factor already")
    return found


def _tell_scale(*, layers: Sequence[str], factor: float) -> Repair:
    code = loop_over(
        layers,
        f"layer.register_forward_hook(lambda module, args, output: output * {factor:.6g})  # or x + {factor:.6g} * branch(x) in forward",
    )
    return Repair(f"multiply the residual branches that end in {listed(layers)} by {factor:.3g}", code)


def _tell_rezero(*, layers: Sequence[str], start: float = 0.0) -> Repair:
    code = loop_over(
        layers,
        f"layer.branch_scale = torch.nn.Parameter(torch.tensor({float(start)!r}))",
        "layer.register_forward_hook(lambda module, args, output: output * module.branch_scale)",
    )
    return Repair(
        f"multiply the residual branches that end in {listed(layers)} by a learnt factor that starts at {start:.3g} (ReZero)",
        f"{code}\n# before the optimizer is made",
    )


def _grown(finding: Finding, patient: Patient) -> Iterator[Change]:
    """1/sqrt(branches), after which the stream grows by a factor below e (De and Smith 2020), or branches that start shut."""
    try:
        ends = branch_ends(patient.setup, finding.where)
    except RepairError:
        return
    yield Change("scale-branches", {"layers": ends, "factor": float(f"{len(ends) ** -0.5:.4g}")})
    yield Change("rezero", {"layers": ends})
    yield Change("scale-branches", {"layers": ends, "factor": float(f"{1 / len(ends):.4g}")})


def _some_ends(patient: Patient, rng: random.Random) -> list[str] | None:
    try:
        return some_of(branch_ends(patient.setup), rng)
    except RepairError:
        return None


def _some_scale(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    ends = _some_ends(patient, rng)
    return None if ends is None else {"layers": ends, "factor": some_number(rng)}


def _some_rezero(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    ends = _some_ends(patient, rng)
    return None if ends is None else {"layers": ends, "start": rng.choice((0.0, some_number(rng)))}


KINDS = {
    "scale-branches": Kind(scale_branches, _tell_scale, _some_scale),
    "rezero": Kind(rezero, _tell_rezero, _some_rezero),
}

ANSWERS = {"residual-growth": _grown}

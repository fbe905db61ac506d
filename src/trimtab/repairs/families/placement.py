"""Where norms stand in residual blocks: behind the sums, or inside the branches with one behind the stack (pre-norm)."""

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.errors import RepairError
from trimtab.norms import deepnorm_scales
from trimtab.norms._kinds import kind_of
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.deep_norm import to_deep_norm
from trimtab.repairs.lot import some_number, some_of
from trimtab.repairs.named import listed, loop_over, module_at
from trimtab.repairs.patient import Patient
from trimtab.repairs.pre_norm import to_pre_norm
from trimtab.repairs.surgery import adopt, slow_path
from trimtab.report import Finding, Repair

TORCH = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
STACKS = (nn.TransformerEncoder, nn.TransformerDecoder)

# torch's own layers ---------------------------------------------------------------------------------------------------


def norm_first(setup: Setup, *, layers: Sequence[str]) -> None:
    """Set `norm_first` of torch's transformer layers, and put a norm behind a stack that has none.

    Raises:
        RepairError: They have it already.
    """
    found = [module_at(setup.model, name, TORCH) for name in layers]
    if all(layer.norm_first for layer in found):
        raise RepairError(f"{listed(layers)} is pre-norm already")
    for layer in found:
        layer.norm_first = True
    for stack in (m for m in setup.model.modules() if isinstance(m, STACKS) and any(x in found for x in m.layers)):
        if stack.norm is None:
            stack.norm = _new_norm(setup, stack.layers[-1].get_submodule("norm1"))
    for name in _last_of_each(setup.model, layers):
        layer = setup.model.get_submodule(name)
        layer.add_module("last_norm", _new_norm(setup, layer.get_submodule("norm1")))
        layer.register_forward_hook(_behind)
    slow_path(setup)


def _last_of_each(model: nn.Module, layers: Sequence[str]) -> list[str]:
    """The last layer of each run of layers that stand side by side in no stack of torch's."""
    stacked = {id(layer) for stack in model.modules() if isinstance(stack, STACKS) for layer in stack.layers}
    last = {name.rpartition(".")[0]: name for name in layers if id(model.get_submodule(name)) not in stacked}
    return list(last.values())


def _behind(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    normed: Tensor = module.get_submodule("last_norm")(output)
    return normed


def _new_norm(setup: Setup, like: nn.Module) -> nn.Module:
    """A norm like another, with the same start."""
    norm = copy.deepcopy(like)
    adopt(setup, norm.parameters())
    return norm


def _tell_first(*, layers: Sequence[str]) -> Repair:
    code = loop_over(layers, "layer.norm_first = True   # or norm_first=True where it is made")
    return Repair(
        f"put the norms of {listed(layers)} inside the branches, and one behind the stack (pre-norm)",
        f"{code}\nencoder.norm = torch.nn.LayerNorm(d_model)   # norm=torch.nn.LayerNorm(d_model) of nn.TransformerEncoder or nn.TransformerDecoder",
    )


def _tell_pre(*, norms: Sequence[str]) -> Repair:
    blocks = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in norms))
    return Repair(
        f"move {listed(norms)} from behind the sums into the branches, and put one norm behind the stack (pre-norm)",
        f"# in forward, for each of {blocks}:\n"
        "x = x + branch(norm(x))   # in place of x = norm(x + branch(x))\n"
        "# and once, behind the last block:\n"
        "x = last_norm(x)          # torch.nn.LayerNorm(width)",
    )


def _tell_deep(*, norms: Sequence[str], alpha: float, beta: float) -> Repair:
    return Repair(
        f"weigh the stream {alpha:.3g} times in front of {listed(norms)} and start the branches {beta:.3g} times as large (DeepNorm)",
        f"x = norm({alpha:.6g} * x + branch(x))   # in forward, in place of norm(x + branch(x))\n"
        f"weight.data *= {beta:.6g}              # of each layer in a branch, but those that make queries and keys",
    )


# What to try ----------------------------------------------------------------------------------------------------------


def _torch_layers(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, TORCH) and not module.norm_first]


def _post_norms(model: nn.Module, where: Sequence[str] = ("",)) -> list[str]:
    """Norms of the user's own blocks, at the places of a finding."""
    held = tuple(f"{name}." for name in _torch_layers(model))
    modules = dict(model.named_modules())
    named = modules if "" in where else [name for name in where if name in modules]
    return [name for name in named if kind_of(modules[name]) is not None and not name.startswith(held)]


def _inside(finding: Finding, patient: Patient) -> Iterator[Change]:
    if len(finding.where) < 2:
        return  # the last norm before the loss, which is to be left out
    layers, norms = _torch_layers(patient.model), _post_norms(patient.model, finding.where)
    if layers:
        yield Change("norm-first", {"layers": layers})
    if len(norms) > 1:
        yield Change("pre-norm", {"norms": norms})
    every = norms + [f"{layer}.{name}" for layer in layers for name in ("norm1", "norm2")]
    scale = deepnorm_scales(max(len(every) // 2, 1))[0]  # a layer has two norms
    if len(every) > 1 and scale is not None:
        yield Change("deep-norm", {"norms": every, "alpha": round(scale.alpha, 4), "beta": round(scale.beta, 4)})
    yield Change("warm-up", {"share": 0.3})


def _some_first(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    layers = _torch_layers(patient.model)
    return {"layers": some_of(layers, rng)} if layers else None


def _some_pre(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    norms = _post_norms(patient.model)
    return {"norms": norms[: rng.randint(1, len(norms))]} if norms else None  # from the first block on


def _some_deep(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    some = _some_pre(patient, rng)
    return None if some is None else {**some, "alpha": some_number(rng, 1.0), "beta": some_number(rng, 1.0)}


KINDS = {
    "norm-first": Kind(norm_first, _tell_first, _some_first),
    "pre-norm": Kind(to_pre_norm, _tell_pre, _some_pre),
    "deep-norm": Kind(to_deep_norm, _tell_deep, _some_deep),
}

ANSWERS = {"norm-placement": _inside}

"""Where norms stand in residual blocks: from behind the sums into the branches, with one behind the stack (pre-norm).

`nn.TransformerEncoderLayer` and its like have a flag for it. In blocks of the user's own the wiring is read off one pass: the stream is
what the norm before gave, the branch starts at the modules that are given this very tensor. Whether that is all of the branch is then
checked: with the same sample given to these modules throughout, what is added to the stream must be the same for all samples.
"""

import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.diagnosis.probes import drawn
from trimtab.diagnosis.probes.calls import Declined, loss_of, still
from trimtab.errors import RepairError
from trimtab.norms._kinds import kind_of
from trimtab.repairs.change import Change, Kind
from trimtab.repairs.families.weights import loop_over, some_of
from trimtab.repairs.one_pass import listed, module_at
from trimtab.repairs.patient import Patient
from trimtab.repairs.surgery import adopt, replace_module, slow_path
from trimtab.report import Finding, Repair

TORCH = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
STACKS = (nn.TransformerEncoder, nn.TransformerDecoder)

SAME = 1e-3
"""How far a branch of equal inputs may differ from sample to sample, beside the stream's size: what float32 leaves of a difference."""

Place = int | str
"""Where a tensor stands among the arguments of a call."""

_Called = tuple[str, dict[Place, Tensor]]


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


# Blocks of the user's own ---------------------------------------------------------------------------------------------


class Moved(nn.Module):
    """Stands where a norm was behind a sum, and keeps it for its branch.

    Args:
        norm: What the branch is given goes through it.
        last: What the sum goes through; None for nothing.
    """

    def __init__(self, norm: nn.Module, last: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.last = norm, last

    def forward(self, x: Tensor) -> Tensor:
        """The sum as it is, or normalized behind the last block."""
        if self.last is None:
            return x
        normed: Tensor = self.last(x)
        return normed


@dataclass
class _Into:
    """A pre-hook that sends some arguments through a function; kept by value, so that the model can be copied and pickled."""

    function: Any
    places: tuple[Place, ...]

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        done: dict[int, Tensor] = {}  # an attention asks whether query, key and value are one tensor

        def through(value: Tensor) -> Tensor:
            if id(value) not in done:
                done[id(value)] = self.function(value)
            return done[id(value)]

        return (
            tuple(through(value) if i in self.places else value for i, value in enumerate(args)),
            {key: through(value) if key in self.places else value for key, value in kwargs.items()},
        )


@dataclass
class _Block:
    """One norm behind a sum.

    Attributes:
        norm: Its name.
        stream: The tensor that goes past the branch.
        entries: The modules that the branch starts at, and which of their arguments are the stream.
    """

    norm: str
    stream: Tensor
    entries: list[tuple[str, tuple[Place, ...]]] = field(default_factory=list)


def to_pre_norm(setup: Setup, *, norms: Sequence[str]) -> None:
    """Move norms from behind residual sums into the branches, and let one stand behind the last.

    Raises:
        RepairError: They do not stand behind sums of a stream and a branch of modules.
    """
    for name in norms:
        if kind_of(module_at(setup.model, name, (nn.Module,))) is None:
            raise RepairError(f"{name!r} is no norm")
    blocks = _wiring(setup, norms)
    _check(setup, blocks)
    for number, block in enumerate(blocks):
        norm = setup.model.get_submodule(block.norm)
        moved = Moved(norm) if number < len(blocks) - 1 else Moved(copy.deepcopy(norm), norm)
        for name, places in block.entries:
            setup.model.get_submodule(name).register_forward_pre_hook(_Into(moved.norm, places), with_kwargs=True)
        replace_module(setup, block.norm, moved)
    slow_path(setup)


def _wiring(setup: Setup, norms: Sequence[str]) -> list[_Block]:
    """The blocks, as one pass shows them."""
    calls, given = _heard(setup, norms)
    order = [name for name, _ in calls]
    if any(order.count(name) != 1 for name in norms):
        raise RepairError("a norm runs more than once, or not at all")
    norms = sorted(norms, key=order.index)
    blocks = []
    for number, name in enumerate(norms):
        stream = given[norms[number - 1]] if number else _block_input(calls, name)
        if stream is None:
            continue  # the first sum's stream is made of functions: its norm stays
        start = order.index(norms[number - 1]) + 1 if number else 0
        block = _Block(name, stream, _entries(calls[start : order.index(name)], stream, norms))
        if not block.entries:
            raise RepairError(f"the branch in front of {name} does not start at modules")
        blocks.append(block)
    if not blocks:
        raise RepairError("no norm stands behind the sum of a stream and a branch of modules")
    return blocks


def _heard(setup: Setup, norms: Sequence[str]) -> tuple[list[_Called], dict[str, Tensor]]:
    """Every call of a module with the tensors it is given, in order; and what the norms give."""
    calls: list[_Called] = []
    given: dict[str, Tensor] = {}

    def hear(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            places: dict[Place, Any] = dict(enumerate(args))
            places.update(kwargs)
            calls.append((name, {place: value for place, value in places.items() if isinstance(value, Tensor)}))

        return hook

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            given[name] = output

        return hook

    with ExitStack() as hooks:
        for name, module in setup.model.named_modules():
            hooks.callback(module.register_forward_pre_hook(hear(name), with_kwargs=True).remove)
        for name in norms:
            hooks.callback(setup.model.get_submodule(name).register_forward_hook(keep(name)).remove)
        _run(setup)
    return calls, given


def _entries(calls: Sequence[_Called], stream: Tensor, norms: Sequence[str]) -> list[tuple[str, tuple[Place, ...]]]:
    """The outermost modules that are given the stream itself, and hold none of the norms."""
    found: list[tuple[str, tuple[Place, ...]]] = []
    for called, places in calls:
        same = tuple(place for place, value in places.items() if _is(value, stream))
        holds = any(norm == called or norm.startswith(f"{called}.") or not called for norm in norms)
        inside = any(called.startswith(f"{entry}.") for entry, _ in found)
        if same and not holds and not inside:
            found.append((called, same))
    return found


def _block_input(calls: Sequence[tuple[str, dict[Place, Tensor]]], norm: str) -> Tensor | None:
    """What the nearest module around a norm is given that has the norm's shape."""
    shape = next(iter(dict(calls)[norm].values())).shape
    parent = norm
    while parent:
        parent = parent.rpartition(".")[0]
        for name, places in calls:
            if name == parent:
                return next((value for value in places.values() if value.shape == shape), None)
    return None


def _is(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.shape == b.shape and a.stride() == b.stride() and a.data_ptr() == b.data_ptr())


def _check(setup: Setup, blocks: Sequence[_Block]) -> None:
    """Give each branch the first row of its input throughout: what it adds must then be the same in each row."""
    wrong: list[str] = []
    before: dict[str, Tensor] = {}

    def alike(block: _Block) -> Any:
        def rows(x: Tensor) -> Tensor:
            before[block.norm] = x
            return x[:1].expand_as(x).contiguous()

        return rows

    def compare(block: _Block) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            stream = before[block.norm]
            added = args[0] - stream
            if added.shape != stream.shape or not bool((added - added[:1]).abs().max() <= SAME * stream.abs().max()):
                wrong.append(block.norm)

        return hook

    with ExitStack() as hooks:
        for block in blocks:
            for name, places in block.entries:
                entry = setup.model.get_submodule(name)
                hooks.callback(entry.register_forward_pre_hook(_Into(alike(block), places), with_kwargs=True).remove)
            norm = setup.model.get_submodule(block.norm)
            hooks.callback(norm.register_forward_pre_hook(compare(block)).remove)
        _run(setup)
    if wrong:
        raise RepairError(
            f"what is added in front of {wrong[0]} is made of more than the modules at the start of its branch"
        )


def _run(setup: Setup) -> None:
    """The loss of one batch, in evaluation mode, without a trace."""
    batch = drawn(setup, 1).batches[0]
    try:
        with still(setup), torch.no_grad():
            loss_of(setup, batch)
    except Declined as reason:
        raise RepairError(str(reason)) from reason


def _tell_pre(*, norms: Sequence[str]) -> Repair:
    blocks = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in norms))
    return Repair(
        f"move {listed(norms)} from behind the sums into the branches, and put one norm behind the stack (pre-norm)",
        f"# in forward, for each of {blocks}:\n"
        "x = x + branch(norm(x))   # in place of x = norm(x + branch(x))\n"
        "# and once, behind the last block:\n"
        "x = last_norm(x)          # torch.nn.LayerNorm(width)",
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
    yield Change("warm-up", {"share": 0.3})


def _some_first(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    layers = _torch_layers(patient.model)
    return {"layers": some_of(layers, rng)} if layers else None


def _some_pre(patient: Patient, rng: random.Random) -> dict[str, Any] | None:
    norms = _post_norms(patient.model)
    return {"norms": some_of(norms, rng)} if norms else None


KINDS = {
    "norm-first": Kind(norm_first, _tell_first, _some_first),
    "pre-norm": Kind(to_pre_norm, _tell_pre, _some_pre),
}

ANSWERS = {"norm-placement": _inside}

"""Pre-norm by hooks: norms are moved from behind residual sums into the branches, and one stands behind the last sum.

The wiring is read off one pass: the stream is what the norm before gave, the branch starts at the modules that are given this very
tensor. Whether that is all of the branch is then checked: with the same sample given to these modules throughout, what is added to the
stream must be the same for all samples.
"""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.diagnosis.probes import drawn
from trimtab.diagnosis.probes.calls import Declined, loss_of, still
from trimtab.errors import RepairError
from trimtab.norms._kinds import kind_of
from trimtab.repairs.named import module_at
from trimtab.repairs.surgery import replace_module, slow_path

SAME = 1e-3
"""How far a branch of equal inputs may differ from sample to sample, beside the stream's size: what float32 leaves of a difference."""

Place = int | str
"""Where a tensor stands among the arguments of a call."""

_Called = tuple[str, dict[Place, Tensor]]


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
class Block:
    """One norm behind a sum.

    Attributes:
        norm: Its name.
        stream: The tensor that goes past the branch.
        entries: The modules that the branch starts at, and which of their arguments are the stream.
        called: The modules that are called between the norm before and this one.
    """

    norm: str
    stream: Tensor
    entries: list[tuple[str, tuple[Place, ...]]]
    called: list[str]


def to_pre_norm(setup: Setup, *, norms: Sequence[str]) -> None:
    """Move norms from behind residual sums into the branches, and let one stand behind the last.

    Raises:
        RepairError: They do not stand behind sums of a stream and a branch of modules.
    """
    blocks = wiring(setup, norms)
    check(setup, blocks)
    for number, block in enumerate(blocks):
        norm = setup.model.get_submodule(block.norm)
        moved = Moved(norm) if number < len(blocks) - 1 else Moved(copy.deepcopy(norm), norm)
        for name, places in block.entries:
            setup.model.get_submodule(name).register_forward_pre_hook(_Into(moved.norm, places), with_kwargs=True)
        replace_module(setup, block.norm, moved)
    slow_path(setup)


def wiring(setup: Setup, norms: Sequence[str]) -> list[Block]:
    """The blocks in front of some norms, as one pass shows them.

    Args:
        setup: The setup.
        norms: Names of the norms.

    Returns:
        The blocks, in the order in which they run.

    Raises:
        RepairError: A norm does not stand behind the sum of a stream and a branch of modules.
    """
    for name in norms:
        if kind_of(module_at(setup.model, name, (nn.Module,))) is None:
            raise RepairError(f"{name!r} is no norm")
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
        between = calls[start : order.index(name)]
        block = Block(name, stream, _entries(between, stream, norms), [called for called, _ in between])
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


def check(setup: Setup, blocks: Sequence[Block]) -> None:
    """Give each branch the first row of its input throughout: what it adds must then be the same in each row.

    Args:
        setup: The setup.
        blocks: The blocks.

    Raises:
        RepairError: It is not: there is more to the branch than the modules at its start.
    """
    wrong: list[str] = []
    before: dict[str, Tensor] = {}

    def alike(block: Block) -> Any:
        def rows(x: Tensor) -> Tensor:
            before[block.norm] = x
            return x[:1].expand_as(x).contiguous()

        return rows

    def compare(block: Block) -> Any:
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

"""Every operation of one forward pass, whoever calls it: which linear map uses which weight, and what it is fed with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.norms._passes import feed, own, told_what_was_given
from trimtab.propagation._probe import measuring

PRODUCTS = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "mv": (0, 1),
    "addmv": (1, 2),
    "linear": (0, 1),
}
CONVOLUTION = "convolution"
NORMS = (
    "native_batch_norm",
    "native_layer_norm",
    "native_group_norm",
    "cudnn_batch_norm",
    "batch_norm",
    "fused_rms_norm",
)
PASSING = (  # moves or picks values: what the values are distributed like stays about the same
    "clone", "_to_copy", "cat", "stack", "constant_pad_nd", "roll", "flip", "index", "copy", "native_dropout",
    "reflection_pad", "replication_pad", "max_pool", "avg_pool", "_adaptive_avg_pool", "adaptive_max_pool", "upsample", "pixel_shuffle", "_reshape_copy",
)  # fmt: skip

SHAPED = tuple(
    f"aten::{name}" for name in ("new_", "empty_like", "zeros_like", "ones_like", "full_like", "rand")
)  # no values
UNTAGGED = (
    "_prelu_kernel",
    "prelu",
    "log_sigmoid_forward",
    "hardswish",
)  # of single units, though torch does not say so


@dataclass(eq=False, slots=True)
class Node:
    """One operation that depends on the batch, or one tensor of the batch.

    Attributes:
        index: Its place in the order of execution.
        kind: "input", "embedding", "linear", "norm", "pointwise", "passing" or "other".
        name: The operation.
        parents: The operations that made its tensors.
        ancestors: Bits of the indices of all operations before it.
        depth: Linear maps on the longest way to it, itself counted.
        leaves: Its arguments, a node in place of each tensor from one, None for a tensor that cannot be repeated.
        repeat: The operation on other values of its nodes; None where it cannot be repeated on single values.
        parameter: The weight of a linear map.
        fed: What made the input of a linear map.
        second_moment: Mean square of its values.
    """

    index: int
    kind: str
    name: str
    parents: tuple["Node", ...] = ()
    ancestors: int = 0
    depth: int = 0
    leaves: tuple[Any, ...] = ()
    repeat: Callable[[Sequence[Any]], Any] | None = None
    parameter: str | None = None
    fed: "Node | None" = None
    second_moment: float = 0.0


@dataclass(slots=True)
class LinearMap:
    """One linear map about to run.

    Attributes:
        node: Itself.
        fed: The operation that made its input.
        weight: Its weight as the operation gets it, a view of the parameter.
        bias: Name of the bias that the operation adds, if any.
        given: Its input.
        arguments: All arguments of the operation.
        execute: Runs it with the weight as it now is.
    """

    node: Node
    fed: Node
    weight: Tensor
    bias: str | None
    given: Tensor
    arguments: tuple[Any, ...]
    execute: Callable[[], Any]


Act = Callable[[LinearMap], Any]


def watch(model: nn.Module, batch: Any, act: Act | None = None) -> list[Node]:
    """Run a copy of a model once and note every operation.

    Args:
        model: The copy.
        batch: As `trimtab.propagation` takes them everywhere.
        act: Called at each linear map with a parameter, in place of it; returns the output. It may change the weight.

    Returns:
        The operations, in the order in which they ran.
    """
    given = own(batch)
    with measuring(model), told_what_was_given("batch", batch):
        mode = _Watching(model, given, act)
        with mode:
            feed(model, given)
    return mode.nodes


class _Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tensors are told apart by their memory, so that views and in-place operations need no care."""

    def __init__(self, model: nn.Module, batch: Any, act: Act | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nodes: list[Node] = []
        self.act = act
        self.made: dict[int, Node] = {}
        self.alive: list[Any] = []  # memory that is given back could be another tensor's next
        self.casts: list[tuple[Tensor, Tensor]] = []
        self.parameters = {_memory(p): name for name, p in model.named_parameters()}
        for tensor in pytree.tree_leaves(dict(batch) if isinstance(batch, Mapping) else batch):
            if isinstance(tensor, Tensor):
                self._note(Node(len(self.nodes), "input", "input"), tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note one operation and run it."""
        kwargs = kwargs or {}
        leaves, shape = pytree.tree_flatten((args, kwargs))
        held = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        parents = tuple(node for leaf in held if (node := self.made.get(_memory(leaf))) is not None)
        if not parents or func._schema.name.startswith(SHAPED):
            return self._cast(func, args, kwargs)
        node = self._node(func, leaves, shape, parents)
        linear = self._linear_map(func, node, args, kwargs)
        run = partial(func, *args, **kwargs) if linear is None or self.act is None else partial(self.act, linear)
        output = run()
        written = func._schema.is_mutable
        fresh = [
            t for t in pytree.tree_leaves(output)
            if isinstance(t, Tensor) and (written or all(_memory(t) != _memory(other) for other in held))
        ]  # fmt: skip
        if fresh:
            self._note(node, *fresh)
        return output

    def _cast(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run what does not depend on the batch; a parameter in another dtype, as of autocast, stays that parameter."""
        output = func(*args, **kwargs)
        name = self.parameters.get(_memory(args[0])) if args and isinstance(args[0], Tensor) else None
        if func._schema.name == "aten::_to_copy" and name is not None:
            self.parameters[_memory(output)] = name
            self.casts.append((output, args[0]))
        return output

    def _execute(self, func: Any, args: Any, kwargs: Any) -> Any:
        for cast, parameter in self.casts:
            if any(isinstance(arg, Tensor) and _memory(arg) == _memory(cast) for arg in args):
                cast.copy_(parameter)  # which may have been set since
        return func(*args, **kwargs)

    def _note(self, node: Node, *tensors: Tensor) -> None:
        self.nodes.append(node)
        first = tensors[0].detach()
        if first.is_floating_point() and first.numel():
            node.second_moment = float(first.double().square().mean())
        for tensor in tensors:
            self.made[_memory(tensor)] = node
            self.alive.append(tensor)

    def _node(self, func: Any, leaves: list[Any], shape: Any, parents: tuple[Node, ...]) -> Node:
        name = func._schema.name.partition("::")[2].rstrip("_")
        ancestors, depth = 0, 0
        for parent in parents:
            ancestors |= parent.ancestors | 1 << parent.index
            depth = max(depth, parent.depth)
        node = Node(len(self.nodes), _kind(func, name), name, parents, ancestors, depth)
        if node.kind == "pointwise":
            node.leaves = tuple(self._repeatable(leaf) for leaf in leaves)
            node.repeat = _repeat(func, shape)
        return node

    def _repeatable(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        made = self.made.get(_memory(leaf))
        if made is not None:
            return made
        if leaf.numel() == 1 or _memory(leaf) in self.parameters:  # a learned scale of many units: by its mean
            return leaf.detach().double().mean().cpu() if leaf.is_floating_point() else leaf.cpu()
        return _UNREPEATABLE

    def _linear_map(self, func: Any, node: Node, args: Any, kwargs: Any) -> LinearMap | None:
        places = (0, 1) if node.name == CONVOLUTION else PRODUCTS.get(node.name)
        if places is None:
            return None
        for weight, given in (places, places[::-1]):
            parameter = self.parameters.get(_memory(args[weight]))
            fed = self.made.get(_memory(args[given]))
            if parameter is None or fed is None:
                continue
            node.kind, node.parameter, node.fed, node.depth = "linear", parameter, fed, node.depth + 1
            bias = args[2] if node.name == CONVOLUTION else args[0] if places == (1, 2) else None
            named = self.parameters.get(_memory(bias)) if isinstance(bias, Tensor) else None
            return LinearMap(
                node, fed, args[weight], named, args[given], args, partial(self._execute, func, args, kwargs)
            )
        return None


_UNREPEATABLE = object()


def can_repeat(node: Node) -> bool:
    """Whether an operation can be done again on other values than it had."""
    return node.repeat is not None and not any(leaf is _UNREPEATABLE for leaf in node.leaves)


def _kind(func: Any, name: str) -> str:
    if name.startswith("embedding"):
        return "embedding"
    if any(part in name for part in NORMS):
        return "norm"
    if name.startswith(PASSING):
        return "passing"
    return "pointwise" if torch.Tag.pointwise in func.tags or name in UNTAGGED else "other"


def _repeat(func: Any, shape: Any) -> Callable[[Sequence[Any]], Any]:
    def again(leaves: Sequence[Any]) -> Any:
        values = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]  # it may write into them
        args, kwargs = pytree.tree_unflatten(values, shape)
        output = func(*args, **kwargs)
        return output[0] if isinstance(output, tuple) else output

    return again


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else id(tensor)

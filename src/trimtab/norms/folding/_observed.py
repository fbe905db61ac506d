"""Who follows whom on an example: every use of every module's output is seen, by whatever code makes it."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trimtab.norms._passes import call, tensors, undisturbed
from trimtab.norms.folding._wire import SHAPE_ATTRIBUTES, SHAPE_METHODS, Wire, is_transparent


def observe(model: nn.Module, example: Any) -> tuple[dict[str, Wire], Counter[str], dict[str, set[int]], set[str]]:
    """Run the example, and follow the output of each module without children.

    PyTorch hands every function and method that is called on a tensor to a `TorchFunctionMode`, also those that a model
    calls between its modules. An output that such a call takes has a user that is no module.

    Args:
        model: The model. Hand over a copy: it is run in its own mode.
        example: What it is called with, as for `call`.

    Returns:
        The wires of modules that were called once; how often each module was called; the numbers of axes of its inputs;
        and the modules whose parameters or buffers were used outside of their own forward.
    """
    watch = _Watch(model)
    handles = watch.attach(model)
    try:
        with undisturbed(model, training=None), watch:
            output = call(model, example)
    finally:
        for handle in handles:
            handle.remove()
    for tensor in tensors(output):
        if (name := watch.made.get(id(tensor))) is not None:
            watch.users[name].append(None)
    once = {
        name: Wire(watch.sources.get(name), tuple(watch.users[name]), name in watch.alone)
        for name in watch.leaves.values()
        if watch.calls[name] == 1 and name not in watch.direct
    }
    return once, watch.calls, watch.ranks, watch.direct


class _Watch(TorchFunctionMode):
    """Notes which module made each tensor, and who takes it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {id(module): name for name, module in model.named_modules()}
        self.leaves = {id(m): name for name, m in model.named_modules() if not list(m.children())}
        self.owners = {
            id(t): name
            for name, m in model.named_modules()
            for t in (*m.parameters(recurse=False), *m.buffers(recurse=False))
        }
        self.kept: list[Tensor] = []  # as long as a tensor lives, no other has its id
        self.made: dict[int, str] = {}
        self.sources: dict[str, str | None] = {}
        self.alone: set[str] = set()
        self.users: dict[str, list[str | None]] = defaultdict(list)
        self.calls: Counter[str] = Counter()
        self.ranks: dict[str, set[int]] = defaultdict(set)
        self.direct: set[str] = set()
        self.inside: list[str] = []
        self.transparent = {
            id(module) for module in model.modules() if is_transparent(module)
        }  # before hooks are on them

    def attach(self, model: nn.Module) -> list[Any]:
        """Put hooks on every module."""
        handles: list[Any] = []
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            if id(module) in self.leaves:
                handles.append(module.register_forward_hook(self._leave))
        return handles

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = self.names[id(module)]
        self.calls[name] += 1
        if args and isinstance(args[0], Tensor):
            self.ranks[name].add(args[0].dim())
        if id(module) not in self.leaves:
            return
        self.inside.append(name)
        given = list(_each((args, kwargs)))
        alone = len(args) == 1 and not kwargs and args[0] is given[0] if given else False
        self.sources[name] = self.made.get(id(given[0])) if alone else None
        if alone:
            self.alone.add(name)
        for tensor in given:
            maker = self.made.get(id(tensor))
            if maker is not None and not (alone and id(module) in self.transparent):
                self.users[maker].append(name if alone else None)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        name = self.inside.pop()
        if not isinstance(output, Tensor):
            return
        self.kept.append(output)
        if id(module) in self.transparent and len(args) == 1:
            if (maker := self.made.get(id(args[0]))) is not None:
                self.made[id(output)] = maker
        else:
            self.made[id(output)] = name

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inside = self.inside[-1] if self.inside else None
        if not _asks_for_shape(func):
            for tensor in _each((args, kwargs or {})):
                maker, owner = self.made.get(id(tensor)), self.owners.get(id(tensor))
                if maker is not None and inside is None:
                    self.users[maker].append(None)
                elif maker is not None and inside is not None and self.sources.get(inside) != maker:
                    self.users[maker].append(None)  # a module that reaches for a tensor it was not given
                if owner is not None and owner != inside:
                    self.direct.add(owner)
        return func(*args, **(kwargs or {}))


def _each(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _each(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _each(part)


def _asks_for_shape(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    if name == "__get__":  # a property
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    return name in SHAPE_ATTRIBUTES or name in SHAPE_METHODS

"""Graphs of the parts of a model that torch.fx can trace."""

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, fx, nn

from trimtab.norms._kinds import LINEAR_MAPS, kind_of, names_of
from trimtab.norms._passes import undisturbed
from trimtab.norms.folding._wire import SHAPE_ATTRIBUTES, SHAPE_METHODS, Wire, is_transparent


class _Tracer(fx.Tracer):
    """Looks into every module but those that matter here, PyTorch's own, and those known not to be traceable."""

    def __init__(self, opaque: set[int]) -> None:
        super().__init__()
        self.opaque = opaque
        self.failed: nn.Module | None = None

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if id(m) in self.opaque or kind_of(m) is not None or isinstance(m, (nn.Identity, *LINEAR_MAPS)):
            return True
        return super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            if self.failed is None:
                self.failed = m  # the innermost one hears of it first
            raise


def regions(model: nn.Module, given: set[str]) -> Iterator[tuple[str, fx.Graph | None, str]]:
    """The parts of a model that can be traced: the whole, or what is left when one opens up what cannot be.

    Args:
        model: The model. Its own code is run; hand over a copy.
        given: The parameters of its forward that are given; the others are traced with their defaults.

    Yields:
        Each part's name, its graph or None, and why what is above it could not be traced.
    """
    waiting = [("", model, "")]
    seen: set[int] = set()
    while waiting:
        name, module, why = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        graph, opaque, reason = _trace(module, given if not name else None)
        yield name, graph, why
        closed = opaque if graph is not None else [module]
        for part in closed:
            inside = next((n for n in names_of(model, part)), "")
            told = why or f"{type(part).__name__}: {reason}"
            waiting += [(f"{inside}.{n}" if inside else n, child, told) for n, child in part.named_children()]


def closed_parts(model: nn.Module) -> set[str]:
    """What of a model a trace cannot see into.

    Args:
        model: The model. Its own code is run; hand over a copy.

    Returns:
        Names of modules; "" if nothing of the model itself can be traced.
    """
    graph, closed, _ = _trace(model, set())
    return {name for part in closed for name in names_of(model, part)} if graph is not None else {""}


def _trace(module: nn.Module, given: set[str] | None) -> tuple[fx.Graph | None, list[nn.Module], str]:
    """Returns the graph of a module's forward or None, what stays closed inside it, and the first reason for that."""
    opaque: dict[int, nn.Module] = {}
    reason = ""
    if not list(module.children()) or kind_of(module) is not None:
        return None, [], reason
    for _ in range(sum(1 for _ in module.modules())):
        tracer = _Tracer(set(opaque))
        try:
            with warnings.catch_warnings(), undisturbed(module, training=None):
                warnings.simplefilter("ignore")  # fx warns of defaults that it cannot write into its graph
                return tracer.trace(module, _defaults(module, given)), list(opaque.values()), reason
        except Exception as error:
            first_line = next(iter(str(error).splitlines()), "")
            reason = reason or f"{type(error).__name__}: {first_line}"
            failed = tracer.failed
            if failed is None or failed is module or id(failed) in opaque:
                break
            opaque[id(failed)] = failed
    return None, [], reason


def _defaults(module: nn.Module, given: set[str] | None) -> dict[str, Any] | None:
    """Returns the default of each parameter that is not given, so that the trace follows the call that is made."""
    parameters = inspect.signature(module.forward).parameters.values()
    left_out = {
        p.name: p.default
        for p in parameters
        if p.default is not p.empty and p.name not in (given or ()) and not isinstance(p.default, Tensor)
    }
    return left_out or None


def read_graph(model: nn.Module, graph: fx.Graph, prefix: str) -> dict[str, Wire | str]:
    """The wire of each module that a graph calls, or why there is none.

    Args:
        model: The model.
        graph: The graph of one part of it.
        prefix: What stands before the part's own names.

    Returns:
        By name in the model.
    """
    modules = {f"{prefix}{n}": model.get_submodule(f"{prefix}{n}") for n in _targets(graph)}
    calls = Counter(f"{prefix}{node.target}" for node in graph.nodes if node.op == "call_module")
    direct = {f"{prefix}{node.target}".rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    found: dict[str, Wire | str] = {}
    for node in graph.nodes:
        if node.op != "call_module":
            continue
        name = f"{prefix}{node.target}"
        if calls[name] > 1:
            found[name] = f"it is called {calls[name]} times in one forward pass"
        elif name in direct:
            found[name] = "its parameters are also used outside of its own forward"
        else:
            users = tuple(_users(node, modules, prefix))
            found[name] = Wire(_source(node, modules, prefix), users, _only_input(node) is not None)
    return found


def _targets(graph: fx.Graph) -> set[str]:
    return {str(node.target) for node in graph.nodes if node.op == "call_module"}


def _only_input(node: fx.Node) -> fx.Node | None:
    return node.args[0] if len(node.args) == 1 and not node.kwargs and isinstance(node.args[0], fx.Node) else None


def _source(node: fx.Node, modules: dict[str, nn.Module], prefix: str) -> str | None:
    """Returns the module that made the only input, through what is transparent."""
    before = _only_input(node)
    while before is not None and before.op == "call_module":
        name = f"{prefix}{before.target}"
        if not is_transparent(modules[name]):
            return name
        before = _only_input(before)
    return None


def _users(node: fx.Node, modules: dict[str, nn.Module], prefix: str) -> Iterator[str | None]:
    """Yields who takes the output, through what is transparent; asking for its shape is no use."""
    for user in node.users:
        if _asks_for_shape(user):
            continue
        name = f"{prefix}{user.target}"
        if user.op != "call_module" or _only_input(user) is not node:
            yield None
        elif is_transparent(modules[name]):
            yield from _users(user, modules, prefix)
        else:
            yield name


def _asks_for_shape(user: fx.Node) -> bool:
    if user.op == "call_method":
        return user.target in SHAPE_METHODS
    return user.op == "call_function" and user.target is getattr and user.args[1] in SHAPE_ATTRIBUTES

"""What a model and an optimizer are, as plain data: no theory, no verdict, and no tensor kept."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._distributed import local, own_class

PLAIN = (bool, int, float, str, type(None))
QUANTILES = 33
"""Points of the quantile sketch of a frozen parameter."""


def is_plain(value: Any) -> bool:
    """Whether `value` can be kept as JSON without loss."""
    if isinstance(value, PLAIN):
        return True
    return isinstance(value, (tuple, list)) and len(value) <= 8 and all(isinstance(v, PLAIN) for v in value)


def module_facts(module: nn.Module) -> dict[str, Any]:
    """Class, public plain attributes and own parameters of one module."""
    cls = own_class(module)
    attributes = {k: v for k, v in vars(module).items() if not k.startswith("_") and is_plain(v)}
    return {
        "class": cls.__name__,
        "library": cls.__module__.partition(".")[0] == "torch",
        "bases": [base.__name__ for base in cls.__mro__ if base.__module__.startswith("torch.nn")],
        "training": module.training,
        "attributes": attributes,
        "parameters": [name for name, p in module.named_parameters(recurse=False) if p is not None],
        "leaf": next(module.children(), None) is None,
    }


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules worth watching, by name: wrappers stripped, the inside of parametrizations left out, lists looked into.

    A module kept in a plain list, tuple or dictionary is a module that `model.parameters()` does not know; it is
    named like `hidden[0]`.

    Args:
        model: The root.

    Yields:
        Name and module; the root's name is "".
    """
    seen: set[int] = set()
    wrapped = wrapping(model)
    for name, module in model.named_modules():
        if "parametrizations" in name.split(".") or isinstance(module, torch.jit.ScriptModule):  # takes no hooks
            continue
        seen.add(id(module))
        yield plain_name(name, wrapped), module
    for name, module in list(model.named_modules()):
        for where, hidden in _in_containers(module):
            owner = plain_name(name, wrapped)
            prefix = f"{owner}.{where}" if owner else where
            for inner, part in hidden.named_modules():
                if id(part) not in seen and not isinstance(part, torch.jit.ScriptModule):
                    seen.add(id(part))
                    yield (f"{prefix}.{inner}" if inner else prefix), part


def scripted_modules(model: nn.Module) -> Iterator[str]:
    """The names of a model's parts that are compiled by TorchScript, not of the parts of these."""
    wrapped = wrapping(model)
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and not name.startswith(inside):
            inside = (*inside, f"{name}.")
            yield plain_name(name, wrapped)


def _in_containers(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if isinstance(value, (list, tuple)):
            yield from ((f"{name}[{i}]", v) for i, v in enumerate(value) if isinstance(v, nn.Module))
        elif isinstance(value, dict):
            yield from ((f"{name}[{k}]", v) for k, v in value.items() if isinstance(v, nn.Module))


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own root, inside wrappers such as data parallelism."""
    for _ in range(wrapping(model)):
        model = next(model.children())
    return model


def class_name(model: nn.Module) -> str:
    """The class of the user's own root, as its author named it."""
    return own_class(unwrapped(model)).__name__


def wrapping(model: nn.Module) -> int:
    """How many wrappers (data parallelism, torch.compile, averaging) lie around the user's own root: each has one child."""
    layers = 0
    while [name for name, _ in model.named_children()] in (["module"], ["_orig_mod"]):
        model = next(model.children())
        layers += 1
    return layers


def plain_name(name: str, wrapped: int) -> str:
    """A module's name without what wrappers add (`module.` of data parallelism, `_orig_mod.` of torch.compile).

    Args:
        name: Its name in the outermost wrapper.
        wrapped: How many wrappers there are.

    Returns:
        The name in the user's own root.
    """
    return ".".join(part for part in name.split(".")[wrapped:] if part != "_orig_mod")


def parameter_facts(parameter: Tensor, owner: str, registered: bool, optimized: bool, updated: bool) -> dict[str, Any]:
    """Shape and standing of one parameter; one that nothing trains, or no gradient has reached, is sketched by its quantiles."""
    facts: dict[str, Any] = {
        "shape": list(parameter.shape),
        "dtype": str(parameter.dtype).removeprefix("torch."),
        "trainable": parameter.requires_grad,
        "owner": owner,
        "registered": registered,
        "optimized": optimized,
        "updated": updated,
    }
    trained = parameter.requires_grad and optimized and (updated or parameter.grad is not None)
    if not trained and readable(parameter) and local(parameter).numel() > 1:
        facts["quantiles"] = quantiles(parameter)
    return facts


def readable(parameter: Tensor) -> bool:
    """Whether this rank has values of `parameter` to read: not lazy, not on the meta device, floating, not empty."""
    return not (
        nn.parameter.is_lazy(parameter)
        or parameter.is_meta
        or parameter.is_quantized
        or not parameter.is_floating_point()
        or local(parameter).numel() == 0
    )


@torch.no_grad()
def quantiles(parameter: Tensor) -> list[float]:
    """Evenly spaced quantiles of the values, from the smallest to the largest (of at most 2^16 of them)."""
    values = local(parameter.detach()).flatten()
    step = max(1, values.numel() // 2**16)
    points = torch.linspace(0, 1, QUANTILES, dtype=torch.float64)
    return torch.quantile(values[::step].to("cpu", torch.float64), points).tolist()


@torch.no_grad()
def distinct_units(weight: Tensor) -> int:
    """How many of the output units of a weight (of this rank's shard) have weights of their own (rows that differ)."""
    rows = local(weight.detach()).flatten(1)
    rows = rows[:, : 2**12]
    if rows.shape[0] > 1 and not bool((rows[1:8] == rows[0]).all()):
        return int(rows.shape[0])  # a random matrix is settled by its first rows
    return len(torch.unique(rows, dim=0))


def optimizer_facts(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Any]:
    """Class, settings and parameters of an optimizer, group by group."""
    groups = []
    for group in optimizer.param_groups:
        settings = {k: _scalar(v) for k, v in group.items() if k != "params"}
        groups.append({
            "settings": {k: v for k, v in settings.items() if is_plain(v)},
            "parameters": [names.get(id(p), "?") for p in group["params"]],
        })
    cls = type(optimizer)
    return {"class": cls.__name__, "bases": [base.__name__ for base in cls.__mro__], "groups": groups}


def _scalar(value: Any) -> Any:
    return float(value) if isinstance(value, Tensor) and value.numel() == 1 else value

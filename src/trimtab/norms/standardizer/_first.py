"""Which layers of a model read its input, and nothing else."""

from typing import Any

from torch import Tensor, nn

from trimtab.norms._kinds import DROPOUTS, kind_of
from trimtab.norms._passes import told_what_was_given, undisturbed
from trimtab.norms.standardizer._layers import NAMES, foldable
from trimtab.norms.standardizer.errors import FoldError


def by_structure(model: nn.Module, name: str = "") -> str | None:
    """The first layer of a layer, or of nested `nn.Sequential`s.

    Args:
        model: The model, or a part of it.
        name: Its name.

    Returns:
        The name of the layer, "" for the model itself; None where the structure does not tell.

    Raises:
        FoldError: If what comes first is known to be in the way.
    """
    if foldable(model):
        return name
    if not isinstance(model, nn.Sequential):
        return None
    for key, child in model.named_children():
        place = f"{name}.{key}" if name else key
        if isinstance(child, nn.Identity) or (
            isinstance(child, nn.Flatten) and (child.start_dim, child.end_dim) == (1, -1)
        ):
            continue
        if isinstance(child, DROPOUTS) and child.p > 0:
            raise FoldError(
                f"{place} is {child}: a zero it puts in stands for the mean, and would stand for a raw zero; "
                "fold a model without dropout on its input"
            )
        if foldable(child) or isinstance(child, nn.Sequential):
            return by_structure(child, place)
        if kind_of(child) is not None:
            raise FoldError(f"{place} is {child}, which normalizes its input itself; fold into {NAMES} only")
        if isinstance(child, nn.Embedding | nn.EmbeddingBag):
            raise FoldError(f"{place} is an embedding, which reads indices: there is nothing to standardize")
        return None
    return None


def by_running(model: nn.Module, x: Tensor) -> list[str]:
    """The foldable layers that are handed the model's input itself, or a view of all of it.

    Args:
        model: A copy that may be run.
        x: An input it takes.

    Returns:
        Names, in the order of their calls.
    """
    found: list[str] = []
    storage = x.untyped_storage().data_ptr()

    def look(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            first = arguments[0] if arguments else None
            if (
                isinstance(first, Tensor)
                and first.untyped_storage().data_ptr() == storage
                and first.numel() == x.numel()
            ):
                found.append(name)

        return hook

    handles = [
        module.register_forward_pre_hook(look(name)) for name, module in model.named_modules() if foldable(module)
    ]
    try:
        with undisturbed(model, training=None), told_what_was_given("example", x):
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    # A wrapper such as ValuePaddedConv hands its input on to a convolution of its own.
    return [name for name in dict.fromkeys(found) if not any(name.startswith(f"{other}.") for other in found)]


def refuse_shared(model: nn.Module, name: str) -> None:
    """Refuse a layer that also stands elsewhere, or whose parameters do.

    Args:
        model: The model.
        name: Name of the layer.

    Raises:
        FoldError: With the other place.
    """
    layer = model.get_submodule(name)
    inside = {id(part) for part in layer.modules()}
    places = [other for other, module in model.named_modules(remove_duplicate=False) if module is layer]
    if len(places) > 1:
        raise FoldError(
            f"one layer stands at {places}: folding the input of one use would change the others; copy it first"
        )
    owned = {id(parameter): key for key, parameter in layer.named_parameters()}
    for other, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if id(module) not in inside and id(parameter) in owned:
                raise FoldError(
                    f"{name}.{owned[id(parameter)]} is shared with {other}.{key}, which would change with it; untie them first"
                )

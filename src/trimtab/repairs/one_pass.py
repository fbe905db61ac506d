"""What one pass of a setup's model shows: what it is called with, which layers run, what stands before them, where branches join."""

import inspect
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import nn

from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.diagnosis.probes import drawn
from trimtab.diagnosis.probes.calls import Call, Declined, first_call, still
from trimtab.errors import RepairError, TrimtabError
from trimtab.initialization._between import before, joins
from trimtab.initialization._watching import Node, watch
from trimtab.initialization._weights import reasons_to_leave
from trimtab.norms._kinds import CONVOLUTIONS
from trimtab.propagation._activation import Activation
from trimtab.propagation._probe import copy_to_measure

LAYERS = (nn.Linear, *CONVOLUTIONS)
"""Whose weights are drawn by fan-in."""


def called_with(setup: Setup) -> Call:
    """What the model is called with first on the first batch.

    Args:
        setup: The setup; it is not changed.

    Returns:
        The call.

    Raises:
        RepairError: The loss does not call the model as a whole.
    """
    batch = drawn(setup, 1).batches[0]
    try:
        with still(setup):
            return first_call(setup, batch)
    except Declined as reason:
        raise RepairError(str(reason)) from reason


def as_batch(setup: Setup) -> Any:
    """The same as initializers take it: a tensor, or a mapping of keyword arguments.

    Args:
        setup: The setup.

    Returns:
        The batch.

    Raises:
        RepairError: The loss does not call the model as a whole, or by arguments that have no names.
    """
    call = called_with(setup)
    if len(call.args) == 1 and not call.kwargs:
        return call.args[0]
    try:
        bound = inspect.signature(setup.model.forward).bind(*call.args, **call.kwargs)
    except (TypeError, ValueError) as error:
        raise RepairError(f"what the model is called with has no names: {error}") from error
    return {**bound.arguments, **bound.arguments.pop("kwargs", {})}


def operations(setup: Setup) -> list[Node]:
    """The operations of one pass of a copy.

    Args:
        setup: The setup; it is not changed.

    Returns:
        The operations, in order; none where the model cannot be run apart from its loss.
    """
    with unchanged():
        try:
            return watch(copy_to_measure(setup.model), as_batch(setup))
        except TrimtabError:
            return []
        except Exception:  # of the user's model, run in another way than training does
            return []


def layers_in(model: nn.Module) -> list[str]:
    """Names of the linear layers and convolutions whose weights may be drawn anew: not frozen, tied or parametrized.

    Args:
        model: The model.

    Returns:
        The names, in the order of the model.
    """
    left = {id(model.get_parameter(name)) for name in reasons_to_leave(model)}  # a tied weight has several names
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, LAYERS) and id(module.weight) not in left and not nn.parameter.is_lazy(module.weight)
    ]


def last_layer(setup: Setup) -> str:
    """The layer that runs last.

    Args:
        setup: The setup.

    Returns:
        Its name.

    Raises:
        RepairError: There is none whose weights may be set.
    """
    may = layers_in(setup.model)
    ran = [name for node in operations(setup) if (name := (node.parameter or "").removesuffix(".weight")) in may]
    if not may:
        raise RepairError("the model has no linear layer or convolution whose weights may be set")
    return (ran or may)[-1]


def main_activation(setup: Setup) -> Activation | None:
    """The activation that most layers are fed by, whoever wrote it.

    Args:
        setup: The setup.

    Returns:
        The activation; None for none.
    """
    found = [a for node in operations(setup) if node.fed is not None and (a := before(node.fed)[1]) is not None]
    if not found:
        return None
    name = Counter(activation.name for activation in found).most_common(1)[0][0]
    return next(activation for activation in found if activation.name == name)


def branch_ends(setup: Setup, where: Sequence[str] = ()) -> list[str]:
    """The last layer of each residual branch.

    Args:
        setup: The setup.
        where: Blocks, where not all of the model's are asked for.

    Returns:
        Names of linear layers and convolutions, in the order in which they run; the last ones registered in each place of `where` if
        no pass can be seen.

    Raises:
        RepairError: There is no residual branch.
    """
    may = layers_in(setup.model)
    ends = [join.end.removesuffix(".weight") for join in joins(operations(setup)) if join.end is not None]
    ends = [name for name in dict.fromkeys(ends) if name in may]
    if not ends:
        inner = [[name for name in may if name.startswith(f"{place}.")] for place in where]
        ends = [names[-1] for names in inner if names]
    if not ends:
        raise RepairError("no residual branch that ends in a layer was found")
    return ends

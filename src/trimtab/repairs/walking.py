"""The leaf modules of a model in the order in which a batch passes through them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.diagnosis.probes.calls import still
from trimtab.errors import RepairError
from trimtab.norms._passes import own
from trimtab.recording.walk import tensors
from trimtab.repairs.feeding import first_pass


@dataclass(frozen=True, slots=True)
class Stop:
    """A call of a module that holds no other one, or whose class is asked for.

    Attributes:
        name: The module's name.
        module: The module.
        given: The first floating tensor that it is given; None where there is none.
    """

    name: str
    module: nn.Module
    given: Tensor | None


def walk(setup: Setup, kinds: tuple[type[nn.Module], ...] = ()) -> list[Stop]:
    """The calls of the modules while the loss of the first batch is computed, in evaluation mode.

    Args:
        setup: The setup; nothing of it moves.
        kinds: Classes that count although they hold modules.

    Returns:
        The calls; a module that is called twice is there twice.

    Raises:
        RepairError: The loss of the batch cannot be computed.
    """
    stops: list[Stop] = []
    names = {module: name for name, module in setup.model.named_modules()}

    def stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = next((t for t in (*tensors(args), *tensors(kwargs)) if t.is_floating_point()), None)
        stops.append(Stop(names[module], module, None if given is None else given.detach().clone()))

    handles = [
        module.register_forward_pre_hook(stop, with_kwargs=True)
        for module in names
        if isinstance(module, kinds) or not list(module.children())
    ]
    try:
        with still(setup):
            setup.loss(setup.model, own(first_pass(setup, 1)[0]))
    except Exception as error:
        raise RepairError(f"the loss of a batch cannot be computed ({type(error).__name__})") from error
    finally:
        for handle in handles:
            handle.remove()
    return stops


def is_weight(module: nn.Module) -> bool:
    """Whether a module is a linear layer or a convolution.

    Args:
        module: The module.

    Returns:
        True for torch's own and what is derived of them.
    """
    return isinstance(module, (nn.Linear, nn.modules.conv._ConvNd))


def spread_out(x: Tensor) -> float:
    """Mean square of a tensor's values around the mean of its last axis.

    Args:
        x: The tensor.

    Returns:
        The mean square; NaN for an empty one.
    """
    return float((x.double() - x.double().mean(-1, keepdim=True)).square().mean()) if x.numel() else torch.nan

"""Adaptive gradient clipping (Brock et al. 2021, arXiv:2102.06171): a unit's gradient beside its own weights."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import refuse, require_positive


@torch.no_grad()
def adaptive_clip_grad_(
    parameters: Tensor | Iterable[Tensor],
    clipping: float = 0.01,
    eps: float = 1e-3,
    *,
    loss_scale: float | Tensor = 1.0,
) -> Tensor:
    """Shorten, in place, the gradient of each unit that is too long beside the unit's weights.

    G <- G · clipping max(|W|, eps) / |G| for each unit with |G| > clipping max(|W|, eps). A unit is an index of the first
    axis of a weight of two or more axes, the incoming weights of an output; a vector or number (bias, gain) is one unit.
    The norms of float16 and bfloat16 are taken in float32. Gradients that are not finite stay so.

    The paper leaves the last linear layer out, and so should the caller. A repair for `exploding-gradient` in nets without
    normalization, and for `clipping-dominates` where one layer's gradient shortens all the others under a global norm.

    Args:
        parameters: A parameter or several; those without a gradient are passed over.
        clipping: Largest length of a gradient, in lengths of the weights.
        eps: Length of weights below which they count as this long, so that zero weights can grow.
        loss_scale: Factor that the gradients still carry, as under a gradient scaler before it unscales.

    Returns:
        The share of units that were shortened, between 0 and 1; on the device of the first gradient, where nothing waits
        for it. 0 where no parameter has a gradient.

    Raises:
        NormalizationError: If clipping or eps is not above zero, or a gradient is sparse.
    """
    require_positive(clipping=clipping, eps=eps)
    if not isinstance(loss_scale, Tensor):
        require_positive(loss_scale=loss_scale)
    given = _several("parameters", parameters)
    shortened: list[Tensor] = []
    units = 0
    for parameter in given:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.layout != torch.strided:
            raise NormalizationError(
                f"a parameter of shape {tuple(parameter.shape)} has a gradient of layout {gradient.layout}; make it dense "
                f"first, or leave the parameter out"
            )
        length = _unit_lengths(gradient)
        longest = _unit_lengths(parameter).clamp_(min=eps).mul_(clipping).mul_(loss_scale)
        over = length > longest
        factor = torch.where(over, longest / length, 1.0)
        gradient.mul_(factor)
        shortened.append(over.sum())
        units += over.numel()
    if not shortened:
        return torch.zeros(())
    return torch.stack([count.to(shortened[0].device) for count in shortened]).sum() / units


def _several(name: str, parameters: Any) -> list[Tensor]:
    """Returns one parameter, or several, as a list."""
    if isinstance(parameters, Tensor):
        return [parameters]
    given = (
        list(parameters) if isinstance(parameters, Iterable) and not isinstance(parameters, torch.nn.Module) else None
    )
    if given is None or not all(isinstance(p, Tensor) for p in given):
        refuse(name, parameters, "a parameter or several are needed, such as model.parameters()")
    return given


def _unit_lengths(tensor: Tensor) -> Tensor:
    """Returns the length of each unit, shaped to broadcast over the tensor."""
    axes = tuple(range(1, tensor.dim())) or None
    work = torch.promote_types(tensor.dtype, torch.float32)
    lengths: Tensor = torch.linalg.vector_norm(tensor, dim=axes, keepdim=True, dtype=work)
    return lengths


def clip_gradients_adaptively(
    optimizer: torch.optim.Optimizer,
    clipping: float = 0.01,
    eps: float = 1e-3,
    *,
    exclude: Tensor | Iterable[Tensor] = (),
) -> RemovableHandle:
    """Clip before each step of an optimizer, whichever it is: `adaptive_clip_grad_` on all parameters it trains.

    Gradients are clipped as the optimizer is about to use them: accumulated, averaged over ranks and unscaled; of a fused
    optimizer, which unscales them itself, in their own scale. With a closure, as LBFGS has it, after each run of the
    closure.

    Args:
        optimizer: Any `torch.optim.Optimizer`.
        clipping: Largest length of a gradient, in lengths of the weights.
        eps: Length of weights below which they count as this long.
        exclude: Parameters to leave alone: the paper leaves out those of the last linear layer.

    Returns:
        A handle; its `remove()` ends the clipping.

    Raises:
        NormalizationError: If clipping or eps is not above zero.
    """
    require_positive(clipping=clipping, eps=eps)
    if not isinstance(optimizer, torch.optim.Optimizer):
        refuse("optimizer", optimizer, "a torch.optim.Optimizer is needed")
    left_out = {id(p) for p in _several("exclude", exclude)}

    def clip(stepping: torch.optim.Optimizer) -> None:
        parameters = [p for group in stepping.param_groups for p in group["params"] if id(p) not in left_out]
        scale = getattr(stepping, "grad_scale", None)  # set by a gradient scaler for fused optimizers
        adaptive_clip_grad_(parameters, clipping, eps, loss_scale=1.0 if scale is None else scale)

    def before(
        stepping: torch.optim.Optimizer, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        closure = keywords.get("closure", arguments[1] if len(arguments) > 1 else None)  # the first is the optimizer
        if closure is None:
            clip(stepping)
            return None
        clipped = _followed_by(closure, lambda: clip(stepping))
        if "closure" in keywords:
            return arguments, {**keywords, "closure": clipped}
        return (arguments[0], clipped, *arguments[2:]), keywords

    return optimizer.register_step_pre_hook(before)


def _followed_by(closure: Callable[[], Any], after: Callable[[], None]) -> Callable[[], Any]:
    def run() -> Any:
        loss = closure()
        after()
        return loss

    return run

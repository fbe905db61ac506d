"""How much curvature an optimizer bears: the largest eigenvalue of the Hessian at which it still comes down a parabola.

Along an eigenvector with eigenvalue h, a step is a linear map of position and momentum. It turns unstable where an eigenvalue of that
map reaches -1, trace + determinant + 1 = 0:

    gradient descent          2 / eta
    heavy ball                (2 + 2 beta) / ((1 - dampening) eta)
    Nesterov                  (2 + 2 beta) / ((1 + 2 beta) eta)
    Adam, AdamW               (2 + 2 beta_1) / ((1 - beta_1) eta), 38 / eta at beta_1 = 0.9
    RMSprop                   (2 + 2 momentum) / eta

the last two of the preconditioned Hessian P^-1/2 H P^-1/2 (Cohen et al. 2021, arXiv:2103.00065; 2022, arXiv:2207.14484). Decay that is
added to the gradient is part of the Hessian, H + lambda; AdamW's factor 1 - eta lambda lowers its limit by (1 - eta lambda / 2).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import optim

from trimtab.curvature._checks import CurvatureError, kind


@dataclass(frozen=True)
class StabilityLimit:
    """What an optimizer bears.

    Attributes:
        value: Largest eigenvalue of the Hessian, preconditioned where `preconditioned`, that is stable at `rate`.
        rate: Learning rate; the largest where groups differ, and slower groups count as preconditioned.
        constant: `value` times `rate`: 2 of gradient descent.
        formula: In words.
        preconditioned: Whether the optimizer divides each gradient by a length of its own.
    """

    value: float
    rate: float
    constant: float
    formula: str
    preconditioned: bool


def momentum_constant(momentum: float, dampening: float = 0.0, nesterov: bool = False) -> float:
    """Eta times the largest stable eigenvalue, of SGD as torch.optim has it.

    Args:
        momentum: beta.
        dampening: What is left out of each new gradient.
        nesterov: Whether the step looks ahead.

    Returns:
        2 without momentum.
    """
    if nesterov:
        return (2 + 2 * momentum) / (1 + 2 * momentum)
    return (2 + 2 * momentum) / (1 - dampening if momentum else 1.0)


def averaged_constant(beta: float) -> float:
    """Eta times the largest stable eigenvalue, where momentum is an average: m = beta m + (1 - beta) g, as in Adam.

    Args:
        beta: Of the average.

    Returns:
        38 at beta = 0.9.
    """
    return (2 + 2 * beta) / (1 - beta)


def stability_limit(optimizer: optim.Optimizer | Sequence[optim.Optimizer]) -> StabilityLimit:
    """The largest curvature that an optimizer bears with the settings that it has now.

    Args:
        optimizer: SGD, Adam, AdamW or RMSprop; or several of one kind.

    Returns:
        The limit.

    Raises:
        CurvatureError: The optimizer's limit is not known; groups differ in momentum, so that no single number is the limit; or the
            learning rate is zero or not finite.
    """
    optimizers = [optimizer] if isinstance(optimizer, optim.Optimizer) else optimizer
    if not isinstance(optimizers, (list, tuple)) or not all(isinstance(one, optim.Optimizer) for one in optimizers):
        raise CurvatureError(f"optimizer must be a torch optimizer, or a list of them, but it is {kind(optimizer)}")
    if not optimizers:
        raise CurvatureError("optimizer must be a torch optimizer, or a list of them, but it is empty")
    found = [_of_group(one, group) for one in optimizers for group in one.param_groups]
    kinds = sorted({(kind, round(constant, 12)) for kind, constant, _, _ in found})
    if len(kinds) != 1:
        raise CurvatureError(
            f"the groups of the optimizer bear different curvature ({', '.join(f'{k}: {c:g}' for k, c in kinds)} over their "
            "learning rates), so no single limit holds; ask for the parameters of one group in a setup of their own"
        )
    rate = max(rate for _, _, rate, _ in found)
    if not all(math.isfinite(one) for _, _, one, _ in found):
        raise CurvatureError("the optimizer's learning rate is NaN or infinite, so it has no limit; set a finite one")
    if not rate > 0:
        raise CurvatureError(f"the optimizer's learning rate is {rate:g}, so any curvature is stable")
    title, constant, _, _ = found[0]
    constant *= min(shrink for _, _, _, shrink in found)
    return StabilityLimit(
        constant / rate, rate, constant, f"{constant:.4g}/eta of {title}", preconditions(optimizers[0])
    )


def preconditions(optimizer: optim.Optimizer) -> bool:
    """Whether an optimizer divides each gradient by a length of its own."""
    return isinstance(optimizer, (optim.Adam, optim.RMSprop))


def _of_group(optimizer: optim.Optimizer, group: dict[str, Any]) -> tuple[str, float, float, float]:
    """Name, constant, learning rate, and the factor that decay of the weights themselves puts on the constant."""
    rate, decay = float(group["lr"]), float(group.get("weight_decay", 0.0))
    if group.get("maximize"):
        raise CurvatureError("the optimizer maximizes, and there no curvature is stable; minimize the negative instead")
    if isinstance(optimizer, optim.SGD):
        momentum, nesterov = float(group["momentum"]), bool(group["nesterov"])
        if momentum and float(group["dampening"]) == 1:
            raise CurvatureError(
                "the optimizer's dampening is 1, so that no gradient but its first is used; set it below 1"
            )
        title = "Nesterov" if nesterov else "heavy ball" if momentum else "gradient descent"
        return title, momentum_constant(momentum, float(group["dampening"]), nesterov), rate, 1.0
    if isinstance(optimizer, optim.Adam):  # AdamW is one
        shrink = 1 - rate * decay / 2 if group.get("decoupled_weight_decay") else 1.0
        return "Adam", averaged_constant(float(group["betas"][0])), rate, shrink
    if isinstance(optimizer, optim.RMSprop):
        return "RMSprop", momentum_constant(float(group["momentum"])), rate, 1.0
    raise CurvatureError(
        f"how much curvature {type(optimizer).__name__} bears is not known here; known are SGD, Adam, AdamW and RMSprop"
    )

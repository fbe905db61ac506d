"""Residual streams at initialization: x' = skip x + branch(x), block by block.

De & Smith 2020 (arXiv:2002.10444): a plain He branch doubles the signal in each block, a normalised one adds the same
amount each time, so that its share falls as 1/(l + 1) and gradients grow as a power of the depth instead of exponentially.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trimtab.propagation._activation import Activation, Array
from trimtab.propagation._checks import (
    PropagationError,
    require_finite,
    require_not_negative,
    require_positive,
    require_whole,
)
from trimtab.propagation.functions import ActivationLike, as_activation
from trimtab.propagation.gains import first_moment, mean_derivative_squared, second_moment

BranchNorm = Literal["none", "layer", "batch", "expected", "post"]
NORMS = ("none", "layer", "batch", "expected", "post")


@dataclass(frozen=True, slots=True)
class ResidualCourse:
    """A residual stream before the first block and after each one; arrays of shape (depth + 1,).

    Attributes:
        second_moment: Mean square of the stream.
        spread: What a norm of the next branch would divide by, squared.
        log_gradient: Natural log of the squared gradient over that after the last block.
    """

    second_moment: Array
    spread: Array
    log_gradient: Array


def residual_course(
    activation: ActivationLike,
    weight_var: float,
    depth: int,
    *,
    norm: BranchNorm = "none",
    scale: float = 1.0,
    skip: float = 1.0,
    gamma: float = 1.0,
    q: float = 1.0,
) -> ResidualCourse:
    """Second moment and gradient along x' = skip x + scale W phi(gamma norm(x)), W of n_in Var W = weight_var.

    A block adds scale^2 weight_var E phi(u)^2 and multiplies the squared gradient with skip^2 + scale^2 weight_var
    gamma^2 E phi'(u)^2/spread, u ~ N(0, gamma^2 x^2/spread). Closed cases for a ReLU He branch (weight_var 2), skip 1:

    - none: q_l = 2^l, squared gradients 2^l; with scale = 1/sqrt(L), (1 + 1/L)^l (De & Smith 2020, sec. 2; Fixup, Zhang et
      al. 2019, arXiv:1901.09321);
    - layer: q_l = 1 + l, gradients prod 1 + 1/(1 + l);
    - batch: q_l = 1 + l, and the norm divides by the variance over the batch, 1 + l (1 - 1/pi): prod 1 + 1/(that);
    - expected: the norm is division by the standard deviation that theory expects and phi's mean is taken off by the
      weights (NF-nets, Brock et al. 2021, arXiv:2101.08692, sec. 3): with weight_var = `nf_gain`^2, q_l = 1 + scale^2 l;
    - post: the norm stands behind the sum, norm(skip x + scale W phi(x)): q_l = 1; with skip = alpha it is DeepNorm's
      (Wang et al. 2022, arXiv:2203.00555).

    The mean field leaves out that a branch's input keeps some of the stream's direction.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        weight_var: n_in Var W of the branch.
        depth: Blocks.
        norm: What stands before phi, see above.
        scale: Factor on the branch, alpha of NF-nets, 0 in ReZero and SkipInit at the start.
        skip: Factor on the skip.
        gamma: Scale of the norm.
        q: Second moment, and variance, of the stream before the first block.

    Returns:
        The course.

    Raises:
        PropagationError: If a number is out of range, or the norm is none of these.
    """
    phi = as_activation(activation)
    if not (isinstance(norm, str) and norm in NORMS):
        raise PropagationError(f"norm is {norm!r}; one of {', '.join(NORMS)} is needed")
    require_whole("depth", depth, least=0)
    require_not_negative("weight_var", weight_var)
    for name, value in (("scale", scale), ("skip", skip), ("gamma", gamma)):
        require_finite(name, value)
    require_positive("q", q)
    moments, spreads, gains = [q], [_spread(norm, q, q)], []
    variance = q
    for _ in range(depth):
        block = _block(phi, norm, scale**2 * weight_var, gamma, moments[-1], spreads[-1])
        total, divided = skip**2 * moments[-1] + block.added, 1.0
        variance = skip**2 * variance + block.varying
        if norm == "post":
            require_positive("the second moment of the sum", total)
            divided, total, variance = total / gamma**2, gamma**2, gamma**2
        moments.append(total)
        spreads.append(_spread(norm, total, variance))
        gains.append((skip**2 + block.passed) / divided)
    with np.errstate(divide="ignore"):
        steps = np.log(np.array(gains))
    log_gradient = np.append(np.cumsum(steps[::-1])[::-1], 0.0)
    return ResidualCourse(np.array(moments), np.array(spreads), log_gradient)


def fixup_scale(blocks: int, layers: int = 2) -> float:
    """L^(-1/(2m - 2)): factor on the weights of a branch's inner layers (Fixup, Zhang et al. 2019, arXiv:1901.09321).

    The last layer of each branch and the classifier start at zero. With m = 2 layers, 1/sqrt(L).

    Args:
        blocks: L, residual branches of the net.
        layers: m, weight layers of a branch, 2 or more.

    Returns:
        The factor.

    Raises:
        PropagationError: If there is no block, or a branch has fewer than two layers.
    """
    require_whole("blocks", blocks)
    require_whole("layers", layers, least=2)
    return float(blocks ** (-1.0 / (2 * layers - 2)))


@dataclass(frozen=True, slots=True)
class _Block:
    added: float  # to the second moment
    varying: float  # to the variance over samples
    passed: float  # of the squared gradient, through the branch


def _block(phi: Activation, norm: BranchNorm, weight: float, gamma: float, moment: float, spread: float) -> _Block:
    inside = gamma if norm in {"layer", "batch", "expected"} else 1.0
    u = inside**2 if norm in {"layer", "batch", "expected"} else moment
    square, average = second_moment(phi, u), first_moment(phi, u)
    varying = weight * max(square - average**2, 0.0)
    added = varying if norm == "expected" else weight * square
    return _Block(added, varying, weight * inside**2 * mean_derivative_squared(phi, u) / spread)


def _spread(norm: BranchNorm, moment: float, variance: float) -> float:
    return {"none": 1.0, "post": 1.0, "layer": moment, "batch": variance, "expected": variance}[norm]

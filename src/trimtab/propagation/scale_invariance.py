"""Weights before a norm: the loss knows their direction only, and their length sets the step.

f(c w) = f(w): the gradient is orthogonal to w and falls as 1/c (van Laarhoven 2017, arXiv:1706.05350; Arora, Li & Lyu 2018,
arXiv:1812.03981).
"""

import math

from trimtab.propagation._checks import PropagationError, require_not_negative, require_positive, require_whole


def effective_learning_rate(learning_rate: float, weight_norm: float) -> float:
    """eta/norm(w)^2: the learning rate of the direction w/norm(w) (van Laarhoven 2017, eq. 8).

    Args:
        learning_rate: eta.
        weight_norm: Norm of the scale-invariant weights.

    Returns:
        The effective learning rate.
    """
    require_not_negative("learning_rate", learning_rate)
    require_positive("weight_norm", weight_norm)
    return learning_rate / weight_norm**2


def equilibrium_norm(learning_rate: float, weight_decay: float, gradient: float, momentum: float = 0.0) -> float:
    """(eta G^2/(2 lambda (1 - mu)))^(1/4): the norm where decay takes what the steps add (van Laarhoven 2017, sec. 4).

    A step adds eta^2 norm(g)^2 to norm(w)^2 and decay takes 2 eta lambda norm(w)^2. Approached over about
    1/(4 eta lambda) steps.

    Args:
        learning_rate: eta of SGD.
        weight_decay: lambda, added to the gradient as lambda w.
        gradient: G, root mean square of the gradient's norm at norm(w) = 1: norm(g) norm(w), whatever the norm.
        momentum: mu of heavy-ball momentum.

    Returns:
        The norm of the weights.
    """
    require_positive("learning_rate", learning_rate)
    require_positive("weight_decay", weight_decay)
    require_not_negative("gradient", gradient)
    _require_momentum(momentum)
    return float((learning_rate * gradient**2 / (2.0 * weight_decay * (1.0 - momentum))) ** 0.25)


def equilibrium_angle(learning_rate: float, weight_decay: float, momentum: float = 0.0) -> float:
    """sqrt(2 eta lambda/(1 + mu)): radians by which the direction turns per step at equilibrium (Wan et al. 2020).

    arXiv:2006.08419. It depends on neither loss nor gradient.

    Args:
        learning_rate: eta of SGD.
        weight_decay: lambda, added to the gradient as lambda w.
        momentum: mu of heavy-ball momentum.

    Returns:
        The angle.
    """
    require_not_negative("learning_rate", learning_rate)
    require_not_negative("weight_decay", weight_decay)
    _require_momentum(momentum)
    return math.sqrt(2.0 * learning_rate * weight_decay / (1.0 + momentum))


def decay_as_schedule(learning_rate: float, weight_decay: float, step: int) -> float:
    """Eta (1 - eta lambda)^(-2 t - 1): the growing rate without decay that gives the same directions as decay.

    Li & Arora 2019 (arXiv:1910.07454), Theorem 2.1, for SGD without momentum on scale-invariant weights.

    Args:
        learning_rate: eta.
        weight_decay: lambda.
        step: t, from 0.

    Returns:
        The learning rate of step t.

    Raises:
        PropagationError: If eta lambda is not below 1, or a number is negative.
    """
    require_not_negative("learning_rate", learning_rate)
    require_not_negative("weight_decay", weight_decay)
    require_whole("step", step, least=0)
    if not learning_rate * weight_decay < 1.0:
        raise PropagationError(
            f"learning_rate * weight_decay is {learning_rate * weight_decay}; a product below 1 is needed"
        )
    return float(learning_rate * (1.0 - learning_rate * weight_decay) ** (-2 * step - 1))


def _require_momentum(momentum: float) -> None:
    require_not_negative("momentum", momentum)
    if not momentum < 1.0:
        raise PropagationError(f"momentum is {momentum}; a number from 0 up, below 1, is needed")

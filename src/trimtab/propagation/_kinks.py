"""Where a function that is known only by its values is not smooth: bisection that does not end."""

import itertools
from collections.abc import Callable

import numpy as np

from trimtab.propagation._activation import Array
from trimtab.propagation._checks import PropagationError

REACH = 64.0
NARROW = 1e-5  # a feature of this width is a kink; everything wider is resolved by the panels around it
NODES = np.cos(np.pi * (np.arange(24) + 0.5) / 24)
OVERLAP = 1.06  # an interval is looked at with some of its neighbours, so that no kink hides at an end
TAIL = np.linalg.inv(np.polynomial.chebyshev.chebvander(NODES, 23))[-5:]  # the last Chebyshev coefficients
NOISE = 1e-10
MOST = 64


def find_kinks(
    name: str, value: Callable[[Array], Array], derivative: Callable[[Array], Array], reach: float = REACH
) -> tuple[float, ...]:
    """Places in [-reach, reach] where a function or one of its first two derivatives jumps.

    Intervals are halved until a polynomial of degree 23 holds the function and its derivative to 1e-10; where that is
    not so at a width of 1e-5 there is a kink, which is then found by bisection.

    Args:
        name: What the function is called, for the message.
        value: The function, over arrays.
        derivative: Its derivative, over arrays.
        reach: Where the search ends.

    Returns:
        The kinks, ascending.

    Raises:
        PropagationError: If it is not smooth at more than 64 places, as rounding in single precision makes it.
    """

    def roughness(low: float, high: float) -> float:
        u = 0.5 * (low + high) + 0.5 * (high - low) * OVERLAP * NODES
        return max(_tail(value(u)), _tail(derivative(u)))

    edges = 1.0137 * np.array([s * 2.0**k for s in (-1.0, 1.0) for k in range(-3, 6)]) + 0.0071  # no likely kink
    edges = np.unique(np.clip(np.concatenate([edges, [-reach, reach]]), -reach, reach))
    open_, kinks = list(itertools.pairwise(edges)), []
    while open_:
        low, high = open_.pop()
        if roughness(low, high) <= NOISE:
            continue
        if high - low > NARROW:
            middle = low + 0.4871 * (high - low)
            open_ += [(low, middle), (middle, high)]
            continue
        kinks.append(_locate(roughness, low, high))
        if len(kinks) > MOST:
            raise PropagationError(
                f"{name} is not smooth at more than {MOST} places, {min(kinks):g} and {max(kinks):g} among them; "
                "is it computed in float64?"
            )
    return _merged(kinks)


def _tail(y: Array) -> float:
    return float(np.abs(TAIL @ y).max() / (1e-3 + np.abs(y).max()))


def _locate(roughness: Callable[[float, float], float], low: float, high: float) -> float:
    while high - low > 4.0 * np.spacing(max(abs(low), abs(high), 1e-3)):
        middle = low + 0.4871 * (high - low)
        left, right = roughness(low, middle), roughness(middle, high)
        if max(left, right) <= NOISE:
            break
        low, high = (low, middle) if left > right else (middle, high)
    found = float(0.5 * (low + high))
    unsure = max(2.0 * (high - low), 1e-12)
    shorter = (round(found, digits) + 0.0 for digits in range(9))  # 0 and 0.5, not what rounding made of them
    return next((short for short in shorter if abs(short - found) <= unsure), found)


def _merged(kinks: list[float]) -> tuple[float, ...]:
    out: list[float] = []
    for kink in sorted(kinks):
        if not out or kink - out[-1] > 2.0 * NARROW:
            out.append(kink)
    return tuple(out)

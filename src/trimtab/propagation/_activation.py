"""What the formulas need to know of an activation function."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.propagation._closed import ClosedForms

Array = NDArray[np.float64]
Scalar = Callable[[Array], Array]


@dataclass(frozen=True)
class Activation:
    """A scalar function, applied to every unit alone.

    Attributes:
        name: Its name in the registry.
        value: The function, over arrays.
        derivative: Its derivative as PyTorch's autograd computes it, over arrays.
        kinks: Where the function or one of its first two derivatives jumps, ascending.
        low: The greatest lower bound of the values, -inf if there is none.
        high: The least upper bound of the values, inf if there is none.
        derivative_max: The least upper bound of the size of the derivative.
        closed: Its Gaussian expectations where they have a closed form.
    """

    name: str
    value: Scalar
    derivative: Scalar
    kinks: tuple[float, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    derivative_max: float = 1.0
    closed: ClosedForms | None = None

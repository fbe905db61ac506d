"""How large the signal may start where the length map is not stable."""

import math

from trimtab.propagation._activation import Activation
from trimtab.propagation.gains import length_map, length_map_slope, mean_derivative_squared

SMALLEST = 2.0**-12
ALLOWED = 0.25
"""Natural log of how much a relative difference in length may grow over the net."""


def starting_q(activation: Activation, depth: int, bias_var: float = 0.0) -> float:
    """The largest of 1, 1/4, 1/16 ... from which a stack of critical layers keeps differences in length in check.

    Where d log q'/d log q > 1 at chi_1 = 1 (GELU, SiLU, Mish: about 1 + 3/l for a signal that has come to layer l),
    longer inputs grow away from shorter ones and the gradient along the signal outgrows the rest: from q = 1 some e^9
    over 30 layers of GELU, which no gain mends. Starting lower, where phi is nearly linear, the product is as small as
    wanted. ReLU keeps lengths, tanh and SELU draw them together: they start at 1.

    Args:
        activation: The nonlinearity.
        depth: Layers behind it.
        bias_var: Var b.

    Returns:
        Second moment of the first layer's outputs.
    """
    start = 1.0
    while start > SMALLEST and _grown(activation, start, depth, bias_var) > ALLOWED:
        start /= 4.0
    return start


def _grown(activation: Activation, q: float, depth: int, bias_var: float) -> float:
    total = 0.0
    for left in range(depth, 0, -1):
        passed = mean_derivative_squared(activation, q)
        if not (passed > 0.0 and q > 0.0 and length_map(activation, q, 1.0) > 0.0):
            return total  # told of at the layer
        weight_var = 1.0 / passed
        step, after = (
            math.log(length_map_slope(activation, q, weight_var, bias_var)),
            length_map(activation, q, weight_var, bias_var),
        )
        if math.isclose(q, after, rel_tol=1e-7):  # ReLU: every layer is like this one
            return total + left * step
        total, q = total + step, after
        if total > ALLOWED:
            return total
    return total

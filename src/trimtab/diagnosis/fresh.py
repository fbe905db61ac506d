"""Does a parameter still look like a fresh draw? Told from a sketch of its quantiles."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

SIGNIFICANCE = 1e-3
"""A draw of the scheme itself is taken for trained once in a thousand layers."""


def looks_fresh(parameter: Mapping[str, Any]) -> bool:
    """Whether the values agree with one of the usual random initializations.

    PyTorch's default for linear and convolution layers is uniform within 1/sqrt(fan_in); others are uniform or normal with a
    variance of c/fan. A trained matrix leaves the bound, or the shape.

    Args:
        parameter: Facts of a weight with at least two axes, with "quantiles".

    Returns:
        Whether a Kolmogorov-Smirnov test on the sketch accepts any of them; False without a sketch.
    """
    quantiles, shape = parameter.get("quantiles"), parameter["shape"]
    if not quantiles or len(shape) < 2 or quantiles[0] == quantiles[-1]:
        return False
    values = np.asarray(quantiles)
    count = min(int(np.prod(shape)), 2**16)
    fan_in = float(np.prod(shape[1:]))
    fan_out = float(shape[0] * np.prod(shape[2:]))
    default = 1 / math.sqrt(fan_in)
    if _accepts(values, stats.uniform(-default, 2 * default).cdf, count):
        return True
    spread = float((values[-1] - values[0]) / 2)
    variances = [2 / fan_in, 1 / fan_in, 2 / fan_out, 1 / fan_out, 2 / (fan_in + fan_out)]
    for variance in variances:
        bound = math.sqrt(3 * variance)
        if abs(spread / bound - 1) < 0.05 and _accepts(values, stats.uniform(-bound, 2 * bound).cdf, count):
            return True
        if _accepts(values, stats.norm(0, math.sqrt(variance)).cdf, count):
            return True
    return _accepts(values, stats.norm(0, 0.02).cdf, count)


def looks_drawn(parameter: Mapping[str, Any]) -> bool:
    """Whether the values could be any draw at all: of a usual initialization, or uniform or normal with a spread of their own.

    Args:
        parameter: Facts of a weight, with "quantiles".

    Returns:
        Whether nothing in their distribution speaks of training; True without a sketch.
    """
    quantiles = parameter.get("quantiles")
    if not quantiles or quantiles[0] == quantiles[-1] or looks_fresh(parameter):
        return True
    values, count = np.asarray(quantiles), min(int(np.prod(parameter["shape"])), 2**16)
    low, high, middle = float(values[0]), float(values[-1]), float(np.median(values))
    if _accepts(values, stats.uniform(low, high - low).cdf, count):
        return True
    spread = float(values[len(values) * 3 // 4] - values[len(values) // 4]) / (2 * stats.norm.ppf(0.75))
    reach = spread * (math.sqrt(2 * math.log(count)) + 2)  # the largest of that many draws, and some
    return max(high - middle, middle - low) <= reach and _accepts(values, stats.norm(middle, spread).cdf, count)


def bias_looks_fresh(bias: Mapping[str, Any], fan_in: float) -> bool:
    """Whether a bias is as an initialization leaves it: all zero, or uniform within 1/sqrt(fan_in).

    Args:
        bias: Its facts; without a sketch nothing speaks against it.
        fan_in: Inputs of its layer.

    Returns:
        False where training has moved it.
    """
    quantiles = bias.get("quantiles")
    if not quantiles or quantiles[0] == quantiles[-1]:
        return True
    bound = 1 / math.sqrt(fan_in)
    if max(-quantiles[0], quantiles[-1]) > bound * (1 + 1e-6):
        return False
    return _accepts(quantiles, stats.uniform(-bound, 2 * bound).cdf, int(np.prod(bias["shape"])))


def bias_agrees(parameters: Mapping[str, Mapping[str, Any]], weight: Mapping[str, Any]) -> bool:
    """Whether the bias beside a weight is as it was drawn, too.

    Args:
        parameters: Facts of all parameters of the model, by name.
        weight: Facts of the weight.

    Returns:
        True where there is no bias.
    """
    owner = weight["owner"]
    bias = parameters.get(f"{owner}.bias" if owner else "bias")
    return bias is None or bias_looks_fresh(bias, float(np.prod(weight["shape"][1:])))


def _accepts(quantiles: Sequence[float] | np.ndarray, cdf: Any, count: int) -> bool:
    """Kolmogorov-Smirnov distance at the sketch's points against its critical value for `count` draws."""
    levels = np.linspace(0, 1, len(quantiles))
    distance = float(np.abs(cdf(np.asarray(quantiles)) - levels).max())
    return distance < float(stats.kstwobign.isf(SIGNIFICANCE)) / math.sqrt(count)

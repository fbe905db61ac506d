"""The signal and the gradient of a deep net, layer by layer, from a measured start."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.propagation._activation import Activation, Array
from trimtab.propagation._checks import (
    PropagationError,
    require_between,
    require_not_negative,
    require_sequence,
    require_whole,
)
from trimtab.propagation.correlation import chi_c, decorrelation_map
from trimtab.propagation.functions import ActivationLike, as_activation
from trimtab.propagation.gains import chi, length_map


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What the maps give for every layer, the first one's given values first.

    Attributes:
        q: Second moments of the pre-activations, shape (depth,).
        d: 1 - c of the pre-activations of two inputs, shape (depth,).
        chi: Gain of the squared gradient, g_l = chi_l g_(l + 1), shape (depth - 1,).
        shared: What the covariance of two inputs' gradients is multiplied with there, shape (depth - 1,).
    """

    q: Array
    d: Array
    chi: Array
    shared: Array

    @property
    def c(self) -> Array:
        """Correlation of the pre-activations of two inputs, shape (depth,)."""
        return 1.0 - self.d

    @property
    def log_gradient(self) -> Array:
        """Natural log of each layer's squared gradient over the last layer's, shape (depth,)."""
        with np.errstate(divide="ignore"):
            return _from_the_top(np.log(self.chi))

    @property
    def gradient_correlation(self) -> Array:
        """Correlation of two inputs' gradients at each layer, where the last layer's are equal, shape (depth,).

        The product of E phi' phi'/E phi'^2 over the layers above: how far gradients are shattered (Balduzzi et al. 2017,
        arXiv:1702.08591; backward covariance of Schoenholz et al. 2017, sec. 4). 0 where no gradient arrives.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = np.where(self.chi > 0.0, self.shared / self.chi, 0.0)
        return np.append(np.cumprod(kept[::-1])[::-1], 1.0)


def trajectory(
    activation: ActivationLike,
    q: float,
    weight_var: float | Sequence[float],
    bias_var: float | Sequence[float] = 0.0,
    *,
    depth: int,
    c: float = 1.0,
) -> Trajectory:
    """Iterate the length, correlation and gradient maps (Poole et al. 2016, eqs. 3, 5; Schoenholz et al. 2017, sec. 4).

    From a measured start, because a fixed point may be far away, unstable or absent. At c = 1, the default, only q and
    the gradient are of interest. Where the signal has died (q' = 0) correlations stay as they were.

    Args:
        activation: The nonlinearity phi: a name, a module, a function.
        q: Second moment of the first layer's pre-activations, as measured.
        weight_var: n_in Var W of the layers after the first: one number for all, or depth - 1 of them.
        bias_var: Var b of the same layers, likewise.
        depth: How many layers, the first included.
        c: Correlation of two inputs' pre-activations in the first layer.

    Returns:
        The course over the layers.

    Raises:
        PropagationError: If a number is out of range, or the depth and the sequences do not fit.
    """
    phi = as_activation(activation)
    require_not_negative("q", q)
    require_between("the correlation c", c, -1.0, 1.0)
    require_whole("depth", depth)
    weights, biases = _each("weight_var", weight_var, depth - 1), _each("bias_var", bias_var, depth - 1)
    lengths, apart = [float(q)], [1.0 - c]
    gains: list[float] = []
    shared: list[float] = []
    known: dict[tuple[float, float, float, float], tuple[float, float, float, float]] = {}
    for weight, bias in zip(weights, biases, strict=True):
        before = lengths[-1]
        layer = (before, apart[-1], weight, bias)
        if layer not in known:  # a net that has come to rest has one layer many times
            known[layer] = _layer(phi, *layer)
        for column, value in zip((lengths, apart, gains, shared), known[layer], strict=True):
            column.append(value)
        if not math.isfinite(lengths[-1]):
            raise PropagationError(
                f"the signal overflows at layer {len(lengths)}, from q = {before:.3g}; take fewer layers or a smaller weight_var"
            )
    return Trajectory(np.array(lengths), np.array(apart), np.array(gains), np.array(shared))


def _layer(phi: Activation, q: float, d: float, weight: float, bias: float) -> tuple[float, float, float, float]:
    """Return q and d of the next layer, and the gains of the gradient and of what two inputs' gradients share."""
    gain = chi(phi, q, weight)
    shared = gain if d == 0.0 else chi_c(phi, 1.0 - d, q, weight)
    with np.errstate(over="ignore"):
        after = length_map(phi, q, weight, bias)
    moves = d > 0.0 and 0.0 < after < math.inf
    return after, decorrelation_map(phi, d, q, weight, bias) if moves else d, gain, shared


def _each(name: str, value: float | Sequence[float], steps: int) -> list[float]:
    if isinstance(value, (int, float)):
        require_not_negative(name, value)
        return [float(value)] * steps
    values = require_sequence(name, value, f"depth - 1 = {steps} numbers, or one number,")
    for one in values:
        require_not_negative(f"a number of {name}", one)
    if len(values) != steps:
        raise PropagationError(
            f"{name} has {len(values)} numbers; one number or depth - 1 = {steps} numbers are needed"
        )
    return [float(one) for one in values]


def _from_the_top(steps: Array) -> Array:
    return np.append(np.cumsum(steps[::-1])[::-1], 0.0)

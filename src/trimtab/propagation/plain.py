"""A plain fully connected net, foretold from its activation and the variances of its weights alone."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from trimtab.propagation._activation import Activation, Array
from trimtab.propagation._checks import (
    PropagationError,
    require_between,
    require_not_negative,
    require_positive,
    require_whole,
)
from trimtab.propagation.correlation import FixedPoint, correlation_fixed_points
from trimtab.propagation.functions import ActivationLike, as_activation
from trimtab.propagation.gains import chi
from trimtab.propagation.phase import (
    CriticalPoint,
    DepthScales,
    depth_scales,
    edge_of_chaos,
    length_fixed_points,
    length_limit,
)
from trimtab.propagation.tolerance import forward_log_variance, gradient_log_variances
from trimtab.propagation.trajectory import Trajectory, trajectory

Phase = Literal["ordered", "edge", "chaotic"]
SIGMAS = 3.0
ON_EDGE = 1e-3
"""How far chi_1 may be from 1 on the edge: deviations then last a thousand layers, and weights are named to three digits."""


@dataclass(frozen=True, slots=True)
class PlainNet:
    """What mean-field theory says of a plain net; prints as a table.

    Attributes:
        activation: Name of the nonlinearity.
        weight_var: n_in Var W of every layer.
        bias_var: Var b.
        depth: Layers.
        width: Units of each.
        course: q, correlation and gradient, layer by layer.
        q_low: Least q of a layer of this width, 3 sigma.
        q_high: Greatest.
        log_gradient_low: Least natural log of a layer's squared gradient over the last one's, 3 sigma.
        log_gradient_high: Greatest.
        limit: Where q goes: a fixed point, 0 or inf.
        fixed_points: All fixed points of the length map.
        correlation_points: Fixed points of the correlation map at the limit; none where that is 0 or inf.
        chi_1: Gain of a squared gradient per layer at the limit; where that is inf, at the last layer.
        phase: By chi_1: "ordered" below 1, "chaotic" above, "edge" within a thousandth of it.
        scales: Depth scales at the limit; None where it is 0 or inf.
        critical: The edge of chaos at this bias variance, None where there is none.
    """

    activation: str
    weight_var: float
    bias_var: float
    depth: int
    width: int
    course: Trajectory
    q_low: Array
    q_high: Array
    log_gradient_low: Array
    log_gradient_high: Array
    limit: float
    fixed_points: tuple[FixedPoint, ...]
    correlation_points: tuple[FixedPoint, ...]
    chi_1: float
    phase: Phase
    scales: DepthScales | None
    critical: CriticalPoint | None

    def __str__(self) -> str:
        from trimtab.propagation._plain_text import plain_text

        return plain_text(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data; gradients as natural logs, which no depth overflows."""
        named = ("activation", "weight_var", "bias_var", "depth", "width", "limit", "chi_1", "phase")
        columns = {
            "q": self.course.q,
            "q_low": self.q_low,
            "q_high": self.q_high,
            "correlation": self.course.c,
            "log_gradient": self.course.log_gradient,
            "log_gradient_low": self.log_gradient_low,
            "log_gradient_high": self.log_gradient_high,
            "gradient_correlation": self.course.gradient_correlation,
        }
        return {name: getattr(self, name) for name in named} | {
            "fixed_points": [asdict(point) for point in self.fixed_points],
            "correlation_fixed_points": [asdict(point) for point in self.correlation_points],
            "depth_scales": None if self.scales is None else asdict(self.scales),
            "edge_of_chaos": None if self.critical is None else asdict(self.critical),
            "layers": [
                {"layer": k + 1} | {name: float(values[k]) for name, values in columns.items()}
                for k in range(self.depth)
            ],
        }


def plain_net(
    activation: ActivationLike,
    weight_var: float,
    bias_var: float = 0.0,
    *,
    depth: int,
    width: int = 256,
    input_q: float = 1.0,
    input_c: float = 0.0,
) -> PlainNet:
    """Follow signal, likeness of two inputs and gradient through a plain net of equal layers, with their chance.

    The first layer is linear: q = weight_var input_q + bias_var. From there the maps of Poole et al. 2016
    (arXiv:1606.05340, eqs. 3, 5) and the gradient of Schoenholz et al. 2017 (arXiv:1611.01232, sec. 4) are iterated, by
    `trajectory`; bands are those of a finite width, `forward_log_variance` and `gradient_log_variances`.

    Args:
        activation: The nonlinearity phi, which must not jump: a name, a module, a function.
        weight_var: n_in Var W of every layer, above 0.
        bias_var: Var b.
        depth: Layers, the first included.
        width: Units of each layer.
        input_q: Mean square of the input; 1 for standardized data.
        input_c: Correlation of two inputs.

    Returns:
        The course with its bands, fixed points, phase and depth scales.

    Raises:
        PropagationError: If a number is out of range, phi jumps or passes no gradient, or the signal overflows.
    """
    phi = as_activation(activation)
    require_positive("weight_var", weight_var)
    require_not_negative("bias_var", bias_var)
    require_whole("depth", depth)
    require_whole("width", width, least=2)
    require_positive("input_q", input_q)
    require_between("input_c", input_c, -1.0, 1.0)
    critical = edge_of_chaos(phi, bias_var)
    start = weight_var * input_q + bias_var
    course = trajectory(
        phi, start, weight_var, bias_var, depth=depth, c=min((weight_var * input_q * input_c + bias_var) / start, 1.0)
    )
    if not course.q[-1] > 0.0:
        gone = int(np.argmin(course.q > 0.0)) + 1
        raise PropagationError(f"no signal is left at layer {gone} (q = 0); take fewer layers or a larger weight_var")
    forward = SIGMAS * np.sqrt(forward_log_variance(phi, start, weight_var, bias_var, [width] * depth))
    variances = gradient_log_variances(phi, start, weight_var, bias_var, [width] * (depth - 1))
    backward, centre = SIGMAS * np.sqrt(variances), course.log_gradient - 0.5 * variances
    limit = length_limit(phi, start, weight_var, bias_var)
    inside = 0.0 < limit < math.inf
    gain = float(chi(phi, limit if limit < math.inf else float(course.q[-1]), weight_var))
    with np.errstate(over="ignore"):
        low, high = (course.q * np.exp(sign * forward - 0.5 * (forward / SIGMAS) ** 2) for sign in (-1.0, 1.0))
    return PlainNet(
        phi.name,
        float(weight_var),
        float(bias_var),
        depth,
        width,
        course,
        low,
        high,
        centre - backward,
        centre + backward,
        limit,
        length_fixed_points(phi, weight_var, bias_var),
        correlation_fixed_points(phi, limit, weight_var, bias_var) if inside else (),
        gain,
        "edge" if abs(gain - 1.0) <= ON_EDGE else "ordered" if gain < 1.0 else "chaotic",
        _scales(phi, limit, weight_var, bias_var) if inside else None,
        critical,
    )


def _scales(phi: Activation, q: float, weight_var: float, bias_var: float) -> DepthScales | None:
    return depth_scales(phi, weight_var, bias_var, q=q)

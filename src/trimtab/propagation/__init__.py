"""Mean-field maths: what a layer should do to the second moments of its signal and its gradient.

The initializers live in a room above, `trimtab.initialization`, because they use `trimtab.predict`; they are loaded from
there when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trimtab.propagation._activation import Activation
from trimtab.propagation._checks import PropagationError
from trimtab.propagation.activations import ACTIVATION_NAMES, UnknownActivationError, activation
from trimtab.propagation.batchnorm import batchnorm_rate, layernorm_rate
from trimtab.propagation.correlation import (
    FixedPoint,
    chi_c,
    correlation_fixed_points,
    correlation_map,
    covariance,
    decorrelation_map,
    slope_covariance,
)
from trimtab.propagation.fans import fans, padded_fans
from trimtab.propagation.figures import collapse_figure, coordinate_figure, depth_figure, phase_diagram
from trimtab.propagation.functions import ActivationLike, as_activation
from trimtab.propagation.gains import (
    chi,
    first_moment,
    length_map,
    length_map_slope,
    mean_derivative_squared,
    second_moment,
)
from trimtab.propagation.gaussian import expectation
from trimtab.propagation.initial_gains import GainReport, backward_gain, forward_gain, judge_gain, nf_gain, torch_gain
from trimtab.propagation.jacobians import LayerJacobian, NetworkJacobian, Spectrum, jacobian
from trimtab.propagation.layers import linear_backward, linear_backward_gain, linear_forward, linear_forward_gain
from trimtab.propagation.loss import softmax_loss_at_init
from trimtab.propagation.norms import norm_backward_gain
from trimtab.propagation.pairs import pair_expectation
from trimtab.propagation.phase import (
    CriticalPoint,
    DepthScales,
    critical_points,
    depth_scale,
    depth_scales,
    edge_of_chaos,
    length_fixed_points,
    length_limit,
)
from trimtab.propagation.plain import PlainNet, plain_net
from trimtab.propagation.residual import ResidualCourse, fixup_scale, residual_course
from trimtab.propagation.saturation import saturated_share, silent_share
from trimtab.propagation.scale_invariance import (
    decay_as_schedule,
    effective_learning_rate,
    equilibrium_angle,
    equilibrium_norm,
)
from trimtab.propagation.tolerance import (
    backward_log_variance,
    band,
    forward_log_variance,
    forward_log_variance_step,
    gradient_log_variance,
    gradient_log_variances,
)
from trimtab.propagation.torch_default import Gain, torch_default_gain
from trimtab.propagation.trajectory import Trajectory, trajectory
from trimtab.propagation.transformer import (
    POST_NORM_SECOND_MOMENT,
    deepnorm_update_bound,
    final_norm_gain,
    last_gradient_order,
    pre_norm_second_moment,
)
from trimtab.propagation.width import CoordinateCheck, SiteScaling, coordinate_check

if TYPE_CHECKING:
    from trimtab.initialization import Change as Change
    from trimtab.initialization import Initialized as Initialized
    from trimtab.initialization import critical_ as critical_
    from trimtab.initialization import lsuv_ as lsuv_

_ABOVE = frozenset({"Change", "Initialized", "critical_", "lsuv_"})
"""Public names that live in `trimtab.initialization`."""

__all__ = [
    "ACTIVATION_NAMES",
    "POST_NORM_SECOND_MOMENT",
    "Activation",
    "ActivationLike",
    "Change",
    "CoordinateCheck",
    "CriticalPoint",
    "DepthScales",
    "FixedPoint",
    "Gain",
    "GainReport",
    "Initialized",
    "LayerJacobian",
    "NetworkJacobian",
    "PlainNet",
    "PropagationError",
    "ResidualCourse",
    "SiteScaling",
    "Spectrum",
    "Trajectory",
    "UnknownActivationError",
    "activation",
    "as_activation",
    "backward_gain",
    "backward_log_variance",
    "band",
    "batchnorm_rate",
    "chi",
    "chi_c",
    "collapse_figure",
    "coordinate_check",
    "coordinate_figure",
    "correlation_fixed_points",
    "correlation_map",
    "covariance",
    "critical_",
    "critical_points",
    "decay_as_schedule",
    "decorrelation_map",
    "deepnorm_update_bound",
    "depth_figure",
    "depth_scale",
    "depth_scales",
    "edge_of_chaos",
    "effective_learning_rate",
    "equilibrium_angle",
    "equilibrium_norm",
    "expectation",
    "fans",
    "final_norm_gain",
    "first_moment",
    "fixup_scale",
    "forward_gain",
    "forward_log_variance",
    "forward_log_variance_step",
    "gradient_log_variance",
    "gradient_log_variances",
    "jacobian",
    "judge_gain",
    "last_gradient_order",
    "layernorm_rate",
    "length_fixed_points",
    "length_limit",
    "length_map",
    "length_map_slope",
    "linear_backward",
    "linear_backward_gain",
    "linear_forward",
    "linear_forward_gain",
    "lsuv_",
    "mean_derivative_squared",
    "nf_gain",
    "norm_backward_gain",
    "padded_fans",
    "pair_expectation",
    "phase_diagram",
    "plain_net",
    "pre_norm_second_moment",
    "residual_course",
    "saturated_share",
    "second_moment",
    "silent_share",
    "slope_covariance",
    "softmax_loss_at_init",
    "torch_default_gain",
    "torch_gain",
    "trajectory",
]


def __getattr__(name: str) -> Any:
    if name not in _ABOVE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("trimtab.initialization"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

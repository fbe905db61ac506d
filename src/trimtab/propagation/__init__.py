"""Mean-field maths: what a layer should do to the second moments of its signal and its gradient."""

from trimtab.propagation._activation import Activation
from trimtab.propagation._checks import PropagationError
from trimtab.propagation.activations import ACTIVATION_NAMES, UnknownActivationError, activation
from trimtab.propagation.fans import fans, padded_fans
from trimtab.propagation.gains import (
    batchnorm_rate,
    chi,
    first_moment,
    length_map,
    length_map_slope,
    mean_derivative_squared,
    second_moment,
)
from trimtab.propagation.gaussian import expectation
from trimtab.propagation.initialization import Change, Initialized, LayerMoments, critical_, lsuv_
from trimtab.propagation.jacobians import LayerJacobian, NetworkJacobian, Spectrum, jacobian
from trimtab.propagation.layers import linear_backward, linear_backward_gain, linear_forward, linear_forward_gain
from trimtab.propagation.loss import softmax_loss_at_init
from trimtab.propagation.norms import norm_backward_gain
from trimtab.propagation.saturation import saturated_share
from trimtab.propagation.tolerance import (
    backward_log_variance,
    band,
    forward_log_variance,
    forward_log_variance_step,
    gradient_log_variance,
)
from trimtab.propagation.torch_default import Gain, torch_default_gain
from trimtab.propagation.width import CoordinateCheck, SiteScaling, coordinate_check, coordinate_figure

__all__ = [
    "ACTIVATION_NAMES",
    "Activation",
    "Change",
    "CoordinateCheck",
    "Gain",
    "Initialized",
    "LayerJacobian",
    "LayerMoments",
    "NetworkJacobian",
    "PropagationError",
    "SiteScaling",
    "Spectrum",
    "UnknownActivationError",
    "activation",
    "backward_log_variance",
    "band",
    "batchnorm_rate",
    "chi",
    "coordinate_check",
    "coordinate_figure",
    "critical_",
    "expectation",
    "fans",
    "first_moment",
    "forward_log_variance",
    "forward_log_variance_step",
    "gradient_log_variance",
    "jacobian",
    "length_map",
    "length_map_slope",
    "linear_backward",
    "linear_backward_gain",
    "linear_forward",
    "linear_forward_gain",
    "lsuv_",
    "mean_derivative_squared",
    "norm_backward_gain",
    "padded_fans",
    "saturated_share",
    "second_moment",
    "softmax_loss_at_init",
    "torch_default_gain",
]

"""What a normalisation layer does to a gradient."""

import math

from trimtab.propagation._checks import PropagationError, require_not_negative, require_positive


def norm_backward_gain(
    gamma_squared: float, variance: float, eps: float, group: float = math.inf, centred: bool = True
) -> float:
    """Factor on the second moment of a gradient through a normalisation, gamma^2/(variance + eps) for large groups.

    The Jacobian of batch, layer, group or RMS normalisation is gamma/sqrt(variance + eps) times the projection off the
    mean and off the normalised values (Ioffe & Szegedy 2015, arXiv:1502.03167, sec. 3): of group directions two are
    lost, without centring one; eps lets (eps/(variance + eps))^2 of the last pass. For gradients without a preferred
    direction this is exact.

    Args:
        gamma_squared: Mean square of the scales gamma.
        variance: Variance of the values that are normalised together (their second moment without centring).
        eps: What the layer adds to it.
        group: How many values are normalised together.
        centred: Whether the mean is taken off (not in RMSNorm).

    Returns:
        The gain; its root is the gain of the amplitude, at most gamma/sqrt(eps).

    Raises:
        PropagationError: If a number is negative, variance and eps are both zero, or the group is too small.
    """
    require_not_negative("gamma^2", gamma_squared)
    require_not_negative("the variance", variance)
    require_not_negative("eps", eps)
    spread = variance + eps
    if not spread > 0.0:
        raise PropagationError("variance and eps are both zero: the normalisation divides by zero")
    lost = 2 if centred else 1
    if not (isinstance(group, float) and group == math.inf):
        require_positive("group", group)
    if group < lost:
        raise PropagationError(f"a group of {group} values cannot be normalised; {lost} or more are needed")
    kept = 1.0 - (lost - (eps / spread) ** 2) / group
    return gamma_squared / spread * kept

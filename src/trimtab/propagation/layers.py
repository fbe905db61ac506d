"""What one linear layer does to second moments, from the weights it has: whatever the scheme, trained or not."""

from trimtab.propagation._checks import require_finite, require_not_negative


def linear_forward_gain(fan_in: float, weight_second_moment: float) -> float:
    """fan_in E W^2: the factor on the second moment of the input (He et al. 2015, arXiv:1502.01852, sec. 2.2).

    Args:
        fan_in: How many inputs an output sums, as `fans` counts them.
        weight_second_moment: Mean of W^2 over the weights; their mean is part of it.

    Returns:
        The gain of the signal.
    """
    require_not_negative("fan_in", fan_in)
    require_not_negative("the second moment of the weights", weight_second_moment)
    return fan_in * weight_second_moment


def linear_backward_gain(fan_out: float, weight_second_moment: float) -> float:
    """fan_out E W^2: the factor on the second moment of the gradient (He et al. 2015, sec. 2.2).

    Args:
        fan_out: How many outputs an input feeds, as `fans` counts them.
        weight_second_moment: Mean of W^2 over the weights; their mean is part of it.

    Returns:
        The gain of the gradient.
    """
    require_not_negative("fan_out", fan_out)
    require_not_negative("the second moment of the weights", weight_second_moment)
    return fan_out * weight_second_moment


def linear_forward(
    input_second_moment: float,
    fan_in: float,
    weight_second_moment: float,
    bias_second_moment: float = 0.0,
    *,
    input_mean: float = 0.0,
    weight_mean: float = 0.0,
) -> float:
    """Forward, q' = fan_in E W^2 E x^2 + E b^2, plus what weights of one sign add up to.

    The second moment of a sum of fan_in products, for weights that know nothing of each other or of the inputs:
    fan_in E W^2 E x^2 + fan_in (fan_in - 1) (E W E x)^2 + E b^2. With weights of mean zero it is the length map
    (Poole et al. 2016, eq. 3) started from measured moments; use E x^2, never Var x.

    Args:
        input_second_moment: E x^2 over units and samples, after the nonlinearity.
        fan_in: How many inputs an output sums, as `fans` counts them.
        weight_second_moment: Mean of W^2 over the weights.
        bias_second_moment: Mean of b^2 over the biases.
        input_mean: E x over units and samples.
        weight_mean: Mean of the weights.

    Returns:
        The second moment of the outputs.
    """
    require_not_negative("the second moment of the input", input_second_moment)
    require_finite("the mean of the input", input_mean)
    require_finite("the mean of the weights", weight_mean)
    require_not_negative("the second moment of the bias", bias_second_moment)
    scattered = linear_forward_gain(fan_in, weight_second_moment) * input_second_moment
    aligned = fan_in * max(fan_in - 1.0, 0.0) * (weight_mean * input_mean) ** 2
    return scattered + aligned + bias_second_moment


def linear_backward(
    gradient_second_moment: float,
    fan_out: float,
    weight_second_moment: float,
    derivative_second_moment: float = 1.0,
) -> float:
    """Backward, g_in = fan_out E W^2 E phi'^2 g_out (Schoenholz et al. 2017, arXiv:1611.01232).

    Args:
        gradient_second_moment: g_out, of the loss with respect to the layer's outputs.
        fan_out: How many outputs an input feeds, as `fans` counts them.
        weight_second_moment: Mean of W^2 over the weights.
        derivative_second_moment: E phi'^2 of the nonlinearity below the layer; 1 stops at the layer's own inputs.

    Returns:
        The second moment of the gradient one layer below.
    """
    require_not_negative("the second moment of the gradient", gradient_second_moment)
    require_not_negative("E phi'^2", derivative_second_moment)
    return linear_backward_gain(fan_out, weight_second_moment) * derivative_second_moment * gradient_second_moment

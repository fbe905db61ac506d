"""What a net does to second moments when PyTorch's default initialisation is left as it is."""

from typing import NamedTuple

from trimtab.propagation._checks import require_positive
from trimtab.propagation.functions import ActivationLike, as_activation
from trimtab.propagation.gains import chi, length_map

TORCH_DEFAULT_WEIGHT_VAR = 1.0 / 3.0


class Gain(NamedTuple):
    """Factors on second moments over one layer.

    Attributes:
        forward: On the second moment of the pre-activations.
        backward: On the second moment of the gradient.
    """

    forward: float
    backward: float


def torch_default_gain(activation: ActivationLike, fan_in: int, q: float = 1.0) -> Gain:
    """Gains of a square layer, activation first, under the default init of torch.nn.Linear and the convolutions.

    kaiming_uniform with a = sqrt(5) draws W from U(-1/sqrt(n), 1/sqrt(n)), and the bias is drawn so too
    (torch.nn.Linear.reset_parameters): n Var W = 1/3, Var b = 1/(3 n). With ReLU q' = q/6 + 1/(3 n) and a gradient
    keeps 1/6 of its second moment per layer.

    Args:
        activation: The nonlinearity before the layer.
        fan_in: n, inputs of the layer, of which it has as many outputs.
        q: Second moment of the pre-activations before the nonlinearity.

    Returns:
        q'/q and chi_1.
    """
    activation = as_activation(activation)
    require_positive("fan_in", fan_in)
    require_positive("q", q)
    after = length_map(activation, q, TORCH_DEFAULT_WEIGHT_VAR, 1.0 / (3.0 * fan_in))
    return Gain(after / q, chi(activation, q, TORCH_DEFAULT_WEIGHT_VAR))

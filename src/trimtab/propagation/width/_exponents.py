"""With which power of the width each size grows, in standard and in maximal-update parametrization."""

from torch import nn

QUANTITIES = ("activation", "change", "gradient", "update")
HALF = 0.5

# Of wide nets, to first order in the learning rate. Standard: Var W = 1/fan_in, one learning rate. muP: table 3 of Yang
# et al. 2022, Var W = 1/fan_in^2 for the output layer, learning rates of (input, hidden, output) 1, 1/n, 1/n for Adam and
# n, 1, 1/n for SGD.
_STANDARD = {
    "activation": (0.0, 0.0, 0.0),
    "gradient": (-HALF, -HALF, 0.0),
    "adam change": (0.0, 1.0, 1.5),  # hidden: n entries of W move as one; output: by what the hidden layers hand on
    "sgd change": (-HALF, HALF, 1.0),
    "adam update": (0.0, 0.0, 0.0),
    "sgd update": (-HALF, -HALF, 0.0),
}
_MUP = {
    "activation": (0.0, 0.0, -HALF),
    "gradient": (-1.0, -1.0, 0.0),
    "adam change": (0.0, 0.0, 0.0),
    "sgd change": (0.0, 0.0, 0.0),
    "adam update": (0.0, -1.0, -1.0),
    "sgd update": (0.0, -1.0, -1.0),
}
_ROLES = ("input", "hidden", "output")


def exponents(quantity: str, role: str, optimizer: str | None, hidden: bool) -> tuple[float | None, float | None]:
    """What both parametrizations predict of one size.

    Args:
        quantity: One of `QUANTITIES`.
        role: "input", "hidden", "output", or "fixed" for a layer that does not grow.
        optimizer: "adam", "sgd", or None for another one, of which changes and updates are not known.
        hidden: Whether the net has a hidden layer.

    Returns:
        The exponents of standard and of muP; None where nothing is predicted.
    """
    key = quantity if quantity in _STANDARD else f"{optimizer} {quantity}"
    if role not in _ROLES or key not in _STANDARD:
        return None, None
    place = _ROLES.index(role)
    standard = _STANDARD[key][place]
    if key == "adam change" and role == "output" and not hidden:
        standard = 1.0
    return standard, _MUP[key][place]


def role(small: nn.Module, large: nn.Module) -> str:
    """What part of a net a layer is, by which side of its weight grows with the width.

    Args:
        small: The layer in a narrow net.
        large: The same in a wide one.

    Returns:
        "input" (only the outputs grow), "hidden", "output" (only the inputs), or "fixed".
    """
    before, after = small.get_parameter("weight").shape, large.get_parameter("weight").shape
    first, second = before[0] != after[0], before[1] != after[1]
    turned = isinstance(small, (nn.Embedding, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d))
    inputs, outputs = (first, second) if turned else (second, first)
    if inputs:
        return "hidden" if outputs else "output"
    return "input" if outputs else "fixed"

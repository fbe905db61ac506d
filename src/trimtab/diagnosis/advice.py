"""Repairs that several rules advise, as sentences and code."""

from collections import Counter
from collections.abc import Sequence

from trimtab._messages import say
from trimtab.diagnosis.layers import Layer
from trimtab.report import Repair

LOOP = """\
for module in model.modules():
    if isinstance(module, {kinds}):
        torch.nn.init.{draw}
        if module.bias is not None:
            torch.nn.init.zeros_(module.bias)"""
RECTIFIERS = {"relu", "leaky_relu", "prelu", "elu", "gelu", "silu", "mish", "hard_swish", "relu6", "softplus"}


def main_activation(layers: Sequence[Layer]) -> str:
    """The activation that most of the layers are followed or preceded by, "" when there is none."""
    counts = Counter(name for layer in layers for name in layer.before.activations)
    return counts.most_common(1)[0][0] if counts else ""


def initialization(layers: Sequence[Layer]) -> tuple[Repair, ...]:
    """The initialization that keeps signal and gradient for the activations of these layers."""
    classes = sorted({layer.cls for layer in layers if layer.cls.startswith(("Linear", "Conv"))}) or ["Linear"]
    kinds = f"torch.nn.{classes[0]}" if len(classes) == 1 else f"({', '.join(f'torch.nn.{cls}' for cls in classes)})"
    name = main_activation(layers)
    if name in ("sigmoid", "hard_sigmoid", "log_sigmoid"):
        draw = 'kaiming_normal_(module.weight, nonlinearity="relu")'
        text = say(
            "Replace the sigmoids by ReLU and draw the weights by He's rule (variance 2/fan_in): no scale of weights carries a signal through many sigmoids"
        )
        return (Repair(text, LOOP.format(kinds=kinds, draw=draw)), _normalize())
    if name == "tanh":
        draw = 'xavier_normal_(module.weight, gain=torch.nn.init.calculate_gain("tanh"))'
        text = say(
            "Draw the weights with Xavier's rule and the tanh gain: pre-activations near 1, where tanh is not flat"
        )
        return (Repair(text, LOOP.format(kinds=kinds, draw=draw)), _normalize())
    if not name:
        draw = "orthogonal_(module.weight)"
        text = say("Draw orthogonal weights: without activations between they keep every length")
        return (Repair(text, LOOP.format(kinds=kinds, draw=draw)), _normalize())
    draw = 'kaiming_normal_(module.weight, nonlinearity="relu")'
    text = say("Draw the weights by He's rule (variance 2/fan_in), which a ReLU keeps")
    return (Repair(text, LOOP.format(kinds=kinds, draw=draw)), _normalize())


def _normalize() -> Repair:
    return Repair(
        say("Put a normalization layer in front of each activation, or skip connections around pairs of layers")
    )

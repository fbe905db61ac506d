"""Networks drawn at random: how often a measurement lies in its band."""

import math
import random
from dataclasses import dataclass

import torch
from torch import nn

from trimtab.prediction import predict

ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.LeakyReLU, nn.Sigmoid, nn.Softplus, nn.SELU)
GAIN = {nn.ReLU: 2.0, nn.LeakyReLU: 2.0, nn.GELU: 2.0, nn.SiLU: 2.0}


class Residual(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.inside = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.inside(x)


def weights(model, draw, activation):
    """As torch draws them, or He's or LeCun's with biases or without."""
    kind = draw.choice(["torch", "variance kept", "variance kept, biases"])
    if kind == "torch":
        return
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan = module.weight[0].numel()
            nn.init.normal_(module.weight, std=math.sqrt(GAIN.get(activation, 1.0) / fan))
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.2) if kind.endswith("biases") else nn.init.zeros_(module.bias)


def mlp(draw, residual, small):
    width, depth = draw.choice([32, 64, 128] if small else [48, 96, 192, 384]), draw.randint(2, 6 if small else 14)
    batch, activation = draw.choice([8, 32] if small else [8, 32, 128]), draw.choice(ACTIVATIONS)
    norm = draw.choice([None, None, nn.BatchNorm1d, nn.LayerNorm])
    layers = []
    for _ in range(depth):
        inside = [nn.Linear(width, width), *([norm(width)] if norm else []), activation()]
        layers.append(Residual(*inside) if residual else nn.Sequential(*inside))
    model = nn.Sequential(*layers, nn.Linear(width, width))
    weights(model, draw, activation)
    return model, torch.randn(batch, width)


def cnn(draw, residual, small):
    width, depth = draw.choice([16, 32] if small else [16, 32, 64]), draw.randint(2, 4 if small else 8)
    size, batch, activation = draw.choice([6, 8] if small else [8, 12]), draw.choice([4, 8]), draw.choice(ACTIVATIONS)
    norm = draw.choice([None, None, nn.BatchNorm2d, lambda n: nn.GroupNorm(4, n)])
    layers = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(depth):
        inside = [nn.Conv2d(width, width, 3, padding=1), *([norm(width)] if norm else []), activation()]
        layers.append(Residual(*inside) if residual else nn.Sequential(*inside))
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1) if draw.random() < 0.3 else nn.Identity(), nn.Flatten())
    weights(model, draw, activation)
    return model, torch.randn(batch, 3, size, size)


@dataclass(frozen=True)
class Outcome:
    """One network: at each site the logs of measured over predicted, in units of the standard deviation foretold."""

    kind: str
    forward: tuple[float, ...]
    backward: tuple[float, ...]


def outcome(seed, small=False):
    """A network of this seed, and how far its measurements lie from the middle of their bands."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    kind = draw.choice(["MLP", "CNN", "residual MLP", "residual CNN"])
    model, batch = (mlp if kind.endswith("MLP") else cnn)(draw, kind.startswith("residual"), small)
    found = predict(model, batch)
    assert found.coverage == 1.0, dict(found.uncovered)
    sites = [s for s in found if s.kind not in {"Flatten", "Identity", "Sequential"}]
    forward = [math.log(s.forward_measured / s.forward) / math.log(s.forward_tolerance) * 3 for s in sites]
    backward = [math.log(s.backward_measured / s.backward) / math.log(s.backward_tolerance) * 3 for s in sites]
    return Outcome(kind, tuple(forward), tuple(backward))


def coverage(outcomes):
    """Shares inside three sigma: of all sites forward and backward, of the last site, of the first one's gradient."""

    def share(values):
        values = list(values)
        return sum(abs(v) <= 3 for v in values) / len(values)

    return {
        "sites": share(v for o in outcomes for v in (*o.forward, *o.backward)),
        "forward": share(v for o in outcomes for v in o.forward),
        "backward": share(v for o in outcomes for v in o.backward),
        "last site": share(o.forward[-1] for o in outcomes),
        "first gradient": share(o.backward[0] for o in outcomes),
    }

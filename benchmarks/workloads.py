"""The networks that the cost of watching is measured on. Data is fixed, weights are seeded."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass
class Training:
    """One network and all that its training loop needs.

    Attributes:
        micro: Micro-batches whose gradients one step accumulates.
        half: Whether the forward pass runs under bfloat16 autocast.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor
    batch: int
    micro: int = 1
    half: bool = False

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        start = step * self.batch % (len(self.x) - self.batch)
        return self.x[start : start + self.batch], self.y[start : start + self.batch]

    def backward(self, x: Tensor, y: Tensor) -> Tensor:
        """The passes of one step; the last loss."""
        for a, b in zip(x.chunk(self.micro), y.chunk(self.micro), strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
                loss = functional.cross_entropy(self.model(a), b) / self.micro
            loss.backward()
        return loss


class DigitReader(nn.Module):
    """A pre-norm transformer that reads an 8x8 digit as 64 tokens."""

    def __init__(self, width: int = 128, heads: int = 4, depth: int = 6, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.embed = nn.Linear(1, width)
        self.position = nn.Parameter(torch.randn(64, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.position
        if not self.checkpointed:
            return self.head(self.encoder(x).mean(1))
        for layer in self.encoder.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(self.encoder.norm(x).mean(1))


def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)


def cnn() -> Training:
    """Seven 3x3 convolutions with batch normalization on digits of 32x32, batch 64."""
    x, y = digits()
    x = functional.interpolate(x.view(-1, 1, 8, 8), size=(32, 32), mode="bilinear")
    layers: list[nn.Module] = []
    channels = 1
    for index, width in enumerate((16, 16, 32, 32, 64, 64, 64)):
        stride = 2 if index in {2, 4} else 1
        layers += [nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-3), x, y, 64)


def transformer() -> Training:
    """Six pre-norm layers of width 128 on 64 tokens, batch 32."""
    x, y = digits()
    model = DigitReader()
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-3), x.unsqueeze(-1), y, 32)


def mlp() -> Training:
    """Ten layers of width 200, batch 64: a step so short that each hook shows."""
    layers = [part for _ in range(10) for part in (nn.Linear(200, 200), nn.ReLU())]
    model = nn.Sequential(*layers)
    x, y = torch.randn(2048, 200), torch.randint(10, (2048,))
    return Training(model, torch.optim.Adam(model.parameters(), lr=1e-3), x, y, 64)


def tiny() -> Training:
    """Thirty layers of width 16, batch 8: next to no bytes, so that what a reading costs is its fixed cost."""
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(30)))
    x, y = torch.randn(512, 16), torch.randint(10, (512,))
    return Training(model, torch.optim.SGD(model.parameters(), lr=1e-3), x, y, 8)


def half() -> Training:
    """The transformer under bfloat16 autocast."""
    return replace(transformer(), half=True)


def accumulated() -> Training:
    """The transformer with its batch in four micro-batches."""
    return replace(transformer(), micro=4)


def checkpointed() -> Training:
    """The transformer with each of its layers checkpointed."""
    training = transformer()
    training.model.checkpointed = True
    return training


def many() -> Training:
    """2,001 modules: a thousand residual layers of width 64 with their activations, batch 64."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(1000))
            self.activations = nn.ModuleList(nn.ReLU() for _ in range(999))
            self.head = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            for layer, activation in zip(self.layers, [*self.activations, torch.relu], strict=True):
                x = x + 0.03 * activation(layer(x))
            return self.head(x)

    model = Residual()
    x, y = torch.randn(2048, 64), torch.randint(10, (2048,))
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-3), x, y, 64)


WORKLOADS: dict[str, Callable[[], Training]] = {
    "cnn": cnn,
    "transformer": transformer,
    "mlp": mlp,
    "tiny": tiny,
    "half": half,
    "accumulated": accumulated,
    "checkpointed": checkpointed,
    "many": many,
}

"""Data and a loop that the healthy trainings share."""

import itertools
from collections.abc import Callable, Iterator

import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional as F

Batches = Callable[[], Iterator[tuple[Tensor, ...]]]


def digits(image: bool = False) -> tuple[Tensor, Tensor]:
    """Scikit-learn's 1797 handwritten digits, standardized as a whole; (N, 64), or (N, 1, 8, 8)."""
    x, y = datasets.load_digits(return_X_y=True)
    pixels = torch.tensor(x, dtype=torch.float32)
    pixels = (pixels - pixels.mean()) / pixels.std()
    return pixels.reshape(-1, 1, 8, 8) if image else pixels, torch.tensor(y)


def text(length: int = 16, samples: int = 512) -> Tensor:
    """Sequences of 12 symbols in which each follows from the two before it, but for one in ten that is drawn anew."""
    x = torch.randint(12, (samples, length))
    for t in range(2, length):
        follows = (x[:, t - 1] + 2 * x[:, t - 2] + 1) % 12
        x[:, t] = torch.where(torch.rand(samples) < 0.9, follows, x[:, t])
    return x


def passes(*tensors: Tensor, size: int = 64) -> Batches:
    """One shuffled pass after another, drawn from torch's generator."""

    def batches() -> Iterator[tuple[Tensor, ...]]:
        for index in torch.randperm(len(tensors[0])).split(size):
            if len(index) == size:
                yield tuple(tensor[index] for tensor in tensors)

    return batches


def cross_entropy(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Of classes, or of the classes at each position."""
    return F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def accuracy(x: Tensor, y: Tensor) -> Callable[[nn.Module], float]:
    """Share of right answers, of the first 500 samples."""

    @torch.no_grad()
    def evaluate(model: nn.Module) -> float:
        return float((model(x[:500]).argmax(-1) == y[:500]).float().mean())

    return evaluate


def he(net: nn.Module) -> nn.Module:
    """He's draw for linear layers and convolutions, biases at zero."""
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return net


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between."""
    parts: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        parts += [nn.Linear(a, b), act()]
    return nn.Sequential(*parts[:-1])

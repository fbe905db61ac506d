"""Data, nets and setups that several healthy trainings share."""

import itertools
from collections.abc import Callable, Iterator

import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional as F

from trimtab import Setup

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


class Recurrent(nn.Module):
    """A language model of one recurrent layer."""

    def __init__(self, cls: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(12, 32), cls(32, 64, batch_first=True), nn.Linear(64, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next symbol at each step."""
        return self.head(self.rnn(self.embed(x))[0])


class Causal(nn.Module):
    """A language model of three transformer layers, norms first or last in each."""

    def __init__(self, norm_first: bool, width: int = 48) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(12, width), nn.Parameter(0.1 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, batch_first=True, norm_first=norm_first)
        last = nn.LayerNorm(width) if norm_first else None
        self.body = nn.TransformerEncoder(layer, 3, last, enable_nested_tensor=False)
        self.head = nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the next symbol at each position."""
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.body(self.embed(x) + self.place[: x.shape[1]], mask, is_causal=True))


def warmed_up(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """A rate that rises over the first steps."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / steps))


def clipped_step(setup: Setup, batch: tuple[Tensor, ...]) -> Tensor:
    """A training step that bounds the gradient's norm by 1."""
    setup.optimizer.zero_grad()
    loss = setup.loss(setup.model, batch)
    loss.backward()
    nn.utils.clip_grad_norm_(setup.model.parameters(), 1.0)
    setup.optimizer.step()
    return loss


def next_symbol(net: Callable[[], nn.Module], rate: float, warm_up: int = 0, **more: object) -> Setup:
    """A language model under AdamW, told to say the next symbol of `text` at each position."""
    x, model = text(), net()
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    schedule = warmed_up(optimizer, warm_up) if warm_up else None
    given, wanted = x[:, :-1], x[:, 1:]
    return Setup(
        model, optimizer, passes(given, wanted), cross_entropy, 250, accuracy(given, wanted), scheduler=schedule, **more
    )


def convolutions(norm: Callable[[int], nn.Module]) -> nn.Sequential:
    """Three convolutions on images of digits, each with a norm of so many channels behind it."""
    parts: list[nn.Module] = []
    channels = 1
    for width in (16, 32, 32):
        parts += [nn.Conv2d(channels, width, 3, padding=1), norm(width), nn.ReLU(inplace=True)]
        channels = width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 10))


def classify_images(net: nn.Module) -> Setup:
    """Digits as images, under AdamW."""
    x, y = digits(image=True)
    return Setup(net, torch.optim.AdamW(net.parameters(), 2e-3), passes(x, y), cross_entropy, 150, accuracy(x, y))

"""A bank of small training problems with known answers: each once with its fault and once without, and healthy runs that look odd.

Each problem is a function `problem(broken) -> Setup`, listed in `PROBLEMS` with what a diagnosis has to say of it. The random
numbers come from torch's generator, which the caller seeds (`build`), so that a problem can be had with any seed.
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn import datasets
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR

from trimtab import Setup
from trimtab.norms.layers import MaskedBatchNorm1d


@dataclass(frozen=True)
class Problem:
    """A training run with a known fault, and its healthy twin.

    Attributes:
        make: `make(broken)` gives the run.
        code: The fault: the code of the first root.
        where: Places the root may name; it may name nothing else.
        also: Codes that may be said as well, above a note; all others must not be.
        slow: Whether it belongs to the second tier.
    """

    make: Callable[[bool], Setup]
    code: str
    where: tuple[str, ...]
    also: tuple[str, ...] = ()
    slow: bool = False

    @property
    def name(self):
        return self.make.__name__


PROBLEMS: list[Problem] = []
HEALTHY: list[Callable[[], Setup]] = []
HEAVY: set[str] = set()


def problem(code, *where, **more):
    """List a function `(broken) -> Setup` as a problem."""

    def listed(make):
        PROBLEMS.append(Problem(make, code, where, **more))
        return make

    return listed


def healthy(make, slow=False):
    """List a function `() -> Setup` as a healthy run."""
    HEALTHY.append(make)
    if slow:
        HEAVY.add(make.__name__)
    return make


def healthy_and_slow(make):
    """The same for the second tier."""
    return healthy(make, slow=True)


def build(make, *arguments, seed=0):
    """The run of a problem with a seed."""
    torch.manual_seed(seed)
    return make(*arguments)


# Data ----------------------------------------------------------------------------------------------------------------


@functools.cache
def digits(scaled=True):
    """1797 images of 64 pixels, in an order without pattern; standardized as a whole, or pixels from 0 to 16."""
    x, y = (torch.tensor(a) for a in datasets.load_digits(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order].float(), y[order]
    return ((x - x.mean()) / x.std() if scaled else x), y


@functools.cache
def table(name, scaled=True):
    """Features and target of a table; "diabetes" with a standardized target in a column of its own."""
    x, y = (torch.tensor(a) for a in getattr(datasets, f"load_{name}")(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    if name == "diabetes":
        y = ((y - y.mean()) / y.std()).float()[:, None]
    return ((x - x.mean(0)) / x.std(0) if scaled else x).float(), y


def passes(x, y, size=64):
    """`batches` of a setup: shuffled passes."""

    def fresh():
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        return [(x[i], y[i]) for i in order.split(size)]

    return fresh


# Networks ------------------------------------------------------------------------------------------------------------


def mlp(depth=3, width=64, act=nn.ReLU, ends=(64, 10)):
    """Linear layers "0", "2", "4", ... with activations between."""
    widths = [ends[0], *[width] * depth]
    body = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), act())]
    return nn.Sequential(*body, nn.Linear(widths[-1], ends[1]))


def cnn(depth=4, act=nn.ReLU, channels=16, norm=False):
    """3x3 convolutions over 8x8 digits, pooled to 2x2, and a linear layer."""
    body, wide = [], 1
    for _ in range(depth):
        body += [nn.Conv2d(wide, channels, 3, padding=1), *([nn.BatchNorm2d(channels)] if norm else []), act()]
        wide = channels
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 10))


def weighted(net):
    return [module for module in net.modules() if isinstance(module, (nn.Linear, nn.Conv2d))]


def he(net, scale=1.0):
    """He initialization, times a factor."""
    for layer in weighted(net):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
        layer.weight.data *= scale
    return net


def normal(net, std):
    """Weights of a standard deviation, biases of zero."""
    for layer in weighted(net):
        nn.init.normal_(layer.weight, std=std)
        nn.init.zeros_(layer.bias)
    return net


def hidden(depth, stride=2):
    """The names of the weight layers of a chain in front of its last."""
    return tuple(str(stride * i) for i in range(depth))


# Runs ----------------------------------------------------------------------------------------------------------------


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def squared_error(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


def classify(net, optimizer, steps=80, *, image=False, scaled=True, loss=cross_entropy, size=64, **more):
    """A run over the digits."""
    x, y = digits(scaled)
    return Setup(net, optimizer, passes(x.view(-1, 1, 8, 8) if image else x, y, size), loss, steps, **more)


def regress(net, optimizer, steps=100, *, target=lambda y: y, loss=squared_error, **more):
    """A run over the diabetes table."""
    x, y = table("diabetes")
    return Setup(net, optimizer, passes(x, target(y), 32), loss, steps, **more)


# Signal and gradient -------------------------------------------------------------------------------------------------


@problem("vanishing-gradient", *hidden(8), also=("signal-collapse",))
def tanh_drawn_small(broken):
    net = normal(mlp(8, act=nn.Tanh), 0.02 if broken else 0.14)
    return classify(net, SGD(net.parameters(), 0.05, momentum=0.9))


@problem("vanishing-gradient", *hidden(8), also=("signal-collapse", "dead-units"), slow=True)
def convolutions_drawn_small(broken):
    net = normal(cnn(8), 0.02) if broken else he(cnn(8))
    return classify(net, SGD(net.parameters(), 0.02, momentum=0.9), image=True)


@problem("vanishing-gradient", *hidden(6), also=("signal-collapse",), slow=True)
def sigmoid_convolutions(broken):
    net = cnn(6, nn.Sigmoid) if broken else he(cnn(6))
    return classify(net, SGD(net.parameters(), 0.05, momentum=0.9), image=True)


@problem("vanishing-gradient", *hidden(12), also=("signal-collapse",))
def torch_default_under_relu(broken):
    net = mlp(12, 100)
    return classify(net if broken else he(net), SGD(net.parameters(), 0.05 if broken else 0.02), 100)


@problem("exploding-gradient", *hidden(9), also=("learning-rate-too-high", "nonfinite-loss", "dead-units"))
def relu_drawn_large(broken):
    net = he(mlp(8), 2.5 if broken else 1.0)
    return classify(net, SGD(net.parameters(), 0.02))


@problem(
    "exploding-gradient",
    *hidden(8),
    "18",
    also=("learning-rate-too-high", "nonfinite-loss", "dead-units", "signal-collapse"),
    slow=True,
)
def convolutions_drawn_large(broken):
    net = normal(cnn(8), 0.5) if broken else he(cnn(8))
    return classify(net, SGD(net.parameters(), 0.01, momentum=0.9), image=True)


class Collapsing(nn.Module):
    """An MLP with a norm over a single value in its middle."""

    def __init__(self, broken):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.GroupNorm(32 if broken else 4, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.body(x))


@problem(
    "degenerate-normalization",
    "body.1",
    also=("signal-collapse", "dead-units", "frozen-parameters", "vanishing-gradient"),
)
def group_of_one(broken):
    net = Collapsing(broken)
    return classify(net, SGD(net.parameters(), 0.1))


@problem("signal-collapse", "2", also=("dead-units", "vanishing-gradient", "frozen-parameters"))
def zero_gain_without_skip(broken):
    net = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.LayerNorm(48), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 10))
    if broken:
        net[2].weight.requires_grad_(False).zero_()
    return classify(net, SGD(net.parameters(), 0.1))


@problem(
    "symmetric-init", *hidden(4), also=("signal-collapse", "vanishing-gradient", "dead-units", "frozen-parameters")
)
def all_zeros(broken):
    net = he(mlp(3), 0.0 if broken else 1.0)
    return classify(net, SGD(net.parameters(), 0.1 if broken else 0.02))


@problem("symmetric-init", *hidden(3), also=("signal-collapse", "vanishing-gradient"), slow=True)
def constant_convolutions(broken):
    net = he(cnn(3))
    if broken:
        for layer in weighted(net):
            nn.init.constant_(layer.weight, 0.05)
    return classify(net, SGD(net.parameters(), 0.02 if broken else 0.05), image=True)


# Units ---------------------------------------------------------------------------------------------------------------


class Functional(nn.Module):
    """Linear layers a, b, c with an activation that is no module."""

    def __init__(self, act):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.act = act

    def forward(self, x):
        return self.c(self.act(self.b(self.act(self.a(x)))))


@problem("dead-units", "b", also=("vanishing-gradient", "signal-collapse"))
def bias_below_zero_functional(broken):
    net = Functional(F.relu)
    if broken:
        nn.init.constant_(net.b.bias, -8.0)
    return classify(net, Adam(net.parameters(), 2e-3))


@problem("dead-units", "2", "3", also=("vanishing-gradient", "signal-collapse"))
def bias_below_zero_convolution(broken):
    net = he(cnn(4, lambda: nn.ReLU(inplace=True)))
    if broken:
        nn.init.constant_(net[2].bias, -20.0)
    return classify(net, SGD(net.parameters(), 0.05, momentum=0.9), image=True)


@problem("dead-units", "2", "3", also=("vanishing-gradient", "signal-collapse", "learning-rate-too-low"))
def nearly_all_biases_below_zero(broken):
    net = he(mlp(3))
    if broken:
        net[2].bias.data[:63] = -12.0
    return classify(net, SGD(net.parameters(), 0.02))


@problem("saturated-units", "a", "b", "c", also=("vanishing-gradient", "exploding-gradient"), slow=True)
def tanh_drawn_large_functional(broken):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(64, 64) for _ in range(4))

        def forward(self, x):
            return self.d(torch.tanh(self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))))

    net = Net()
    for layer in (net.a, net.b, net.c):
        nn.init.normal_(layer.weight, std=1.5 if broken else 0.15)
    return classify(net, SGD(net.parameters(), 0.005 if broken else 0.05), 150)


@problem(
    "saturated-units", *map(str, range(6)), also=("vanishing-gradient", "exploding-gradient", "learning-rate-too-low")
)
def tanh_drawn_large(broken):
    net = normal(mlp(3, act=nn.Tanh), 2.0 if broken else 0.15)
    return classify(net, SGD(net.parameters(), 0.002 if broken else 0.05), 150)


# Data ----------------------------------------------------------------------------------------------------------------


@problem("nonfinite-data", "data", also=("nonfinite-loss",))
def infinite_target(broken):
    net = mlp(1, 32, ends=(10, 1))

    def target(y):
        y = y.clone()
        y[5] = math.inf if broken else 0.0
        return y

    return regress(net, Adam(net.parameters(), 3e-3), target=target)


@problem("nonfinite-data", "data", also=("nonfinite-loss",))
def nan_in_a_feature(broken):
    x, y = table("wine")
    x = x.clone()
    if broken:
        x[100, 3] = math.nan
    net = mlp(1, 32, ends=(13, 3))
    return Setup(net, Adam(net.parameters(), 3e-3), passes(x, y, 32), cross_entropy, 80)


DIVERGES = (
    "learning-rate-too-high",
    "dead-units",
    "exploding-gradient",
    "nonfinite-loss",
    "signal-collapse",
    "ill-conditioned",
)


@problem("unscaled-inputs", "data", also=DIVERGES)
def inputs_far_from_zero(broken):
    x, y = digits()
    net = mlp(2)
    return Setup(net, SGD(net.parameters(), 0.05), passes(x + (1000 if broken else 0), y), cross_entropy, 100)


@problem("unscaled-inputs", "data", also=DIVERGES)
def pixels_of_255(broken):
    x, y = digits(scaled=False)
    net = mlp(2)
    optimizer = SGD(net.parameters(), 0.1, momentum=0.9)
    return Setup(net, optimizer, passes(x * (16 if broken else 1 / 16), y), cross_entropy, 150)


@problem("unscaled-inputs", "data", also=(*DIVERGES, "learning-rate-too-low"))
def raw_table(broken):
    x, y = table("breast_cancer", scaled=not broken)
    net = mlp(1, 32, ends=(30, 2))
    return Setup(net, SGD(net.parameters(), 0.05), passes(x, y, 32), cross_entropy, 150)


@problem("unscaled-targets", "data", also=DIVERGES)
def targets_in_thousands(broken):
    net = mlp(1, 32, ends=(10, 1))
    scale = 500 if broken else 1
    return regress(net, SGD(net.parameters(), 0.02), target=lambda y: scale * y + 3 * scale * broken)


@problem("unscaled-targets", "data", also=("learning-rate-too-low",), slow=True)
def targets_in_thousands_absolute_error(broken):
    net = mlp(1, 32, ends=(10, 1))
    scale = 2000 if broken else 1

    def loss(model, batch):
        return (model(batch[0]) - batch[1]).abs().mean()

    return regress(net, Adam(net.parameters(), 2e-3), 250, target=lambda y: scale * y + 5 * scale * broken, loss=loss)


# Loss ----------------------------------------------------------------------------------------------------------------


@problem("nonfinite-loss", "loss", also=("learning-rate-too-high", "exploding-gradient"))
def logarithm_of_zero(broken):
    def loss(model, batch):
        scores, target = 200 * model(batch[0]), batch[1]
        if not broken:
            return F.cross_entropy(scores / 200, target)
        grown = torch.exp(scores)
        return -(grown / grown.sum(1, keepdim=True)).gather(1, target[:, None]).log().mean()

    net = he(mlp(2))
    return classify(net, Adam(net.parameters(), 2e-3), loss=loss)


@problem("nonfinite-loss", "head")
def divided_by_a_norm_of_zero(broken):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = nn.Linear(64, 16), nn.Linear(16, 10)

        def forward(self, x):
            z = F.relu(self.encoder(x) - 0.5)
            return self.head(z / (z.square().sum(1, keepdim=True) + (0.0 if broken else 1e-6)).sqrt())

    net = Net()
    return classify(net, Adam(net.parameters(), 1e-2))


@problem("nonfinite-loss", "a", "b", "c", "")
def root_behind_where(broken):
    def act(x):
        return torch.where(x > 0, torch.sqrt(x.clamp_min(1e-4) if not broken else x), 0.2 * x)

    net = Functional(act)
    return classify(net, Adam(net.parameters(), 2e-3))


@problem("double-softmax", "", "loss", "net", also=("vanishing-gradient", "learning-rate-too-low"))
def softmax_function(broken):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(2)

        def forward(self, x):
            scores = self.net(x)
            return F.softmax(scores, -1) if broken else scores

    net = Net()
    return classify(net, SGD(net.parameters(), 0.05))


@problem("double-softmax", "3", also=("vanishing-gradient", "learning-rate-too-low"))
def sigmoid_before_bce_with_logits(broken):
    x, y = table("breast_cancer")
    net = mlp(1, 32, ends=(30, 1))
    if broken:
        net.append(nn.Sigmoid())

    def loss(model, batch):
        return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])

    return Setup(net, SGD(net.parameters(), 0.05), passes(x, y[:, None].float(), 32), loss, 100)


class Attends(nn.Module):
    """One head of attention over tokens, of which one is marked and says the class."""

    def __init__(self, scale, fused):
        super().__init__()
        self.scale, self.fused = scale, fused
        self.embed, self.head = nn.Linear(12, 64), nn.Linear(64, 4)
        self.attention = nn.ModuleDict({name: nn.Linear(64, 64) for name in "qkv"})
        for module in (self.embed, *self.attention.values()):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)

    def forward(self, x):
        h = F.layer_norm(self.embed(x), (64,))
        q, k, v = (self.attention[name](h) for name in "qkv")
        if self.fused:
            seen = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], scale=self.scale)[:, 0]
        else:
            seen = (q @ k.transpose(-2, -1) * self.scale).softmax(-1) @ v
        return self.head(seen.mean(1))


def marked_tokens(samples=512, tokens=24):
    x, y = torch.zeros(samples, tokens, 12), torch.randint(4, (samples,))
    x[:, :, :4] = 2.0 * F.one_hot(torch.randint(4, (samples, tokens)), 4)
    x[:, :, 4:8] = torch.randn(samples, tokens, 4)
    place = torch.arange(samples), torch.randint(tokens, (samples,))
    x[place] = F.pad(2.0 * F.one_hot(y, 4).float(), (0, 8))
    x[(*place, torch.tensor(8))] = 3.0
    return x, y


@problem("unscaled-attention", "attention", also=("vanishing-gradient", "learning-rate-too-low"))
def attention_without_the_root(broken):
    net = Attends(1.0 if broken else 1 / 8, fused=False)
    return Setup(net, Adam(net.parameters(), 5e-4), passes(*marked_tokens(), 64), cross_entropy, 120)


@problem("unscaled-attention", "attention", also=("vanishing-gradient", "learning-rate-too-low"))
def fused_attention_with_a_scale_of_one(broken):
    net = Attends(1.0 if broken else None, fused=True)
    return Setup(net, Adam(net.parameters(), 5e-4), passes(*marked_tokens(), 64), cross_entropy, 120)


# Optimizer -----------------------------------------------------------------------------------------------------------


@problem(
    "learning-rate-too-high",
    "optimizer",
    also=("nonfinite-loss", "exploding-gradient", "dead-units", "signal-collapse"),
    slow=True,
)
def convolutions_at_a_rate_of_three(broken):
    net = he(cnn(4))
    return classify(net, SGD(net.parameters(), 3.0 if broken else 0.03, momentum=0.9), image=True)


@problem(
    "learning-rate-too-high",
    "optimizer",
    also=("dead-units", "exploding-gradient", "nonfinite-loss", "signal-collapse"),
)
def adam_at_a_rate_of_one(broken):
    net = he(mlp(3))
    return classify(net, Adam(net.parameters(), 1.0 if broken else 1e-3))


@problem(
    "learning-rate-too-high",
    "optimizer",
    also=("dead-units", "exploding-gradient", "nonfinite-loss", "signal-collapse"),
)
def heavy_momentum(broken):
    net = he(mlp(3))
    return classify(net, SGD(net.parameters(), 1.0 if broken else 0.005, momentum=0.95))


@problem("learning-rate-too-low", "optimizer")
def adam_at_a_millionth(broken):
    net = he(mlp(3))
    return classify(net, Adam(net.parameters(), 1e-6 if broken else 1e-3), 120)


@problem("learning-rate-too-low", "optimizer", "loop", slow=True)
def schedule_ends_at_once(broken):
    net = he(cnn(3))
    optimizer = SGD(net.parameters(), 0.01 if broken else 0.05, momentum=0.0 if broken else 0.9)
    scheduler = ExponentialLR(optimizer, 0.85) if broken else CosineAnnealingLR(optimizer, 200)
    return classify(net, optimizer, 200, image=True, scheduler=scheduler)


def _stepping(before_step=None, clear=True):
    """A step of one's own: clear, backward, something with the gradients, step."""

    def step(setup, batch):
        if clear:
            setup.optimizer.zero_grad()
        loss = setup.loss(setup.model, batch)
        loss.backward()
        if before_step is not None:
            before_step(setup.model)
        setup.optimizer.step()
        return loss

    return step


@problem("clipping-dominates", "loop", also=("learning-rate-too-low",), slow=True)
def values_clipped_at_nothing(broken):
    net = he(mlp(2))
    bound = 1e-5 if broken else 1.0
    step = _stepping(lambda model: nn.utils.clip_grad_value_(model.parameters(), bound))
    return classify(net, SGD(net.parameters(), 0.05), step=step)


@problem("clipping-dominates", "loop", also=("learning-rate-too-low",))
def norm_clipped_at_a_hundredth(broken):
    net = he(mlp(2))
    step = _stepping(lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.01 if broken else 10.0))
    return classify(net, SGD(net.parameters(), 0.05), step=step)


# Wiring --------------------------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """A narrow tanh encoder and a head on what `cut` makes of its output."""

    def __init__(self, cut=lambda z: z):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 24), nn.Tanh(), nn.Linear(24, 4), nn.Tanh())
        self.head = nn.Linear(4, 10)
        self.cut = cut

    def forward(self, x):
        return self.head(self.cut(self.encoder(x)))


@problem("frozen-parameters", "encoder.0", "encoder.2")
def random_encoder_frozen(broken):
    net = Encoder()
    net.encoder.requires_grad_(not broken)
    return classify(net, SGD([p for p in net.parameters() if p.requires_grad], 0.1, momentum=0.9))


@problem("detached-graph", "encoder.0", "encoder.2")
def encoder_behind_numpy(broken):
    net = Encoder((lambda z: torch.from_numpy(z.detach().numpy())) if broken else (lambda z: z))
    return classify(net, Adam(net.parameters(), 5e-3))


@problem("missing-from-optimizer", *hidden(3), also=("learning-rate-too-low",))
def only_the_head_in_the_optimizer(broken):
    net = mlp(3, 16)
    if broken:
        return classify(net, SGD(net[-1].parameters(), 0.02))
    return classify(he(net), SGD(net.parameters(), 0.05, momentum=0.9), 150)


@problem("missing-from-optimizer", *(f"parts[{i}]" for i in range(5)), slow=True)
def layers_in_a_dict(broken):
    class Net(nn.Module):
        def __init__(self, container):
            super().__init__()
            self.first, self.head = nn.Linear(64, 24), nn.Linear(24, 10)
            self.parts = container({str(i): nn.Linear(24, 24) for i in range(5)})

        def forward(self, x):
            x = torch.tanh(self.first(x))
            for i in range(5):
                x = torch.tanh(self.parts[str(i)](x))
            return self.head(x)

    net = Net(dict if broken else nn.ModuleDict)
    return classify(net, SGD(net.parameters(), 0.05, momentum=0.9), 150)


@problem("missing-from-optimizer", "parts[0]", "parts[1]", "parts[2]")
def layers_in_a_list(broken):
    class Net(nn.Module):
        def __init__(self, container):
            super().__init__()
            self.first, self.head = nn.Linear(64, 24), nn.Linear(24, 10)
            self.parts = container([nn.Linear(24, 24) for _ in range(3)])

        def forward(self, x):
            x = torch.tanh(self.first(x))
            for part in self.parts:
                x = torch.tanh(part(x))
            return self.head(x)

    net = Net(list if broken else nn.ModuleList)
    return classify(net, SGD(net.parameters(), 0.05 if broken else 0.1, momentum=0.0 if broken else 0.9))


@problem(
    "missing-zero-grad", "loop", also=("learning-rate-too-high", "exploding-gradient", "dead-units", "nonfinite-loss")
)
def never_cleared_adam(broken):
    net = he(mlp(2))
    return classify(net, Adam(net.parameters(), 3e-3), step=_stepping(clear=not broken))


@problem(
    "missing-zero-grad", "loop", also=("learning-rate-too-high", "exploding-gradient", "dead-units", "nonfinite-loss")
)
def never_cleared_sgd(broken):
    net = he(mlp(2))
    return classify(net, SGD(net.parameters(), 0.02), step=_stepping(clear=not broken))


# The four runs of the comparison with other tools ---------------------------------------------------------------------


def eight_layers(kind):
    """Eight hidden layers of 64, SGD 0.1 with momentum 0.9, batches of 64 in order; layer k is module 2k."""
    x, y = digits()
    if kind == "healthy":
        body = [p for i in range(8) for p in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())]
        net = he(nn.Sequential(*body, nn.Linear(64, 10)))
    elif kind == "vanishing":
        net = normal(mlp(8, act=nn.Sigmoid), 0.01)
    else:
        net = he(mlp(8), 3.0 if kind == "exploding" else 1.0)
    if kind == "dead":
        nn.init.constant_(net[6].bias, -10.0)
        for layer in (net[2], net[10]):
            layer.bias.data[:48] = -10.0
    batches = [(x[i : i + 64], y[i : i + 64]) for i in range(0, 1436, 64)]
    return Setup(net, SGD(net.parameters(), 0.1, momentum=0.9), lambda: batches, cross_entropy, 120)


# Healthy runs that look odd ------------------------------------------------------------------------------------------


@healthy
def plain_adam():
    net = mlp(3)
    return classify(net, Adam(net.parameters(), 1e-3))


@healthy_and_slow
def deep_default_draw_that_adam_trains():
    net = mlp(8, 128)
    return classify(net, Adam(net.parameters(), 1e-3), 250)


@healthy_and_slow
def batch_norm_convolutions_with_decay():
    net = cnn(5, norm=True)
    return classify(net, SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4), image=True)


@healthy
def raw_pixels_behind_batch_norm():
    net = nn.Sequential(nn.BatchNorm1d(64), *mlp(2))
    return classify(net, SGD(net.parameters(), 0.05, momentum=0.9), scaled=False)


@healthy
def raw_pixels_under_adam():
    net = mlp(2)
    return classify(net, Adam(net.parameters(), 1e-3), scaled=False)


@healthy
def tanh_at_its_own_scale():
    net = mlp(4, act=nn.Tanh)
    return classify(net, SGD(net.parameters(), 0.1, momentum=0.9))


@healthy
def autoencoder():
    x, _ = digits()
    net = nn.Sequential(*mlp(1, 32, ends=(64, 8)), *mlp(1, 32, ends=(8, 64)))
    return Setup(net, Adam(net.parameters(), 3e-3), passes(x, x), squared_error, 250)


@healthy_and_slow
def variational_autoencoder():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = mlp(1, ends=(64, 8)), mlp(1, ends=(4, 64))

        def forward(self, x):
            mean, log_variance = self.encoder(x).chunk(2, -1)
            return self.decoder(mean + torch.randn_like(mean) * (log_variance / 2).exp()), mean, log_variance

    def loss(model, batch):
        made, mean, log_variance = model(batch[0])
        error = (made - batch[0]).square().sum(1).mean()
        return error + 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()

    net = Net()
    return classify(net, Adam(net.parameters(), 2e-3), 200, loss=loss)


class Rows(nn.Module):
    """A recurrent net over the eight rows of a digit."""

    def __init__(self, cell, embedding=False):
        super().__init__()
        self.embedding = nn.Embedding(17, 8) if embedding else None
        self.cell, self.head = cell(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x):
        x = x.view(-1, 8, 8) if self.embedding is None else self.embedding(x)
        return self.head(self.cell(x)[0][:, -1])


@healthy
def gru_over_rows():
    net = Rows(nn.GRU)
    return classify(net, Adam(net.parameters(), 1e-2), 150)


@healthy_and_slow
def lstm_over_embedded_pixels():
    x, y = digits(scaled=False)
    net = Rows(nn.LSTM, embedding=True)
    return Setup(net, Adam(net.parameters(), 2e-2), passes(x[:, 16:48].long(), y), cross_entropy, 150)


@healthy_and_slow
def pre_norm_transformer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
            self.embed, self.head = nn.Linear(8, 32), nn.Linear(32, 10)
            self.place = nn.Parameter(torch.randn(8, 32) * 0.02)
            self.body = nn.TransformerEncoder(block, 2, norm=nn.LayerNorm(32), enable_nested_tensor=False)

        def forward(self, x):
            return self.head(self.body(self.embed(x.view(-1, 8, 8)) + self.place).mean(1))

    net = Net()
    optimizer = AdamW(net.parameters(), 3e-3)
    return classify(net, optimizer, 120, scheduler=CosineAnnealingLR(optimizer, 120))


@healthy_and_slow
def labels_partly_wrong():
    x, y = digits()
    wrong = torch.rand(len(y)) < 0.4
    y = torch.where(wrong, torch.randint(0, 10, y.shape), y)
    net = mlp(2)
    optimizer = SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-2)
    return Setup(net, optimizer, passes(x, y), cross_entropy, 200)


@healthy
def linear_regression():
    x, y = table("diabetes")
    net = nn.Linear(10, 1)
    return Setup(net, SGD(net.parameters(), 0.05), passes(x, y, 442), squared_error, 150)


@healthy
def targets_of_moderate_size():
    net = mlp(1, 64, ends=(10, 1))
    return regress(net, Adam(net.parameters(), 1e-2), 250, target=lambda y: 8 * y + 15)


def pretrained(net, target=lambda y: y, passes_done=8):
    """The net after some passes of Adam over the digits."""
    optimizer = Adam(net.parameters(), 2e-3)
    x, y = digits()
    for _ in range(passes_done):
        for batch in passes(x, target(y))():
            optimizer.zero_grad()
            cross_entropy(net, batch).backward()
            optimizer.step()
    for parameter in net.parameters():
        parameter.grad = None
    return net


@healthy
def low_rank_adapters():
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Linear(base.in_features, 4, bias=False)
            self.up = nn.Linear(4, base.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    net = pretrained(mlp(2), lambda y: (y + 3) % 10)
    for i in (0, 2, 4):
        net[i] = Adapted(net[i])
    return classify(net, Adam([p for p in net.parameters() if p.requires_grad], 5e-3), 150)


@healthy
def new_head_on_a_trained_body():
    net = pretrained(mlp(2, 96))
    net[-1] = nn.Linear(96, 2)
    x, y = digits()
    return Setup(net, Adam(net[-1].parameters(), 3e-3), passes(x, y % 2), cross_entropy, 120)


@healthy
def body_frozen_after_training():
    net = pretrained(mlp(2, 96))
    net[-1] = nn.Linear(96, 10)
    net[:4].requires_grad_(False)
    return classify(net, Adam(net[-1].parameters(), 3e-3))


@healthy
def a_short_warm_start():
    net = pretrained(mlp(2))
    return classify(net, SGD(net.parameters(), 1e-3), 60)


@healthy
def branches_that_start_at_zero():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
            nn.init.kaiming_normal_(self.a.weight)
            nn.init.zeros_(self.b.weight)
            nn.init.zeros_(self.b.bias)

        def forward(self, x):
            return x + self.b(F.relu(self.a(x)))

    net = nn.Sequential(*[Block() for _ in range(8)], nn.Linear(64, 10))
    nn.init.zeros_(net[-1].weight)
    return classify(net, SGD(net.parameters(), 0.05))


@healthy_and_slow
def zero_gains_in_residual_blocks():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.c1, self.n1 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
            self.c2, self.n2 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
            self.relu = nn.ReLU(inplace=True)
            nn.init.zeros_(self.n2.weight)

        def forward(self, x):
            z = self.n2(self.c2(self.relu(self.n1(self.c1(x)))))
            z += x
            return self.relu(z)

    body = [nn.Conv2d(1, 16, 3, padding=1), Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*body, nn.Linear(16, 10))
    return classify(net, SGD(net.parameters(), 0.1, momentum=0.9), 150, image=True)


@healthy
def bfloat16():
    def loss(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(batch[0])
        return F.cross_entropy(scores.float(), batch[1])

    net = mlp(3)
    return classify(net, Adam(net.parameters(), 1e-3), loss=loss)


@healthy
def half_precision_whose_scaler_skips_steps():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=1000)

    def loss(model, batch):
        with torch.autocast("cpu", torch.float16):
            scores = model(batch[0])
        return F.cross_entropy(scores.float(), batch[1])

    def step(setup, batch):
        setup.optimizer.zero_grad()
        found = setup.loss(setup.model, batch)
        scaler.scale(found).backward()
        scaler.step(setup.optimizer)
        scaler.update()
        return found

    net = he(mlp(2))
    return classify(net, Adam(net.parameters(), 1e-3), loss=loss, step=step)


@healthy
def adam_clipped_at_every_step():
    net = mlp(3)
    step = _stepping(lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    return classify(net, Adam(net.parameters(), 1e-3), step=step)


@healthy
def accumulation_over_four_batches():
    def step(setup, batch):
        setup.optimizer.zero_grad()
        total = 0.0
        for x, y in zip(batch[0].chunk(4), batch[1].chunk(4), strict=True):
            loss = cross_entropy(setup.model, (x, y)) / 4
            loss.backward()
            total = total + loss.detach()
        setup.optimizer.step()
        return total

    net = mlp(3)
    return classify(net, Adam(net.parameters(), 1e-3), step=step)


@healthy_and_slow
def embedding_tied_to_the_output():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(17, 32)
            self.cell, self.out = nn.GRU(32, 32, batch_first=True), nn.Linear(32, 17, bias=False)
            self.out.weight = self.embedding.weight
            nn.init.normal_(self.embedding.weight, std=0.1)

        def forward(self, x):
            return self.out(self.cell(self.embedding(x))[0])

    def loss(model, batch):
        x = batch[0][:, :24]
        return F.cross_entropy(model(x[:, :-1]).reshape(-1, 17), x[:, 1:].reshape(-1))

    x, y = digits(scaled=False)
    net = Net()
    return Setup(net, Adam(net.parameters(), 5e-3), passes(x.long(), y), loss, 100)


@healthy_and_slow
def wide_and_slow():
    net = he(mlp(2, 512))
    return classify(net, SGD(net.parameters(), 0.01), 100)


@healthy_and_slow
def adversarial_pair():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = mlp(1, 32, ends=(4, 2))
            self.judge = mlp(1, 32, lambda: nn.LeakyReLU(0.2), ends=(2, 1))

    def says(scores, answer):
        return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, answer))

    def fools(model, batch):
        return says(model.judge(model.generator(batch[0])), 1.0)

    def step(setup, batch):
        one, other = setup.optimizer
        model, (noise, real) = setup.model, batch
        other.zero_grad()
        loss = says(model.judge(real), 1.0) + says(model.judge(model.generator(noise).detach()), 0.0)
        loss.backward()
        other.step()
        one.zero_grad()
        fools(model, batch).backward()
        one.step()
        return loss

    net = Pair()
    noise, real = torch.randn(1280, 4), torch.randn(1280, 2) * 0.5 + 1
    optimizers = [Adam(net.generator.parameters(), 1e-3), Adam(net.judge.parameters(), 1e-3)]
    return Setup(net, optimizers, passes(noise, real), fools, 150, step=step)


@healthy_and_slow
def contrastive():
    def loss(model, batch):
        one, other = (F.normalize(model(batch[0] + 0.3 * torch.randn_like(batch[0])), dim=1) for _ in range(2))
        return F.cross_entropy(one @ other.t() / 0.2, torch.arange(len(one)))

    net = mlp(2, 64, ends=(64, 16))
    return classify(net, Adam(net.parameters(), 1e-3), loss=loss)


@healthy_and_slow
def distillation():
    teacher = pretrained(mlp(1, 96)).requires_grad_(False)

    def loss(model, batch):
        return F.kl_div(model(batch[0]).log_softmax(-1), teacher(batch[0]).softmax(-1), reduction="batchmean")

    net = mlp(2)
    return classify(net, Adam(net.parameters(), 2e-3), loss=loss)


# Batch normalization -------------------------------------------------------------------------------------------------


def normed(norm=nn.BatchNorm1d, width=48, depth=2, ends=(64, 10), act=nn.ReLU):
    """Linear layers "0", "3", ... with norms "1", "4", ... behind them."""
    widths = [ends[0], *[width] * depth]
    body = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), norm(b), act())]
    return nn.Sequential(*body, nn.Linear(widths[-1], ends[1]))


@problem("small-batch-batchnorm", "1", "4", "7", also=("exploding-gradient",))
def batches_of_two(broken):
    net = normed(nn.BatchNorm1d if broken else nn.LayerNorm, depth=3, act=nn.Tanh)
    return classify(net, SGD(net.parameters(), 0.02), 500, size=2)


@problem("small-batch-batchnorm", "1", "4", also=("exploding-gradient", "train-eval-gap"))
def accumulated_pairs(broken):
    """Sixteen backward passes of two samples a step; its twin normalizes the 32 samples at once."""
    size = 2 if broken else 32

    def step(setup, batch):
        setup.optimizer.zero_grad()
        total = 0.0
        for x, y in zip(batch[0].split(size), batch[1].split(size), strict=True):
            loss = cross_entropy(setup.model, (x, y)) * len(x) / len(batch[0])
            loss.backward()
            total += loss.detach()
        setup.optimizer.step()
        return total

    x, y = digits()
    net = normed(act=nn.Tanh)
    return Setup(net, SGD(net.parameters(), 0.1), passes(x[:1792], y[:1792], 32), cross_entropy, 100, step=step)


@problem("stale-running-stats", "1", "4")
def norms_of_other_data(broken):
    """Fine-tuned with the statistics of dark, flat pictures; the head alone is trained."""
    net = pretrained(normed())
    for part in net[:-1]:
        part.requires_grad_(False)
        if broken and isinstance(part, nn.BatchNorm1d):
            part.momentum = 0.0
    x, y = digits()
    return Setup(net, SGD(net[-1].parameters(), 0.05), passes(2 * x + 3, y, 32), cross_entropy, 120)


@problem("stale-running-stats", "1", "4", also=("learning-rate-too-high", "exploding-gradient", "nonfinite-loss"))
def norms_left_in_evaluation(broken):
    """The norms alone are put into evaluation mode, before they have seen anything."""

    def step(setup, batch):
        setup.model.train()
        for part in setup.model if broken else ():
            if isinstance(part, nn.BatchNorm1d):
                part.eval()
        setup.optimizer.zero_grad()
        loss = cross_entropy(setup.model, batch)
        loss.backward()
        setup.optimizer.step()
        return loss

    net = normed(depth=2)
    x, y = digits(scaled=False)
    return Setup(net, SGD(net.parameters(), 0.5), passes(30 * x, y, 32), cross_entropy, 80, step=step)


@problem("train-eval-gap", "data")
def sorted_by_class(broken):
    x, y = table("wine")
    order = torch.argsort(y, stable=True) if broken else torch.arange(len(y))
    net = normed(ends=(13, 3), width=24)
    data = [(x[i], y[i]) for i in order.split(16)]
    return Setup(net, SGD(net.parameters(), 0.05), lambda: data, cross_entropy, 150)


@problem("train-eval-gap", "1", "4")
def momentum_of_one(broken):
    net = normed(functools.partial(nn.BatchNorm1d, momentum=1.0 if broken else 0.05))
    return classify(net, SGD(net.parameters(), 0.05), 500, size=8)


@problem("train-eval-gap", "2", "6")
def dropout_before_norms(broken):
    """A third of bright pixels is dropped in front of each norm, or in front of the last layer."""

    def drop(early):
        return nn.Dropout(0.35) if early is broken else nn.Identity()

    net = nn.Sequential(
        nn.Flatten(), drop(True), nn.BatchNorm1d(64), nn.Linear(64, 96), nn.ReLU(),
        drop(True), nn.BatchNorm1d(96), nn.Linear(96, 96), nn.ReLU(), drop(False), nn.Linear(96, 10),
    )  # fmt: skip
    x, y = digits()
    return Setup(net, SGD(net.parameters(), 0.05), passes(x + 4, y, 32), cross_entropy, 250)


class Reader(nn.Module):
    """Convolutions along sequences of varying length, filled up with zeros, and the mean over the real positions."""

    def __init__(self, masked):
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 24, 3, padding=1), nn.Conv1d(24, 24, 3, padding=1)
        self.norm, self.masked = MaskedBatchNorm1d(24) if masked else nn.BatchNorm1d(24), masked
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        real = (x != 0).any(1)
        h = self.norm(self.first(x), *[real] * self.masked)
        h = self.second(torch.relu(h)) * real[:, None]
        return self.head(h.sum(2) / real.sum(1, keepdim=True))


@problem("padding-in-batch-stats", "norm", also=("train-eval-gap",))
def padded_sequences(broken):
    """Which of four patterns a sequence holds; lengths from 4 to 60, far from zero."""
    count, length = 512, 60
    y = torch.randint(4, (count,))
    pattern = torch.randn(4, 4, 1)
    x = 3 + pattern[y] * 0.4 + 0.5 * torch.randn(count, 4, length)
    lengths = torch.where(torch.rand(count) < 0.8, torch.randint(4, 10, (count,)), length)
    x[(torch.arange(length) >= lengths[:, None])[:, None].expand_as(x)] = 0
    net = Reader(masked=not broken)
    return Setup(net, SGD(net.parameters(), 0.05), passes(x, y, 32), cross_entropy, 100)


@healthy
def frozen_norms_that_fit():
    """Fine-tuning with norms in evaluation mode, on the data they know."""
    net = pretrained(normed())

    def step(setup, batch):
        setup.model.train()
        for part in setup.model:
            if isinstance(part, nn.BatchNorm1d):
                part.eval()
        setup.optimizer.zero_grad()
        loss = cross_entropy(setup.model, batch)
        loss.backward()
        setup.optimizer.step()
        return loss

    return classify(net, SGD(net.parameters(), 0.01), step=step)


@healthy
def mild_dropout_before_norms():
    net = nn.Sequential(
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(64, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    return classify(net, SGD(net.parameters(), 0.1), 150, size=32)


@healthy
def images_with_empty_borders():
    """A wide black border is the same in every image, and is data."""
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Linear(288, 10),
    )
    x, y = digits()
    x = F.pad(x.view(-1, 1, 8, 8) - x.min(), (5, 5, 5, 5))
    return Setup(net, SGD(net.parameters(), 0.1), passes(x, y, 32), cross_entropy, 120)


@healthy
def norms_on_batches_of_six():
    net = normed()
    return classify(net, SGD(net.parameters(), 0.02), 500, size=6)


# Norms and residual sums at the wrong place ---------------------------------------------------------------------------

ERASED = ("signal-collapse", "dead-units", "frozen-parameters", "vanishing-gradient")


@problem("degenerate-normalization", "gate.3", also=ERASED)
def layer_norm_of_one_gate(broken):
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp(1, ends=(10, 1))
            last = nn.LayerNorm(1) if broken else nn.Identity()
            self.gate = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1), last)

        def forward(self, x):
            return self.body(x) * torch.sigmoid(self.gate(x))

    net = Gated()
    return regress(net, Adam(net.parameters(), 3e-3), 150)


@problem("degenerate-normalization", "norm", also=(*ERASED, "symmetric-init"))
def norm_by_hand_over_the_wrong_axis(broken):
    class LayerNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain, self.shift = nn.Parameter(torch.ones(48)), nn.Parameter(torch.zeros(48))

        def forward(self, x):
            x = x[:, None]
            axis = 1 if broken else 2
            spread = x.std(axis, keepdim=True, correction=0)
            return self.gain * ((x - x.mean(axis, keepdim=True)) / (spread + 1e-5)).squeeze(1) + self.shift

    net = nn.Sequential()
    net.first, net.norm, net.act, net.last = nn.Linear(64, 48), LayerNorm(), nn.GELU(), nn.Linear(48, 10)
    return classify(net, Adam(net.parameters(), 2e-3), 120)


@problem("degenerate-normalization", "squeeze.1", also=(*ERASED, "learning-rate-too-low"))
def rms_norm_of_one_number(broken):
    class Narrow(nn.Module):
        def __init__(self):
            super().__init__()
            self.squeeze = nn.Sequential(nn.Linear(10, 1), nn.RMSNorm(1) if broken else nn.Identity())
            self.out = mlp(1, 16, ends=(1, 1))

        def forward(self, x):
            return self.out(self.squeeze(x))

    x, _ = table("diabetes")
    y = x @ torch.linspace(-1, 1, 10)[:, None]
    net = Narrow()
    return Setup(net, Adam(net.parameters(), 1e-2), passes(x, (y - y.mean()).sin(), 64), squared_error, 200)


@problem("norm-precision", "norm", also=("nonfinite-loss",))
def root_mean_square_in_half(broken):
    class HalfRMS(nn.Module):
        def __init__(self, eps):
            super().__init__()
            self.gain, self.eps = nn.Parameter(torch.ones(48)), eps

        def forward(self, x):
            x = x.half()
            return self.gain * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)).float()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = (
                nn.Linear(64, 48, bias=False),
                HalfRMS(1e-9 if broken else 1e-2),
                mlp(1, ends=(48, 10)),
            )

        def forward(self, x):
            return self.last(self.norm(self.first(x)))

    x, y = digits()
    x = x.clone()
    x[::40] = 0  # missing images
    net = Net()
    return Setup(net, Adam(net.parameters(), 2e-3), passes(x, y), cross_entropy, 100)


@problem(
    "norm-precision", "0", also=("signal-collapse", "vanishing-gradient", "learning-rate-too-low", "ill-conditioned")
)
def eps_above_the_variance(broken):
    x, y = digits()
    net = nn.Sequential(nn.LayerNorm(64, eps=0.5 if broken else 1e-8), *mlp(2))
    return Setup(net, SGD(net.parameters(), 0.1), passes(x / 100, y), cross_entropy, 100)


@problem("norm-placement", "5", also=("learning-rate-too-high", "small-batch-batchnorm"))
def batch_norm_scales_the_answer(broken):
    x, _ = table("diabetes")
    target = (x[:, 2] * x[:, 8] + x[:, 3])[:, None]
    net = nn.Sequential(
        *mlp(1, 64, ends=(10, 32)), nn.Tanh(), nn.Linear(32, 1), nn.BatchNorm1d(1) if broken else nn.Identity()
    )
    return Setup(net, Adam(net.parameters(), 3e-3), passes(x, target, 4), squared_error, 400)


class PostNorm(nn.Module):
    """Rows of a digit through torch's own encoder layers."""

    def __init__(self, depth, norm_first):
        super().__init__()
        self.embed, self.head = nn.Linear(8, 32), nn.Linear(32, 10)
        self.place = nn.Parameter(0.3 * torch.randn(8, 32))
        layer = [
            nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=norm_first) for _ in range(depth)
        ]
        self.stack, self.norm = nn.ModuleList(layer), nn.LayerNorm(32) if norm_first else nn.Identity()

    def forward(self, x):
        x = self.embed(x.view(-1, 8, 8)) + self.place
        for layer in self.stack:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


@problem(
    "norm-placement",
    *(f"stack.{i}.norm{j}" for i in range(16) for j in (1, 2)),
    also=("signal-collapse", "vanishing-gradient", "learning-rate-too-high"),
    slow=True,
)
def post_norm_of_sixteen_layers(broken):
    net = PostNorm(16, norm_first=not broken)
    return classify(net, Adam(net.parameters(), 8e-3 if broken else 3e-3), 110)


@healthy_and_slow
def post_norm_of_three_layers():
    net = PostNorm(3, norm_first=False)
    return classify(net, Adam(net.parameters(), 2e-3), 150)


def residual(depth, scale, act=nn.ReLU):
    """Blocks of two layers, each of which keeps the second moment."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = he(nn.Sequential(nn.Linear(64, 64), act(), nn.Linear(64, 64)))

        def forward(self, x):
            return x + scale * self.f(x)

    return nn.ModuleList([Block() for _ in range(depth)])


GROWN = ("exploding-gradient", "learning-rate-too-high", "dead-units", "nonfinite-loss", "signal-collapse")


@problem("residual-growth", *(f"blocks.{i}" for i in range(20)), also=GROWN)
def twenty_blocks_added_up(broken):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = nn.Linear(64, 64), nn.Linear(64, 10)
            self.blocks = residual(20, 1.0 if broken else 20**-0.5)

        def forward(self, x):
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    net = Net()
    return classify(net, SGD(net.parameters(), 0.02, momentum=0.9), 100)


@problem(
    "residual-growth",
    *(f"branches.{i}.0" for i in range(16)),
    *(f"branches.{i}" for i in range(16)),
    "head",
    also=GROWN,
    slow=True,
)
def sums_in_the_model_itself(broken):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            branch = [
                he(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)))
                for _ in range(16)
            ]
            self.stem, self.branches, self.head = (
                nn.Conv2d(1, 16, 3, padding=1),
                nn.ModuleList(branch),
                nn.Linear(1024, 10),
            )

        def forward(self, x):
            x = self.stem(x)
            for branch in self.branches:
                x = x + branch(x) * (1.0 if broken else 0.25)
            return self.head(x.flatten(1))

    net = Net()
    return classify(net, SGD(net.parameters(), 0.01, momentum=0.9), 60, image=True)


@healthy
def unscaled_blocks_under_a_last_norm():
    net = nn.Sequential(*residual(8, 1.0), nn.LayerNorm(64), nn.Linear(64, 10))
    return classify(net, Adam(net.parameters(), 1e-3), 100)


@healthy
def group_norm_of_pairs_that_learns():
    net = nn.Sequential(nn.Linear(64, 64), nn.GroupNorm(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return classify(net, Adam(net.parameters(), 3e-3), 120)


@healthy
def logits_behind_batch_norm():
    net = nn.Sequential(*mlp(2), nn.BatchNorm1d(10))
    return classify(net, Adam(net.parameters(), 3e-3), 150)


@healthy
def decoder_that_ends_in_batch_norm():
    x, _ = digits()
    net = nn.Sequential(*mlp(1, 32, ends=(64, 12)), *mlp(1, 32, ends=(12, 64)), nn.BatchNorm1d(64))
    return Setup(net, Adam(net.parameters(), 3e-3), passes(x, x), squared_error, 250)


# Weight decay --------------------------------------------------------------------------------------------------------


def in_groups(net, chosen, decay, make, **settings):
    """An optimizer with a decay of its own for the parameters that are chosen by module and name; the others have none."""
    picked = [p for module in net.modules() for name, p in module.named_parameters(recurse=False) if chosen(module, p)]
    known = {id(p) for p in picked}
    others = [p for p in net.parameters() if id(p) not in known]
    return make([{"params": picked, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}], **settings)


def is_batch_norm(module, parameter):
    return isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d))


def is_matrix(module, parameter):
    return parameter.ndim > 1 and parameter.shape[0] > 10


def plain_with_norms(depth=9, width=40):
    body, wide = [], 64
    for _ in range(depth):
        body += [nn.Linear(wide, width), nn.BatchNorm1d(width), nn.ReLU()]
        wide = width
    return nn.Sequential(*body, nn.Linear(width, 10))


LAGGING = ("stale-running-stats", "train-eval-gap")  # of weights that never settle
GAINS_GONE = ("signal-collapse", "dead-units", "vanishing-gradient")


@problem("decayed-norm-parameters", "optimizer", also=(*GAINS_GONE, *LAGGING))
def gains_decayed_by_momentum(broken):
    net = plain_with_norms()
    optimizer = in_groups(net, is_batch_norm, 0.5 if broken else 0.0, SGD, lr=0.04, momentum=0.9)
    return classify(net, optimizer, 250)


@problem("decayed-norm-parameters", "optimizer", also=(*GAINS_GONE, *LAGGING), slow=True)
def gains_decayed_beside_the_gradient(broken):
    net = plain_with_norms(11)
    optimizer = in_groups(net, is_batch_norm, 20.0 if broken else 0.01, AdamW, lr=4e-3)
    return classify(net, optimizer, 350)


@problem("excessive-weight-decay", "optimizer", also=("learning-rate-too-high", *LAGGING), slow=True)
def decay_turns_convolutions(broken):
    net = cnn(4, norm=True)
    optimizer = in_groups(net, is_matrix, 2.0 if broken else 2e-3, SGD, lr=0.05, momentum=0.5)
    return classify(net, optimizer, 200, image=True)


@problem("excessive-weight-decay", "optimizer", also=(*GAINS_GONE, "learning-rate-too-high"))
def decay_in_the_gradient_under_adam(broken):
    net = mlp(3, 48, nn.GELU)
    return classify(net, Adam(net.parameters(), 3e-3, weight_decay=0.2 if broken else 1e-4), 200)


@problem("excessive-weight-decay", "optimizer", also=GAINS_GONE)
def decay_of_a_whole_number(broken):
    net = mlp(2, 48, nn.Tanh, ends=(10, 1))
    return regress(net, AdamW(net.parameters(), 5e-3, weight_decay=20.0 if broken else 0.05), 400)


@healthy
def a_strong_decay_of_everything():
    net = cnn(4, norm=True)
    optimizer = SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-3)
    return classify(net, optimizer, 250, image=True)


@healthy
def decay_of_a_noisy_regression():
    net = nn.Linear(10, 1)
    return regress(net, SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-2), 400)


@healthy_and_slow
def decay_of_gains_in_a_deep_net():
    net = plain_with_norms()
    return classify(net, AdamW(net.parameters(), 2e-3, weight_decay=0.1), 300)


import problems_optimization  # noqa: E402, F401  it lists its own here
import problems_probes  # noqa: E402, F401 - they list themselves
import problems_transformers  # noqa: E402, F401

"""Runs whose fault only a probe can see: samples that mix, a future that is shown, inputs and targets that do not belong together."""

import functools
import math

import torch
from problems import digits, healthy, mlp, passes, problem, table
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

from trimtab import Setup


def classes(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def rows(flat=False):
    """Digits as sequences of eight rows of eight pixels."""
    x, y = digits()
    return (x if flat else x.view(-1, 8, 8)), y


def setup_of(model, x, y, steps=120, rate=3e-3, loss=classes, size=32, optimizer=Adam):
    return Setup(model, optimizer(model.parameters(), rate), passes(x, y, size), loss, steps=steps)


# Samples that mix -----------------------------------------------------------------------------------------------------


class Attentive(nn.Module):
    """Attention over rows, pooled; with samples first or, mistaken, with rows first."""

    def __init__(self, samples_first, width=24):
        super().__init__()
        self.lift = nn.Linear(8, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=samples_first)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.lift(x)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return self.head(x.mean(1))


@problem("cross-sample-leak", "attention", also=("learning-rate-too-low",))
def attention_over_samples(broken):
    return setup_of(Attentive(not broken), *rows())


class Recurrent(nn.Module):
    def __init__(self, samples_first):
        super().__init__()
        self.memory = nn.LSTM(8, 32, batch_first=samples_first)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


@problem("cross-sample-leak", "memory", also=("learning-rate-too-low", "vanishing-gradient"))
def recurrence_over_samples(broken):
    return setup_of(Recurrent(not broken), *rows(), rate=1e-2)


class Reshaped(nn.Module):
    """Channels and positions exchanged before the head: by permute, or by a view that also takes the batch apart."""

    def __init__(self, broken):
        super().__init__()
        self.broken = broken
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(512, 10)

    def forward(self, x):
        z = self.conv(x[:, None]).relu()
        n, c = z.shape[:2]
        z = z.permute(2, 3, 0, 1).reshape(n, -1, c) if self.broken else z.permute(0, 2, 3, 1).reshape(n, -1, c)
        return self.head(self.mix(z).relu().flatten(1))


@problem("cross-sample-leak", "mix", also=("learning-rate-too-low", "input-ignored"))
def a_view_across_samples(broken):
    return setup_of(Reshaped(broken), *rows())


class Weighted(nn.Module):
    """A soft choice of features: over the features, or, mistaken, over the samples."""

    def __init__(self, axis):
        super().__init__()
        self.score = nn.Linear(64, 64)
        self.gate = nn.Softmax(dim=axis)
        self.body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x):
        return self.body(64 * x * self.gate(self.score(x)))


@problem("cross-sample-leak", "gate")
def softmax_over_samples(broken):
    def wide(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    return setup_of(Weighted(0 if broken else 1), *rows(flat=True), loss=wide)


class Centred(nn.Module):
    """Takes the mean of what it is given away: of each sample, or, mistaken, of the batch."""

    def __init__(self, broken):
        super().__init__()
        self.broken = broken

    def forward(self, x):
        return x - (x.mean(0, keepdim=True) if self.broken else x.mean(1, keepdim=True))


@problem("cross-sample-leak", "1")
def mean_over_samples(broken):
    model = nn.Sequential(nn.Linear(64, 48), Centred(broken), nn.ReLU(), nn.Linear(48, 10))
    return setup_of(model, *rows(flat=True))


class TwoInputs(nn.Module):
    """A table and an image, fed by name; the image's part is scaled by its largest value, of the sample or of the batch."""

    def __init__(self, broken):
        super().__init__()
        self.broken = broken
        self.image = nn.Linear(64, 24)
        self.kind = nn.Embedding(2, 8)
        self.scale = Largest(broken)
        self.head = nn.Linear(32, 10)

    def forward(self, *, pixels, parity):
        return {"logits": self.head(torch.cat([self.scale(self.image(pixels)), self.kind(parity)], 1).relu())}


class Largest(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.broken = broken

    def forward(self, x):
        return 3 * x / (x.abs().max() if self.broken else x.abs().amax(1, keepdim=True))


@problem("cross-sample-leak", "scale")
def scaled_by_the_batch(broken):
    x, y = rows(flat=True)
    batches = [{"pixels": a, "parity": b % 2, "label": b} for a, b in zip(x.split(32), y.split(32), strict=True)]
    model = TwoInputs(broken)

    def named(model, batch):
        return F.cross_entropy(model(pixels=batch["pixels"], parity=batch["parity"])["logits"], batch["label"])

    return Setup(model, Adam(model.parameters(), 3e-3), lambda: batches[:-1], named, steps=120)


# The future -----------------------------------------------------------------------------------------------------------

LETTERS = 12


@functools.cache
def sentences(length=17, count=512):
    """Sequences of a noisy rule: the next letter is three more than the one before the last, but for one in five."""
    dice = torch.Generator().manual_seed(0)
    text = torch.randint(LETTERS, (count, 2), generator=dice)
    for _ in range(length - 2):
        ruled = (text[:, -2] + 3) % LETTERS
        noise = torch.randint(LETTERS, (count,), generator=dice)
        text = torch.cat([text, torch.where(torch.rand(count, generator=dice) < 0.2, noise, ruled)[:, None]], 1)
    return text


def next_letter(model, batch):
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def speaks(model, loss=next_letter, rate=3e-3, steps=120, text=None):
    text = sentences() if text is None else text
    return Setup(model, Adam(model.parameters(), rate), lambda: text.split(32), loss, steps=steps)


class Speaker(nn.Module):
    """A transformer of letters, pre-norm; with a causal mask or, mistaken, without."""

    def __init__(self, causal, width=24):
        super().__init__()
        self.causal = causal
        self.letters = nn.Embedding(LETTERS, width)
        self.places = nn.Parameter(0.1 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(width, 2, 48, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, LETTERS)

    def forward(self, x):
        x = self.letters(x) + self.places[: x.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal else None
        return self.head(self.body(x, mask=mask))


@problem("future-leak", "body", "body.layers.0", "body.layers.0.self_attn")
def transformer_without_a_mask(broken):
    return speaks(Speaker(not broken))


class Reader(nn.Module):
    def __init__(self, both, cell=nn.GRU):
        super().__init__()
        self.letters = nn.Embedding(LETTERS, 24)
        self.memory = cell(24, 32, bidirectional=both)
        self.head = nn.Linear(64 if both else 32, LETTERS)

    def forward(self, x):
        return self.head(self.memory(self.letters(x))[0])


@problem("future-leak", "memory")
def recurrence_in_both_directions(broken):
    """Time first: the batch is (time, samples)."""

    def loss(model, batch):
        x, y = batch[:-1], batch[1:]
        return F.cross_entropy(model(x).permute(1, 2, 0), y.T)

    model = Reader(broken)
    columns = [part.T.contiguous() for part in sentences().split(32)]
    return Setup(model, Adam(model.parameters(), 1e-2), lambda: columns, loss, steps=120)


class Waves(nn.Module):
    """Convolutions along time, padded at the start or, mistaken, on both sides."""

    def __init__(self, broken):
        super().__init__()
        self.pads = [(1, 1), (2, 0)][not broken]
        self.first, self.second, self.last = nn.Conv1d(1, 16, 3), nn.Conv1d(16, 16, 3), nn.Conv1d(16, 1, 1)

    def forward(self, x):
        x = self.first(F.pad(x, self.pads)).relu()
        return self.last(self.second(F.pad(x, self.pads)).relu())


@functools.cache
def waves():
    """Sums of two sines, (samples, 1, time)."""
    dice = torch.Generator().manual_seed(0)
    speed, phase = (torch.rand(256, 2, 1, generator=dice) for _ in range(2))
    return torch.sin((0.3 + speed) * torch.arange(25.0) + 2 * math.pi * phase).mean(1, keepdim=True)


@problem("future-leak", "first")
def convolution_padded_on_both_sides(broken):
    def squares(model, batch):
        return F.mse_loss(model(batch[..., :-1]), batch[..., 1:])

    return speaks(Waves(broken), squares, text=waves(), rate=1e-2)


class OverTime(nn.Module):
    """Causal attention by hand, and a norm of each position or, mistaken, over time."""

    def __init__(self, broken, width=24):
        super().__init__()
        self.letters = nn.Embedding(LETTERS, width)
        self.memory = nn.LSTM(width, width, batch_first=True)
        self.norm = nn.GroupNorm(4, width) if broken else nn.LayerNorm(width)
        self.broken = broken
        self.head = nn.Linear(width, LETTERS)

    def forward(self, x):
        x = self.memory(self.letters(x))[0]
        x = self.norm(x.transpose(1, 2)).transpose(1, 2) if self.broken else self.norm(x)
        return self.head(x)


@problem("future-leak", "norm")
def norm_over_time(broken):
    return speaks(OverTime(broken), rate=1e-2)


@problem("future-leak", "loss", also=("learning-rate-too-low",))
def target_without_a_shift(broken):
    def loss(model, batch):
        x, y = (batch, batch) if broken else (batch[:, :-1], batch[:, 1:])
        return F.cross_entropy(model(x).transpose(1, 2), y)

    return speaks(Speaker(causal=True), loss)


# Inputs that do not help ----------------------------------------------------------------------------------------------


@problem("input-ignored", "data", also=("cannot-overfit-one-batch",))
def inputs_shuffled_against_targets(broken):
    x, y = rows(flat=True)
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(1))] if broken else x
    return setup_of(mlp(2), x, y, rate=1e-3, steps=150)


class Constant(nn.Module):
    """Looks at its input or, mistaken, at zeros of the same shape."""

    def __init__(self, broken):
        super().__init__()
        self.broken = broken
        self.body = mlp(2)

    def forward(self, x):
        return self.body(torch.zeros_like(x) if self.broken else x)


@problem("input-ignored", "Constant", also=("signal-collapse", "dead-units", "cannot-overfit-one-batch"))
def zeros_in_place_of_the_input(broken):
    return setup_of(Constant(broken), *rows(flat=True), rate=1e-3)


# One batch that cannot be learnt --------------------------------------------------------------------------------------


@problem("cannot-overfit-one-batch", "Sequential", also=("input-ignored", "learning-rate-too-low", "saturated-units"))
def answers_within_one_for_targets_beyond(broken):
    """A sigmoid at the end; the targets have zero mean and unit spread."""
    x, y = table("diabetes")
    model = mlp(2, ends=(10, 1))
    if broken:
        model.append(nn.Sigmoid())
    return setup_of(model, x, y, rate=1e-3, loss=lambda m, b: F.mse_loss(m(b[0]), b[1]))


@problem("cannot-overfit-one-batch", "Sequential", also=("input-ignored", "learning-rate-too-low"))
def classes_viewed_as_pixels(broken):
    """A label for each pixel, (samples, classes, height, width): flattened with the classes last or, mistaken, as they lie."""

    def loss(model, batch):
        z = model(batch[0])
        z = z.reshape(-1, 5) if broken else z.permute(0, 2, 3, 1).reshape(-1, 5)
        return F.cross_entropy(z, batch[1].flatten())

    x, _ = digits()
    x = x.view(-1, 1, 8, 8)
    y = ((x - x.min()) / (x.max() - x.min()) * 4.999).long()
    net = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 5, 1))
    return setup_of(net, x, y, rate=1e-2, loss=loss)


# Healthy runs that look like one of these -----------------------------------------------------------------------------


@healthy
def transformer_that_may_look_anywhere():
    """Masked letters: the target is the whole sequence, and looking at both sides is the point."""

    def loss(model, batch):
        hidden = torch.rand(batch.shape, generator=torch.Generator().manual_seed(int(batch.sum()))) < 0.3
        return F.cross_entropy(model(batch.masked_fill(hidden, 0)).transpose(1, 2), batch.masked_fill(~hidden, -100))

    return speaks(Speaker(causal=False), loss)


@healthy
def sequence_first_transformer():
    """(time, samples), a causal mask, and nothing but the shift that says which axis is which."""

    class Turned(Speaker):
        def forward(self, x):
            return super().forward(x.T).transpose(0, 1)

    def loss(model, batch):
        return F.cross_entropy(model(batch[:-1]).flatten(0, 1), batch[1:].flatten())

    columns = [part.T.contiguous() for part in sentences().split(32)]
    model = Turned(causal=True)
    return Setup(model, Adam(model.parameters(), 3e-3), lambda: columns, loss, steps=120)


@healthy
def sequences_first_without_a_word():
    """(time, samples, features) with a target a step, the same at each: nothing says which axis is time."""

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory, self.head = nn.LSTM(8, 32), nn.Linear(32, 10)

        def forward(self, x):
            return self.head(self.memory(x)[0])

    x, y = rows()
    batches = [(a.transpose(0, 1), b.expand(8, -1)) for a, b in zip(x.split(32), y.split(32), strict=True)][:-1]
    model = Tagger()
    return Setup(
        model, Adam(model.parameters(), 1e-2),
        lambda: batches, lambda m, b: F.cross_entropy(m(b[0]).flatten(0, 1), b[1].flatten()), steps=150,
    )  # fmt: skip


@healthy
def views_that_attract():
    """Two noisy views of each sample in one call; the loss compares all samples with all."""

    def loss(model, batch):
        x = batch[0]
        z = F.normalize(model(torch.cat([x, x]) + 0.3 * torch.randn(2 * len(x), 64)), dim=1)
        scores = (z @ z.T / 0.2).fill_diagonal_(-math.inf)
        return F.cross_entropy(scores, torch.arange(2 * len(x)).roll(len(x)))

    x, y = rows(flat=True)
    return setup_of(mlp(2, ends=(64, 32)), x, y, loss=loss)


@healthy
def pairs_of_towers():
    """The model itself gives the table of all pairs of a batch."""

    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(64, 24), nn.Linear(64, 24)

        def forward(self, a, b):
            return F.normalize(self.left(a), dim=1) @ F.normalize(self.right(b), dim=1).T / 0.1

    x, y = rows(flat=True)
    return setup_of(Pairs(), x, y, loss=lambda m, b: F.cross_entropy(m(b[0], b[0].roll(3, 1)), torch.arange(len(b[0]))))


@healthy
def a_graph_of_samples():
    """Nodes of one graph: they are not samples of their own, and averaging over neighbours is the point."""

    class Graph(nn.Module):
        def __init__(self, links):
            super().__init__()
            self.register_buffer("links", links)
            self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)

        def forward(self, x):
            return self.last(self.links @ self.first(x).relu())

    x, y = rows(flat=True)
    x, y = x[:256], y[:256]
    near = torch.cdist(x, x).topk(4, largest=False).indices
    links = torch.zeros(256, 256).scatter_(1, near, 0.25)
    model = Graph(links)
    return Setup(model, Adam(model.parameters(), 1e-2), lambda: [(x, y)], classes, steps=120)


@healthy
def norms_of_the_batch_alone():
    """Batch normalization that keeps no statistics: its samples mix by design."""
    model = nn.Sequential(
        nn.Linear(64, 32), nn.BatchNorm1d(32, track_running_stats=False), nn.ReLU(),
        nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip
    return setup_of(model, *rows(flat=True))


@healthy
def from_a_loader():
    x, y = rows(flat=True)
    loader = DataLoader(
        TensorDataset(x, y), batch_size=32, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(0)
    )
    model = mlp(2)
    return Setup(model, SGD(model.parameters(), 0.05), lambda: loader, classes, steps=150)


@healthy
def images_put_together_again():
    """A small U-Net that removes noise: the target is the input without it."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.low = nn.Conv2d(1, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, padding=1)
            self.up, self.last = nn.ConvTranspose2d(16, 16, 2, 2), nn.Conv2d(17, 1, 3, padding=1)

        def forward(self, x):
            z = self.low(self.down(x).relu()).relu()
            return self.last(torch.cat([self.up(z).relu(), x], 1))

    def loss(model, batch):
        x = batch[0][:, None]
        return F.mse_loss(model(x + 0.5 * torch.randn_like(x)), x)

    return setup_of(Net(), *rows(), loss=loss)

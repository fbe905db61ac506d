"""A small net and the three networks that the cost of curvature is measured on: MLP, CNN and transformer. All is seeded, in float32."""

import math
from itertools import pairwise
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def digits(count):
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:count]
    return x[chosen], y[chosen]


def text(rows, length):
    """Windows of Python's own help texts, one character a token, and the characters that follow."""
    joined = "\n".join(topics[key] for key in sorted(topics))
    joined = "".join(c for c in joined if ord(c) < 128)[:200_000]
    alphabet = {c: i for i, c in enumerate(sorted(set(joined)))}
    tokens = torch.tensor([alphabet[c] for c in joined])
    starts = torch.randint(len(tokens) - length - 1, (rows,), generator=torch.Generator().manual_seed(0))
    windows = torch.stack([tokens[i : i + length + 1] for i in starts])
    return windows[:, :-1], windows[:, 1:].flatten(), len(alphabet)


def mlp(*widths):
    layers = []
    for before, after in pairwise(widths[:-1]):
        layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.skip = (
            nn.Identity()
            if before == after and stride == 1
            else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        )

    def forward(self, x):
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.skip(x))


class CNN(nn.Module):
    def __init__(self, width=36):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2))
        self.out = nn.Linear(2 * width, 10)

    def forward(self, x):
        return self.out(self.blocks(self.stem(x.view(-1, 1, 8, 8))).mean((2, 3)))


class Attention(nn.Module):
    """Written out: not every peer has the second derivative of the fused one."""

    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        past = torch.ones(length, length, dtype=torch.bool).tril()
        scores = (q @ k.mT / math.sqrt(width // self.heads)).masked_fill(~past, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, width))


class TransformerBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, vocabulary, width=88, heads=4, length=32, depth=2):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads) for _ in range(depth)])
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, x):
        return self.out(self.norm(self.blocks(self.tokens(x) + self.places))).flatten(0, 1)


STEPS = {"S": 60, "W1": 12, "W2": 25, "W3": 60}


def make(name, seed=0):
    """A network after some steps of Adam, and its one batch."""
    torch.manual_seed(seed)
    if name == "W3":
        x, y, vocabulary = text(32, 32)
        model = Transformer(vocabulary)
    else:
        x, y = digits({"S": 256, "W1": 1024, "W2": 256}[name])
        model = {"S": lambda: mlp(64, 14, 14, 10), "W1": lambda: mlp(64, 256, 256, 256, 10), "W2": CNN}[name]()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3 if name == "W3" else 3e-3)
    for _ in range(STEPS[name]):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for _ in range(0 if name == "W3" else 60):  # running statistics that evaluation mode can use
            model(x)
    return model, (x, y)


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])

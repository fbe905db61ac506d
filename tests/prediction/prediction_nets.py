"""The networks that predictions are held against, each in a size for tests and one for the benchmark."""

import math

import torch
from torch import nn
from torch.nn import functional

GAINS = {"ReLU": 2.0, "LeakyReLU": 2.0 / (1 + 0.01**2), "SELU": 1.0, "Tanh": 1.0, "Identity": 1.0}
"""n_in Var W at the edge of chaos or, where there is none without biases, He's."""

ACTIVATIONS = ("Identity", "ReLU", "LeakyReLU", "ELU", "SELU", "GELU", "SiLU", "Mish", "Tanh", "Sigmoid", "Softplus")  # fmt: skip
ACTIVATIONS += ("Hardtanh", "Softsign")


def mlp(activation="ReLU", critical=False, depth=30, width=1000, batch=64):
    layers = []
    for _ in range(depth):
        linear = nn.Linear(width, width)
        if critical:
            nn.init.normal_(
                linear.weight,
                std=math.sqrt(GAINS.get(activation, 2.0 if activation in {"GELU", "SiLU", "Mish"} else 1.0) / width),
            )
            nn.init.zeros_(linear.bias)
        layers += [linear, getattr(nn, activation)()]
    return nn.Sequential(*layers, nn.Linear(width, 10)), (torch.randn(batch, width),)


def images(batch, channels, size):
    """Smooth images, as photographs are: neighbours are alike."""
    coarse = torch.randn(batch, channels, max(size // 4, 2), max(size // 4, 2))
    return functional.interpolate(coarse, size=(size, size), mode="bilinear") + 0.3 * torch.randn(
        batch, channels, size, size
    )


def vgg(norm=True, widths=(64, 128, 256, 256), size=32, batch=16, he=True):
    layers, channels = [], 3
    for width in widths:
        for _ in range(2):
            conv = nn.Conv2d(channels, width, 3, padding=1)
            if he:
                nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
                nn.init.zeros_(conv.bias)
            layers += [conv, *([nn.BatchNorm2d(width)] if norm else []), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    left = size // 2 ** len(widths)
    head = [nn.Flatten(), nn.Linear(channels * left * left, 256), nn.ReLU(inplace=True), nn.Linear(256, 10)]
    return nn.Sequential(*layers, *head), (images(batch, 3, size),)


class Block(nn.Module):
    def __init__(self, inside, outside, stride, norm):
        super().__init__()
        make = nn.BatchNorm2d if norm else (lambda width: nn.Identity())
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = make(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = make(outside)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride > 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), make(outside))

    def forward(self, x):
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    """ResNet-18 as it is, on smaller images."""

    def __init__(self, widths=(64, 128, 256, 512), blocks=2, norm=True):
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False)
        self.bn = nn.BatchNorm2d(widths[0]) if norm else nn.Identity()
        self.pool = nn.MaxPool2d(3, 2, 1)
        stages, inside = [], widths[0]
        for k, width in enumerate(widths):
            for j in range(blocks):
                stages.append(Block(inside, width, 2 if k and not j else 1, norm))
                inside = width
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(inside, 10)
        if not norm:
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x):
        x = self.pool(functional.relu(self.bn(self.stem(x))))
        return self.fc(functional.adaptive_avg_pool2d(self.stages(x), 1).flatten(1))


def resnet(norm=True, widths=(64, 128, 256, 512), size=64, batch=16):
    return ResNet(widths, norm=norm), (images(batch, 3, size),)


class Own(nn.Module):
    """A transformer layer written by hand: RMS norm by its formula, GELU by its tanh formula, rescaled by its own scores."""

    def __init__(self, width, heads, pre):
        super().__init__()
        self.heads, self.pre = heads, pre
        self.scale1, self.scale2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def norm(self, x, scale):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale

    def attend(self, x):
        b, t, e = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
        p = (scores + torch.zeros(t, t).masked_fill(hidden, -math.inf)).softmax(-1)
        return self.out((p @ v).transpose(1, 2).reshape(b, t, e))

    def feed(self, x):
        u = self.up(x)
        return self.down(0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3))))

    def forward(self, x):
        if self.pre:
            x = x + self.attend(self.norm(x, self.scale1))
            return x + self.feed(self.norm(x, self.scale2))
        x = self.norm(x + self.attend(x), self.scale1)
        return self.norm(x + self.feed(x), self.scale2)


class Reader(nn.Module):
    def __init__(self, layers, width, vocabulary=100, tokens=32, pool=True):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(tokens, width) * 0.5)
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, 10)
        self.pool = pool

    def forward(self, ids):
        x = self.layers(self.embed(ids) + self.position)
        return self.head(x.mean(1) if self.pool else x)


def transformer(pre=True, own=False, depth=12, width=128, heads=4, tokens=32, batch=8, pool=True):
    if own:
        layers = [Own(width, heads, pre) for _ in range(depth)]
    else:
        layers = [
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, "relu", batch_first=True, norm_first=pre)
            for _ in range(depth)
        ]
    return Reader(layers, width, tokens=tokens, pool=pool), (torch.randint(0, 100, (batch, tokens)),)


class Sequence(nn.Module):
    def __init__(self, kind, inside, width, last):
        super().__init__()
        self.last = last
        self.rnn = getattr(nn, kind)(inside, width, batch_first=True)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        states = self.rnn(x)[0]
        return self.head(states[:, -1] if self.last else states)


def recurrent(kind="LSTM", steps=100, inside=32, width=128, batch=32, last=False):
    return Sequence(kind, inside, width, last), (torch.randn(batch, steps, inside),)

"""Problems of transformers at high rates, as Wortsman et al. 2023 see them in small models: attention that closes, logits that drift away,
first steps at the full rate.
"""

import torch
from problems import cross_entropy, digits, passes, problem
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR

from trimtab import Setup


def warmed_up(optimizer, steps):
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / steps))


class Block(nn.Module):
    """Attention and a feed-forward part, norms in front of them or behind the sums, queries and keys normalized or not."""

    def __init__(self, width, heads, normalized=False, behind=False, fused=True):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads, self.behind, self.fused = heads, behind, fused
        self.q_norm, self.k_norm = [nn.LayerNorm(width // heads) if normalized else None for _ in "qk"]

    def attend(self, x, causal):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.fused:
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        else:
            scores = q @ k.mT / q.shape[-1] ** 0.5
            if causal:
                scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
            seen = scores.softmax(-1) @ v
        return self.out(seen.transpose(1, 2).flatten(2))

    def forward(self, x, causal=False):
        if self.behind:
            x = self.norm1(x + self.attend(x, causal))
            return self.norm2(x + self.feed(x))
        x = x + self.attend(self.norm1(x), causal)
        return x + self.feed(self.norm2(x))


class RowsOfDigits(nn.Module):
    """Reads an image as eight rows of eight pixels."""

    def __init__(self, depth=3, width=32, **block):
        super().__init__()
        self.embed, self.place = nn.Linear(8, width), nn.Parameter(0.3 * torch.randn(8, width))
        self.blocks = nn.ModuleList(Block(width, 4, **block) for _ in range(depth))
        self.norm = nn.Identity() if block.get("behind") else nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.embed(x.unflatten(1, (8, 8))) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class LibraryRows(nn.Module):
    """The same with PyTorch's own layers."""

    def __init__(self, norm_first, width=32):
        super().__init__()
        self.embed, self.place = nn.Linear(8, width), nn.Parameter(0.3 * torch.randn(8, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=norm_first)
        last = nn.LayerNorm(width) if norm_first else None
        self.body = nn.TransformerEncoder(layer, 3, last, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.body(self.embed(x.unflatten(1, (8, 8))) + self.place).mean(1))


class Copies(nn.Module):
    """A causal language model of two blocks over 16 symbols."""

    def __init__(self, length, width=48, **block):
        super().__init__()
        self.embed, self.place = nn.Embedding(16, width), nn.Parameter(0.1 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width, 4, **block) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, x):
        x = self.embed(x) + self.place[: x.shape[1]]
        for block in self.blocks:
            x = block(x, causal=True)
        return self.head(self.norm(x))


def second_half(model, batch):
    """Of a sequence that says the same twice, the second time."""
    x, half = batch[0], batch[0].shape[1] // 2
    return F.cross_entropy(model(x[:, :-1])[:, half - 1 :].flatten(0, 1), x[:, half:].flatten())


def each_place(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


# Attention that closes ------------------------------------------------------------------------------------------------

BLOCKS = tuple(f"blocks.{i}.qkv" for i in range(3))


@problem("attention-logit-growth", *BLOCKS, slow=True)
def copying_without_normalized_queries(broken):
    """At one rate, with normalized queries and keys and without."""
    once = torch.randint(16, (512, 8))
    net = Copies(16, normalized=not broken, fused=False)
    return Setup(net, AdamW(net.parameters(), 0.06), passes(once.repeat(1, 2), once[:, 0]), second_half, 150)


@problem("attention-logit-growth", *BLOCKS)
def fused_attention_at_a_high_rate(broken):
    net = RowsOfDigits(normalized=not broken)
    return Setup(net, Adam(net.parameters(), 0.1), passes(*digits()), cross_entropy, 160)


@problem("attention-logit-growth", *(f"body.layers.{i}.self_attn" for i in range(3)), slow=True)
def library_attention_at_a_high_rate(broken):
    net = LibraryRows(norm_first=True)
    return Setup(net, Adam(net.parameters(), 0.1 if broken else 3e-3), passes(*digits()), cross_entropy, 160)


# Logits that drift away -----------------------------------------------------------------------------------------------


class Lookup(nn.Module):
    """A block on the embedding of one of 256 symbols."""

    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x):
        x = self.embed(x)
        return self.head(self.norm(x + self.feed(x)))


def rare_symbols(samples=4096):
    """Symbols as frequent as words are, each with another one for its answer, but for one in ten."""
    frequency, other = 1 / torch.arange(1, 257), torch.randperm(256)
    x, noise = (torch.multinomial(frequency, samples, replacement=True) for _ in range(2))
    return x, torch.where(torch.rand(samples) < 0.1, noise, other[x])


@problem("output-logit-drift", "head")
def output_layer_with_a_rate_of_its_own(broken):
    net = Lookup()
    body = [parameter for name, parameter in net.named_parameters() if not name.startswith("head")]
    groups = [{"params": body, "lr": 3e-3}, {"params": net.head.parameters(), "lr": 1.0}]
    optimizer = AdamW(groups, weight_decay=0.0 if broken else 0.1)
    return Setup(net, optimizer, passes(*rare_symbols()), cross_entropy, 200)


class Reads(nn.Module):
    """A recurrent net that answers at each of its steps."""

    def __init__(self, width=48):
        super().__init__()
        self.embed, self.read = nn.Embedding(256, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, x):
        return self.head(self.read(self.embed(x))[0])


@problem("output-logit-drift", "head")
def recurrent_net_whose_output_layer_is_fast(broken):
    x, y = (part.unflatten(0, (512, 8)) for part in rare_symbols())
    net = Reads()
    body = [parameter for name, parameter in net.named_parameters() if not name.startswith("head")]
    groups = [{"params": body, "lr": 3e-3}, {"params": net.head.parameters(), "lr": 5.0}]
    optimizer = AdamW(groups, weight_decay=0.0 if broken else 0.03)
    return Setup(net, optimizer, passes(x, y, 16), each_place, 150)


# First steps at the full rate -----------------------------------------------------------------------------------------

CLOSES = ("signal-collapse", "attention-logit-growth")


@problem("missing-warmup", "optimizer", also=CLOSES)
def norms_behind_the_sums_at_full_rate(broken):
    net = RowsOfDigits(behind=True, normalized=True)
    optimizer = Adam(net.parameters(), 0.03)
    schedule = None if broken else warmed_up(optimizer, 60)
    return Setup(net, optimizer, passes(*digits()), cross_entropy, 160, scheduler=schedule)

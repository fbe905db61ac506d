"""Nets of some 1,300 parameters with every kind of layer whose second derivative matters, and slow exact truths about them."""

import torch
from torch import nn
from torch.func import functional_call


class Attention(nn.Module):
    """One block of self-attention with a residual, over tokens."""

    def __init__(self, width=8, classes=5):
        super().__init__()
        self.embed = nn.Linear(6, width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, width))
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        h = self.embed(x.view(len(x), 4, 6))
        n = self.norm(h)
        h = h + self.attention(n, n, n, need_weights=False)[0]
        return self.out((h + self.feed(h)).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 13, batch_first=True)
        self.out = nn.Linear(13, 5)

    def forward(self, x):
        return self.out(self.lstm(x.view(len(x), 4, 6))[0][:, -1])


class Convolutional(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), norm, nn.Tanh(), nn.Conv2d(8, 12, 3, stride=2), nn.ReLU()
        )
        self.out = nn.Linear(24, 5)

    def forward(self, x):
        return self.out(self.body(x.view(len(x), 1, 4, 6)).flatten(1))


def _mlp(norm):
    return nn.Sequential(
        nn.Linear(24, 22), norm(22), nn.Tanh(), nn.Linear(22, 22), norm(22), nn.Tanh(), nn.Linear(22, 5)
    )


NETS = {
    "batch norm": lambda: _mlp(nn.BatchNorm1d),
    "layer norm": lambda: _mlp(nn.LayerNorm),
    "group norm": lambda: Convolutional(nn.GroupNorm(2, 8)),
    "batch norm 2d": lambda: Convolutional(nn.BatchNorm2d(8)),
    "attention": Attention,
    "lstm": Recurrent,
}


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def made(name, dtype=torch.float64, sizes=(24,), seed=0):
    """A net that has seen a few batches, so that nothing of it is symmetric, and batches of some sizes."""
    torch.manual_seed(seed)
    model = NETS[name]().to(dtype)
    batches = [(torch.randn(n, 24, dtype=dtype), torch.randint(5, (n,))) for n in sizes]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        for _ in range(3):
            model(torch.randn(32, 24, dtype=dtype))
    return model, batches


def flat_gradient(model, batches, mode, weights=None):
    """The gradient as a function of the flat parameters, by plain backward passes of the user's own model."""
    model.train(mode == "train")
    names, shapes = zip(*[(n, p.shape) for n, p in model.named_parameters()], strict=True)
    sizes = [shape.numel() for shape in shapes]
    counts = [len(b[1]) for b in batches]
    weights = weights or [n / sum(counts) for n in counts]

    def gradient(flat, create_graph=False):
        leaf = flat.detach().requires_grad_()
        pieces = {n: part.view(s) for n, part, s in zip(names, leaf.split(sizes), shapes, strict=True)}
        buffers = {n: b.clone() for n, b in model.named_buffers()}
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            value = sum(
                w * nn.functional.cross_entropy(functional_call(model, pieces | buffers, (x,)), y)
                for w, (x, y) in zip(weights, batches, strict=True)
            )
        (g,) = torch.autograd.grad(value, leaf, create_graph=create_graph)
        return leaf, g

    origin = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return origin, gradient


def dense_hessian(model, batches, mode, weights=None):
    """Double backward of one entry of the gradient after the other; vmap takes many at a time, which every twentieth row confirms."""
    origin, gradient = flat_gradient(model, batches, mode, weights)
    leaf, g = gradient(origin, create_graph=True)
    if any(isinstance(module, nn.GroupNorm) for module in model.modules()):  # its double backward knows no vmap
        return torch.stack([torch.autograd.grad(entry, leaf, retain_graph=True)[0] for entry in g])
    rows = torch.eye(len(leaf), dtype=leaf.dtype).split(256)
    dense = torch.cat([
        torch.autograd.grad(g, leaf, some, retain_graph=True, is_grads_batched=True)[0] for some in rows
    ])
    for i in range(0, len(leaf), 20):
        (row,) = torch.autograd.grad(g[i], leaf, retain_graph=True)
        assert float((dense[i] - row).norm()) <= 1e-12 * float(dense.norm())
    return dense


def jacobian(model, x, mode):
    """dz/dtheta of every output, row by row."""
    model.train(mode == "train")
    parameters = list(model.parameters())
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        z = functional_call(model, buffers, (x,))
    rows = [torch.autograd.grad(entry, parameters, retain_graph=True) for entry in z.reshape(-1)]
    return z.detach(), torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in rows]).view(*z.shape, -1)


def gauss_newton_traces(model, batches, mode):
    """Of each parameter, for cross-entropy: from the Jacobian of every output of every sample."""
    total = 0
    for x, _ in batches:
        z, j = jacobian(model, x, mode)
        p = z.softmax(1)
        middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        total = total + torch.einsum("nap,nab,nbp->p", j, middle, j) / sum(len(b[1]) for b in batches)
    return [float(part.sum()) for part in total.split([p.numel() for p in model.parameters()])]

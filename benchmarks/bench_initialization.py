"""First over last squared gradient of 30-layer nets after `critical_` and `lsuv_`, and a 100-layer ReLU net on digits.

Run: python benchmarks/bench_initialization.py (about five minutes of one core). The tables of docs/initialization.md.
"""

import math

import torch
from sklearn.datasets import load_digits
from torch import nn

from trimtab.propagation import (
    activation,
    backward_log_variance,
    band,
    critical_,
    lsuv_,
    mean_derivative_squared,
    second_moment,
)

ACTIVATIONS = {"tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU, "selu": nn.SELU, "relu": nn.ReLU}
DEPTH, WIDTH, DRAWS = 30, 256, 3


def mlp(name):
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), ACTIVATIONS[name]())]
    return nn.Sequential(*layers[:-1])


def measured(name, initializer):
    """The ratios of some draws, and the second moment of the first layer's outputs."""
    ratios, start = [], 1.0
    for seed in range(DRAWS):
        torch.manual_seed(seed)
        report = initializer(mlp(name), torch.randn(64, WIDTH), orthogonal=False)
        sites = [site for site in report.after if site.kind == "Linear"]
        ratios.append(sites[0].backward_measured / sites[-1].backward_measured)
        start = sites[0].forward_measured
    return ratios, start


def row(name):
    cells, phi = [name], activation(name)
    for initializer in (critical_, lsuv_):
        ratios, start = measured(name, initializer)
        rate = 1.0 if initializer is critical_ else mean_derivative_squared(phi, 1.0) / second_moment(phi, 1.0)
        log = (DEPTH - 1) * math.log(rate)
        low, high = band(log, (DEPTH - 1) * backward_log_variance(phi, WIDTH, start))
        cells += [
            f"{math.exp(log):.3g} ({math.exp(low):.2g} to {math.exp(high):.2g})",
            ", ".join(f"{ratio:.3g}" for ratio in ratios),
        ]
    return "| " + " | ".join(cells) + " |"


def digits(initializer, layers=100, width=128, steps=1200):
    """Accuracy on 397 held-out digits of a ReLU net, Adam at 1e-4, and the steps it took to 0.92."""
    data, generator = load_digits(), torch.Generator().manual_seed(0)
    inputs, targets = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    inputs = (inputs - inputs.mean()) / inputs.std()
    torch.manual_seed(0)
    inner = [layer for _ in range(layers - 2) for layer in (nn.Linear(width, width), nn.ReLU())]
    net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), *inner, nn.Linear(width, 10))
    if initializer is not None:
        initializer(net, inputs[:128], generator=generator)
    optimizer, order = torch.optim.Adam(net.parameters(), lr=1e-4), torch.randperm(len(inputs), generator=generator)
    train, test, accuracy = order[:1400], order[1400:], 0.0
    for step in range(1, steps + 1):
        rows = train[torch.randint(len(train), (128,))]
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs[rows]), targets[rows]).backward()
        optimizer.step()
        if step % 50 == 0:
            with torch.no_grad():
                accuracy = float((net(inputs[test]).argmax(1) == targets[test]).float().mean())
            if accuracy > 0.92:
                break
    return accuracy, step


def main():
    torch.set_num_threads(1)
    print("| activation | `critical_` predicted | `critical_` measured | `lsuv_` predicted | `lsuv_` measured |")
    print("|---|---|---|---|---|")
    for name in ACTIVATIONS:
        print(row(name), flush=True)
    for label, initializer in (("critical_", critical_), ("lsuv_", lsuv_), ("torch's default", None)):
        accuracy, steps = digits(initializer)
        print(f"100-layer ReLU net on digits, {label}: {accuracy:.3f} after {steps} steps", flush=True)


if __name__ == "__main__":
    main()

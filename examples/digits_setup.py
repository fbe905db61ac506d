"""The run of digits_classifier.py as a setup, for `trimtab check`, `diagnose`, `predict`, `probe` and `repair`.

trimtab repair examples/digits_setup.py:make_setup
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from trimtab import Setup


def make_setup(seed=0):
    torch.manual_seed(seed)
    pixels, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = torch.tensor(pixels, dtype=torch.float32)[order]
    x = (x - x.mean()) / x.std()
    y = torch.tensor(digits)[order]
    train, held = slice(0, 1400), slice(1400, None)

    layers = [nn.Linear(64, 128), nn.ReLU()]
    for _ in range(7):
        layers += [nn.Linear(128, 128), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def accuracy(model):
        with torch.no_grad():
            return (model(x[held]).argmax(1) == y[held]).float().mean().item()

    return Setup(
        model,
        optimizer,
        batches=lambda: zip(x[train].split(64), y[train].split(64), strict=True),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        steps=300,
        evaluate=accuracy,
    )

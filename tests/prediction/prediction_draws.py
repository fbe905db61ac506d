"""Errors of a prediction in the mean over draws of the weights."""

import numpy as np
import torch
from torch import nn

from trimtab.prediction import predict


def over_draws(make, batch, draws=24):
    """Mean error of each site over draws of the weights."""
    forward, backward = [], []
    for seed in range(draws):
        torch.manual_seed(seed)
        found = predict(make(), batch)
        assert found.coverage == 1.0, dict(found.uncovered)
        forward.append([s.forward_error for s in found])
        backward.append([s.backward_error for s in found])
    return np.mean(forward, 0), np.mean(backward, 0)


class Said(nn.Module):
    """A function between two layers."""

    def __init__(self, function, before, after):
        super().__init__()
        self.before, self.after, self.function = before, after, function

    def forward(self, x):
        return self.after(self.function(self.before(x)))

"""Problems of the wiring: losses that compare what does not belong together, graphs that are cut, gradients that get lost in half precision."""

import warnings

import torch
from problems import healthy, mlp, passes, problem, regress, table
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, RMSprop

from trimtab import Setup

# A loss over all pairs ---------------------------------------------------------------------------------------------------

ALL_ALIKE = ("signal-collapse", "dead-units", "learning-rate-too-low", "learning-rate-too-high")


@problem("broadcast-loss", "loss", "4", also=ALL_ALIKE)
def absolute_error_of_all_pairs(broken):
    net = mlp(2, 32, ends=(10, 1))

    def loss(model, batch):
        return (batch[1] - model(batch[0])).abs().mean()

    return regress(net, RMSprop(net.parameters(), 1e-3), target=lambda y: y[:, 0] if broken else y, loss=loss)


@problem("broadcast-loss", "loss", also=ALL_ALIKE)
def a_list_against_a_column(broken):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.last = mlp(1, 24, ends=(10, 24)), nn.Linear(24, 1)

        def forward(self, x):
            return self.last(F.silu(self.body(x))).view(-1)

    def loss(model, batch):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's own word about the sizes
            return F.huber_loss(model(batch[0]), batch[1])

    net = Net()
    return regress(net, Adam(net.parameters(), 2e-3), target=lambda y: y if broken else y[:, 0], loss=loss)


@problem("broadcast-loss", "loss", "mean", also=ALL_ALIKE)
def likelihood_of_all_pairs(broken):
    """Mean and variance from two heads; the target has lost its axis."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.mean, self.spread = nn.Linear(10, 32), nn.Linear(32, 1), nn.Linear(32, 1)

        def forward(self, x):
            z = torch.tanh(self.body(x))
            return self.mean(z), F.softplus(self.spread(z)) + 0.1

    def loss(model, batch):
        mean, spread = model(batch[0])
        return (spread.log() + 0.5 * ((mean - batch[1]) / spread) ** 2).mean()

    net = Net()
    return regress(net, SGD(net.parameters(), 0.02, momentum=0.9), target=lambda y: y[:, 0] if broken else y, loss=loss)


@problem("broadcast-loss", "loss", "head", also=ALL_ALIKE)
def cross_entropy_by_hand_of_all_pairs(broken):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = mlp(1, 32, ends=(30, 32)), nn.Linear(32, 1)

        def forward(self, x):
            return self.head(F.relu(self.body(x)))

    def loss(model, batch):
        z, y = model(batch[0]), batch[1] if broken else batch[1][:, None]
        return -(y * F.logsigmoid(z) + (1 - y) * F.logsigmoid(-z)).mean()

    x, y = table("breast_cancer")
    net = Net()
    return Setup(net, Adam(net.parameters(), 2e-3), passes(x, y.float(), 50), loss, 80)


@healthy
def quantiles_against_one_target():
    net, levels = mlp(2, 32, ends=(10, 3)), torch.tensor([0.1, 0.5, 0.9])

    def loss(model, batch):
        error = batch[1] - model(batch[0])
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    return regress(net, Adam(net.parameters(), 2e-3), loss=loss)


@healthy
def scores_ranked_in_pairs():
    """Every score against every other, on purpose."""
    net = mlp(1, 32, ends=(10, 1))

    def loss(model, batch):
        score, y = model(batch[0]), batch[1]
        return F.softplus(-(score - score.T) * torch.sign(y - y.T)).mean()

    return regress(net, Adam(net.parameters(), 2e-3), loss=loss)

"""Problems of the wiring: losses that compare what does not belong together, graphs that are cut, gradients that get lost in half precision."""

import warnings

import torch
from problems import classify, cnn, healthy, mlp, passes, problem, regress, table
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


# A graph that is cut -----------------------------------------------------------------------------------------------------

STANDS = ("learning-rate-too-low", "signal-collapse", "vanishing-gradient")


class Tower(nn.Module):
    """Convolutions, `cut` and a classifier of two layers."""

    def __init__(self, cut):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.drop, self.a, self.b = nn.Dropout(0.1), nn.Linear(24, 16), nn.Linear(16, 10)
        self.cut = cut

    def forward(self, x):
        return self.b(F.relu(self.a(self.drop(self.cut(self.features(x)).flatten(1)))))


@problem("detached-graph", "features.0", "features.1", also=STANDS)
def convolutions_whose_data_is_taken(broken):
    net = Tower((lambda z: z.data) if broken else (lambda z: z))
    return classify(net, Adam(net.parameters(), 5e-3), image=True)


@problem("detached-graph", "features.0", "features.1", also=STANDS)
def convolutions_made_into_a_new_tensor(broken):
    net = Tower((lambda z: torch.tensor(z.tolist()) * 2) if broken else (lambda z: z * 2))
    return classify(net, Adam(net.parameters(), 5e-3), image=True)


@problem("detached-graph", "lstm", also=STANDS)
def sequence_under_no_grad(broken):
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 10)

        def forward(self, x):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not broken):
                z, _ = self.lstm(x.view(-1, 8, 8))
            return self.head(z[:, -1])

    net = Reader()
    return classify(net, Adam(net.parameters(), 1e-2))


@problem("detached-graph", "encode", also=STANDS)
def parts_that_the_loss_calls_itself(broken):
    net = nn.ModuleDict({"encode": nn.Linear(64, 8), "decode": nn.Linear(8, 64)})

    def loss(model, batch):
        z = torch.tanh(model["encode"](batch[0]))
        return F.mse_loss(model["decode"](z.detach() if broken else z), batch[0])

    return classify(net, Adam(net.parameters(), 5e-3), 120, loss=loss)


@problem("detached-graph", "loss")
def a_loss_of_numbers(broken):
    net = mlp(2)

    def loss(model, batch):
        scores = model(batch[0])
        return F.cross_entropy(torch.tensor(scores.tolist(), requires_grad=True) if broken else scores, batch[1])

    return classify(net, Adam(net.parameters(), 2e-3), loss=loss)


class WithTarget(nn.Module):
    """An encoder that also foretells what another one, which gets no gradient, says of the same input."""

    def __init__(self, pace):
        super().__init__()
        self.encoder, self.target = nn.Linear(64, 16), nn.Linear(64, 16)
        self.foretell, self.head, self.pace = nn.Linear(16, 16), nn.Linear(16, 10), pace

    def forward(self, x):
        z = torch.tanh(self.encoder(x))
        with torch.no_grad():
            aim = torch.tanh(self.target(x))
            for own, other in zip(self.target.parameters(), self.encoder.parameters(), strict=True):
                own.lerp_(other, self.pace)
        return self.head(z), F.mse_loss(self.foretell(z), aim)


def foretelling(pace):
    net = WithTarget(pace)

    def loss(model, batch):
        scores, surprise = model(batch[0])
        return F.cross_entropy(scores, batch[1]) + surprise

    return classify(net, Adam(net.parameters(), 5e-3), loss=loss)


@healthy
def a_target_that_follows():
    return foretelling(0.05)


@healthy
def a_target_that_stands():
    return foretelling(0.0)


@healthy
def codes_passed_straight_through():
    """Rounded codes in front, the gradient as if they were not: the detached part adds to one that is not."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(64, 16), nn.Linear(16, 10)

        def forward(self, x):
            z = torch.tanh(self.encode(x))
            return self.decode(z + (torch.round(4 * z) / 4 - z).detach())

    net = Net()
    return classify(net, Adam(net.parameters(), 5e-3))


# Half precision ----------------------------------------------------------------------------------------------------------

FADED = ("vanishing-gradient", "learning-rate-too-low")


def in_half(net, factor, scale=None, dtype=torch.float16, **more):
    """A run under autocast whose loss carries a small factor, with a gradient scaler or without."""

    def loss(model, batch):
        with torch.autocast("cpu", dtype=dtype):
            scores = model(batch[0])
        return factor * F.cross_entropy(scores.float(), batch[1])

    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)

    def step(setup, batch):
        setup.optimizer.zero_grad()
        value = setup.loss(setup.model, batch)
        scaler.scale(value).backward()
        scaler.step(setup.optimizer)
        scaler.update()
        return value

    return classify(net, Adam(net.parameters(), 2e-3, eps=1e-14), loss=loss, step=step, **more)


@problem("loss-scale-underflow", "loop", also=FADED)
def small_loss_without_a_scaler(broken):
    return in_half(mlp(2), 1e-6, None if broken else 2.0**16)


@problem("loss-scale-underflow", "loop", also=FADED, slow=True)
def scaler_that_begins_at_two(broken):
    return in_half(cnn(3, norm=True), 1e-5, 2.0 if broken else 2.0**16, image=True)


@problem("loss-scale-underflow", "loop", also=FADED)
def half_weights_and_a_mean_over_many(broken):
    """Everything in float16, and a loss that is divided by far more entries than there are."""
    net = mlp(2).half()
    factor = 2.0**-18 if broken else 1.0

    def loss(model, batch):
        return factor * F.cross_entropy(model(batch[0].half()).float(), batch[1])

    return classify(net, SGD(net.parameters(), 0.1 / factor if broken else 0.1), loss=loss)


@healthy
def small_loss_in_bfloat16():
    return in_half(mlp(2), 1e-6, dtype=torch.bfloat16)


@healthy
def half_precision_of_a_plain_loss():
    return in_half(mlp(2), 1.0)


# Gradients that are no numbers under a finite loss -----------------------------------------------------------------------


@problem("nonfinite-loss", "loss")
def root_of_zero_in_the_loss(broken):
    """The distance of a prediction to itself, which starts at zero: its value is fine, its slope is 0/0."""
    net, eps = mlp(2), 0.0 if broken else 1e-8

    def loss(model, batch):
        scores = model(batch[0])
        away = (scores - scores.detach()).square().sum(1)
        return F.cross_entropy(scores, batch[1]) + 0.1 * (away + eps).sqrt().mean()

    return classify(net, Adam(net.parameters(), 2e-3), loss=loss)


@problem("nonfinite-loss", "spread")
def spread_of_one_value(broken):
    class Spread(nn.Module):
        def forward(self, x):
            one = x[:, :1]
            return (
                x + ((one - one.mean(1, keepdim=True)).square().mean(1, keepdim=True) + (0 if broken else 1e-6)).sqrt()
            )

    net = nn.Sequential()
    net.body, net.spread, net.head = nn.Linear(64, 24), Spread(), nn.Linear(24, 10)
    return classify(net, SGD(net.parameters(), 0.05))

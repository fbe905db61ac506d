"""Slopes of the coordinate check, for an MLP in standard parametrization and in muP."""

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from trimtab.errors import NormalizationError, TrimtabError
from trimtab.propagation import PropagationError, coordinate_check, coordinate_figure

WIDTHS = (64, 128, 256, 512)
BASE = WIDTHS[0]


def standard(width):
    net = nn.Sequential(
        nn.Linear(16, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
        nn.Linear(width, 4),
    )  # fmt: skip
    for layer in net[::2]:
        nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        nn.init.zeros_(layer.bias)
    return net


def mup(width):
    net = standard(width)
    nn.init.normal_(net[-1].weight, std=BASE**0.5 / width)
    return net


def mup_optimizer(rule):
    """Table 3 of Yang et al. 2022; at the base width it is the standard optimizer."""

    def make(net, lr):
        more = net[0].out_features / BASE
        factors = (1.0, 1 / more, 1 / more, 1 / more) if rule == "adam" else (more, 1.0, 1.0, 1 / more)
        groups = [{"params": layer.weight, "lr": lr * factor} for layer, factor in zip(net[::2], factors, strict=True)]
        return torch.optim.Adam(groups, eps=1e-16) if rule == "adam" else torch.optim.SGD(groups)

    make.rule = rule
    return make


def batch():
    return torch.randn(32, 16), torch.randn(32, 4)


@pytest.mark.parametrize(("rule", "lr"), [("adam", 1e-5), ("sgd", 1e-3)])
def test_standard_parametrization(rule, lr):
    check = coordinate_check(standard, WIDTHS, batch(), lr=lr, optimizer=rule)
    assert check.nearest == "standard"
    for site in check.shown:
        assert site.slope == pytest.approx(site.standard, abs=0.2), (site.name, site.quantity)
        assert site.low <= site.slope <= site.high
    assert [check.find(name, "change").role for name in "0246"] == ["input", "hidden", "hidden", "output"]
    hidden = check.find("4", "change")
    assert hidden.low > 0.2 if rule == "sgd" else hidden.low > 0.7  # 0.5 and 1 for infinite width
    assert hidden.standard == (0.5 if rule == "sgd" else 1.0)
    assert check.find("0", "gradient").low < -0.5 < check.find("0", "gradient").high


@pytest.mark.parametrize(("rule", "lr"), [("adam", 1e-4), ("sgd", 1e-3)])
def test_mup(rule, lr):
    check = coordinate_check(mup, WIDTHS, batch(), lr=lr, optimizer=mup_optimizer(rule))
    assert check.nearest == "muP"
    assert check.optimizer == rule
    for site in check.shown:
        assert site.slope == pytest.approx(site.mup, abs=0.15), (site.name, site.quantity)
    for name in "0246":
        assert check.find(name, "change").low < 0.0 < check.find(name, "change").high + 0.02


def test_one_layer_with_the_wrong_rate_is_seen():
    """A hidden layer whose learning rate was forgotten in the change to muP."""

    def forgetful(net, lr):
        optimizer = mup_optimizer("adam")(net, lr)
        optimizer.param_groups[2]["lr"] = lr
        return optimizer

    forgetful.rule = "adam"
    check = coordinate_check(mup, WIDTHS, batch(), lr=1e-5, optimizer=forgetful)
    assert check.find("4", "update").slope == pytest.approx(0.0, abs=0.02)
    assert check.find("4", "update").mup == -1.0
    assert check.find("4", "change").low > 0.4
    assert abs(check.find("2", "change").slope) < 0.15


def test_the_table_and_the_figure(tmp_path):
    pair, state = batch(), torch.get_rng_state()
    check = coordinate_check(standard, [16, 32], pair, lr=1e-4, steps=2, seeds=1)
    assert torch.equal(torch.get_rng_state(), state)
    text = str(check)
    assert "slope of log size against log width, widths 16, 32, 2 steps" in text
    assert "nearer to standard" in text
    assert check.shown[0].low == -math.inf
    assert len(check.find("0", "change", 1).sizes) == 2
    assert len(check.find("0", "activation", 2).sizes[0]) == 1
    figure = coordinate_figure(check, tmp_path / "widths.png")
    assert (tmp_path / "widths.png").stat().st_size > 10_000
    assert [axis.get_title() for axis in figure.axes][1] == "change of the output after 2 steps"
    assert len(figure.axes[0].get_legend().get_texts()) == 4
    with pytest.raises(KeyError):
        check.find("0", "change", 0)


def test_classes_embeddings_and_a_loss_of_ones_own():
    def make(width):
        return nn.Sequential(nn.Embedding(7, width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 5))

    tokens, targets = torch.randint(0, 7, (32,)), torch.randint(0, 5, (32,))
    check = coordinate_check(make, [16, 32], (tokens, targets), lr=1e-4, steps=1)
    assert [s.role for s in check.shown if s.quantity == "change"] == ["input", "hidden", "output"]
    own = coordinate_check(
        make, [16, 32], tokens, lr=1e-4, steps=1, optimizer=lambda net, lr: torch.optim.RMSprop(net.parameters(), lr),
        loss=lambda net, batch: nn.functional.cross_entropy(net(batch), targets),
    )  # fmt: skip
    assert own.nearest == ""
    assert own.optimizer == "own"
    assert own.find("1", "change").standard is None
    assert own.find("1", "gradient").mup == -1.0


def test_bad_input_is_told():
    pair = batch()
    with pytest.raises(PropagationError, match=r"widths is \[64\]"):
        coordinate_check(standard, [64], pair, lr=0.1)
    with pytest.raises(PropagationError, match="optimizer is 'lion'"):
        coordinate_check(standard, [8, 16], pair, lr=0.1, optimizer="lion")
    with pytest.raises(PropagationError, match="give loss"):
        coordinate_check(standard, [8, 16], pair[0], lr=0.1)
    with pytest.raises(PropagationError, match="lower lr"):
        coordinate_check(lambda n: nn.Linear(16, 4), [8, 16], pair, lr=1e38, optimizer="sgd")
    with pytest.raises(PropagationError, match="not the same for all widths"):
        coordinate_check(lambda n: standard(n) if n == 8 else nn.Linear(16, 4), [8, 16], pair, lr=0.1)
    with pytest.raises(PropagationError, match="the same is needed"):
        coordinate_check(lambda n: nn.Linear(16, n), [8, 16], pair, lr=0.1)
    with pytest.raises(NormalizationError, match="lr is 0"):
        coordinate_check(standard, [8, 16], pair, lr=0.0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"widths": "ab"}, "widths is 'ab'; a sequence"),
        ({"widths": 8}, "widths is 8; a sequence"),
        ({"widths": [8.5, 16]}, "a number of widths is 8.5"),
        ({"widths": [None, 16]}, "a number of widths is None"),
        ({"loss": "mse"}, "loss is 'mse'; a function"),
        ({"loss": lambda net, pair: net(pair[0])}, "loss gives a Tensor of shape .* one number"),
        ({"loss": lambda net, pair: 0.5}, "loss gives 0.5"),
        ({"optimizer": lambda net, lr: None}, "optimizer.* gives None"),
        ({"make_model": lambda n: standard(n).requires_grad_(False)}, "without a parameter that trains"),
        ({"make_model": lambda n: nn.ReLU()}, "without a parameter that trains"),
        ({"make_model": lambda n: standard(n).to("meta")}, "without values"),
        ({"make_model": lambda n: nn.LazyLinear(n)}, "without values"),
        ({"batch": (torch.full((4, 16), torch.nan), torch.zeros(4, 4))}, "step 0 is nan; look at the batch"),
    ],
)
def test_what_cannot_be_checked_is_told(change, why):
    given = {"make_model": standard, "widths": [8, 16], "batch": batch(), "lr": 0.1} | change
    with pytest.raises(TrimtabError, match=why):
        coordinate_check(**given)


def test_a_frozen_layer_has_no_update():
    def make(n):
        net = standard(n)
        next(net.parameters()).requires_grad_(False)
        return net

    check = coordinate_check(make, [8, 16], batch(), lr=0.1, steps=1)
    frozen = next(site for site in check.shown if site.quantity == "update")
    assert math.isnan(frozen.slope)


def test_matplotlib_is_loaded_for_the_figure_only():
    program = "import sys, trimtab.propagation; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

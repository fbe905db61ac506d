"""Fresh draws are told from trained weights."""

import numpy as np
import pytest
import torch
from diagnosis_cases import seeded
from problems import cross_entropy, digits, mlp, passes
from torch import nn

from trimtab.diagnosis.fresh import SIGNIFICANCE, looks_fresh
from trimtab.recording.facts import quantiles

SCHEMES = {
    "torch's default": lambda w, g: nn.init.kaiming_uniform_(w, a=5**0.5, generator=g),
    "He, normal": lambda w, g: nn.init.kaiming_normal_(w, nonlinearity="relu", generator=g),
    "He, uniform": lambda w, g: nn.init.kaiming_uniform_(w, nonlinearity="relu", generator=g),
    "LeCun, normal": lambda w, g: nn.init.kaiming_normal_(w, nonlinearity="linear", generator=g),
    "He, fan out": lambda w, g: nn.init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu", generator=g),
    "Xavier, uniform": lambda w, g: nn.init.xavier_uniform_(w, generator=g),
    "Xavier, normal": lambda w, g: nn.init.xavier_normal_(w, generator=g),
    "normal of 0.02": lambda w, g: nn.init.normal_(w, std=0.02, generator=g),
}
SHAPES = [(64, 64), (10, 64), (16, 3, 3, 3), (256, 128), (128, 400)]
SMALL = SHAPES[:3]


def fresh(weight):
    return looks_fresh({"shape": list(weight.shape), "quantiles": quantiles(weight)})


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_draws_are_accepted(scheme, shape):
    assert fresh(SCHEMES[scheme](torch.empty(shape), seeded()))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_fewer_than_two_in_a_hundred_draws_are_refused(scheme):
    generator = seeded(1)
    refused = sum(not fresh(SCHEMES[scheme](torch.empty(SMALL[i % len(SMALL)]), generator)) for i in range(200))
    assert refused < 0.02 * 200


def test_the_significance_is_far_below_that():
    assert SIGNIFICANCE < 0.02


@pytest.mark.parametrize("draw", ["torch's default", "Xavier, uniform"])
@pytest.mark.parametrize("rate", [1e-3, 3e-3])
def test_trained_weights_are_refused(draw, rate):
    net = mlp(2, 64)
    for layer in (net[0], net[2], net[4]):
        SCHEMES[draw](layer.weight, seeded(2))
    optimizer = torch.optim.Adam(net.parameters(), rate)
    for _ in range(15):
        for batch in passes(*digits())():
            optimizer.zero_grad()
            cross_entropy(net, batch).backward()
            optimizer.step()
    assert [fresh(net[i].weight) for i in (0, 2)] == [False, False]


def test_other_shapes_of_distribution_are_refused():
    generator = seeded()
    assert not fresh(nn.init.orthogonal_(torch.empty(128, 128), generator=generator) * 3)
    assert not fresh(torch.full((8, 8), 0.1))
    assert not fresh(torch.zeros(8, 8))
    assert not fresh(torch.ones(64, 64) + 0.1 * torch.randn(64, 64, generator=generator))
    assert not fresh(torch.randn(64, 64, generator=generator) ** 3 * 0.1)


def test_nothing_to_judge():
    assert not looks_fresh({"shape": [64, 64]})
    assert not looks_fresh({"shape": [64, 64], "quantiles": []})
    assert not looks_fresh({"shape": [64], "quantiles": np.linspace(-1, 1, 33).tolist()})

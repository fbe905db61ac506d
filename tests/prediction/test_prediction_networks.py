"""Predicted from the batch's moments and the weights, against what one pass measures, at initialization."""

import math
import statistics

import prediction_nets as nets
import pytest
import torch

from trimtab.prediction import predict


def errors(found):
    forward = [abs(s.forward_error) for s in found if math.isfinite(s.forward_error)]
    backward = [abs(s.backward_error) for s in found if math.isfinite(s.backward_error)]
    return statistics.median(forward), statistics.median(backward)


def flat(found):
    signal = [s.forward_measured for s in found]
    gradient = [s.backward_measured for s in found if s.backward_measured > 0]
    up = statistics.median(abs(math.log10(q / signal[0])) for q in signal)
    return up + statistics.median(abs(math.log10(q / gradient[-1])) for q in gradient)


def holds(make, forward=0.1, backward=0.1, seed=1):
    torch.manual_seed(seed)
    model, batch = make()
    found = predict(model, batch)
    assert found.coverage >= 0.95, dict(found.uncovered)
    up, back = errors(found)
    assert up < forward, found
    assert back < backward, found
    assert up + back < flat(found), "no better than to say that nothing changes"
    assert sum(s.odd == "measurement" for s in found) <= 0.15 * len(found) + 1, found
    return found


@pytest.mark.parametrize("activation", nets.ACTIVATIONS)
def test_mlp(activation):
    holds(lambda: nets.mlp(activation, depth=10, width=256, batch=32))


@pytest.mark.parametrize("activation", ["ReLU", "Tanh", "GELU", "SELU"])
def test_mlp_with_variance_kept(activation):
    holds(lambda: nets.mlp(activation, critical=True, depth=6, width=300, batch=32))


SMALL = {
    "vgg": lambda: nets.vgg(True, (16, 32), 16, 16),
    "vgg without norm": lambda: nets.vgg(False, (32, 64), 16, 16),
    "resnet": lambda: nets.resnet(True, (16, 32), 32, 16),
    "resnet without norm": lambda: nets.resnet(False, (32, 64), 32, 16),
    "encoder layers, pre": lambda: nets.transformer(True, depth=3, width=64, tokens=16),
    "encoder layers, post": lambda: nets.transformer(False, depth=3, width=64, tokens=16),
    "own layers, pre": lambda: nets.transformer(True, True, depth=3, width=64, tokens=16),
    "own layers, post": lambda: nets.transformer(False, True, depth=3, width=64, tokens=16),
    "LSTM": lambda: nets.recurrent("LSTM", 20, 16, 64, 16),
    "GRU": lambda: nets.recurrent("GRU", 20, 16, 64, 16),
    "RNN": lambda: nets.recurrent("RNN", 20, 16, 64, 16),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_networks(name):
    wide = 0.2 if "without norm" in name else 0.1  # so narrow a net, one draw is worth no more
    holds(SMALL[name], wide, max(wide, 0.15))


def test_time_steps_are_sites():
    found = holds(SMALL["LSTM"])
    steps = [s for s in found if s.name.startswith("rnn[")]
    assert len(steps) == 20
    assert all(math.isfinite(s.backward_measured) for s in steps)


LARGE = {
    "vgg": lambda: nets.vgg(True),
    "vgg without norm": lambda: nets.vgg(False),
    "vgg, torch default": lambda: nets.vgg(False, he=False),
    "resnet": lambda: nets.resnet(True),
    "encoder layers, pre": lambda: nets.transformer(True),
    "encoder layers, post": lambda: nets.transformer(False),
    "own layers, pre": lambda: nets.transformer(True, True),
    "own layers, post": lambda: nets.transformer(False, True),
    "LSTM": lambda: nets.recurrent("LSTM"),
    "GRU": lambda: nets.recurrent("GRU"),
    "RNN": lambda: nets.recurrent("RNN"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_networks(name):
    holds(LARGE[name], 0.12, 0.12, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("activation", nets.ACTIVATIONS)
def test_thirty_layers(activation):
    holds(lambda: nets.mlp(activation), seed=0)

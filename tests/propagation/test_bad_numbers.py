"""Every public formula refuses what is no number, or out of range, with an error of trimtab's own."""

import inspect
import math

import numpy as np
import pytest
import torch

from trimtab import propagation
from trimtab.errors import TrimtabError
from trimtab.propagation import PropagationError

GOOD = {
    "activation": "tanh", "q": 1.0, "weight_var": 1.5, "bias_var": 0.05, "c": 0.5, "d": 0.5, "q_a": 1.0, "q_b": 2.0,
    "mean": 0.3, "depth": 4, "width": 64, "widths": [64, 64], "log_variance": 0.1, "log_gain": 0.1, "sigmas": 3.0,
    "slope": 0.5, "gain": 1.5, "threshold": 0.05, "gamma": 1.0, "beta": 0.1, "batch": 8, "fan_in": 64, "fan_out": 64,
    "classes": 10, "logit_variance": 1.0, "learning_rate": 0.1, "weight_norm": 1.0, "weight_decay": 0.1,
    "gradient": 1.0, "momentum": 0.5, "step": 3, "layer": 3, "placement": "pre", "layers": 3, "alpha": 2.0, "blocks": 3,
    "weight_second_moment": 0.01, "input_second_moment": 1.0, "gradient_second_moment": 1.0, "gamma_squared": 1.0,
    "derivative_second_moment": 1.0, "variance": 1.0, "eps": 1e-5, "alike": 0.5, "samples": 8, "weight_shape": (16, 8, 3, 3), "input_size": (8, 8),
}  # fmt: skip
FLAGS_AND_OPTIONS = {"transposed", "centred", "path", "kinks"}
NO_NUMBERS = [
    "x", math.nan, -math.inf, -1.5, [], torch.ones(2), torch.ones((), requires_grad=True), 1j, object(), {}, True,
    np.array(["a"]), np.ones((2, 2)), torch.nn.Softmax(-1),
]  # fmt: skip
SIGNED = {"mean", "log_gain", "slope", "gamma", "beta", "input_mean", "weight_mean", "scale", "skip", "c", "alike"}
ARRAYS = {"q"}  # of the maps, which take an array for an array
OTHERWISE_TESTED = {
    "activation", "as_activation", "expectation", "pair_expectation", "phase_diagram", "coordinate_check",
    "coordinate_figure", "critical_", "lsuv_", "jacobian", "depth_figure", "collapse_figure",
}  # fmt: skip
FORMULAS = [
    name
    for name in propagation.__all__
    if inspect.isfunction(getattr(propagation, name)) and name not in OTHERWISE_TESTED
]


def arguments_of(name):
    parameters = inspect.signature(getattr(propagation, name)).parameters
    given = {p: GOOD[p] for p in parameters if p in GOOD}
    if name == "depth_scales":
        del given["q"]  # a fixed point
    return parameters, given


@pytest.mark.parametrize("name", FORMULAS)
def test_good_numbers_pass(name):
    getattr(propagation, name)(**arguments_of(name)[1])


@pytest.mark.parametrize("name", FORMULAS)
def test_what_is_no_number_is_refused(name):
    parameters, given = arguments_of(name)
    let_through = []
    for parameter in parameters:
        if parameter in FLAGS_AND_OPTIONS:
            continue
        for bad in NO_NUMBERS:
            fits = (
                (bad is NO_NUMBERS[3] and parameter in SIGNED)
                or (isinstance(bad, np.ndarray) and bad.dtype.kind == "f" and parameter in ARRAYS)
                or (bad is NO_NUMBERS[4] and parameter == "widths")
            )
            if fits:
                continue
            try:
                value = getattr(propagation, name)(**(given | {parameter: bad}))
            except TrimtabError:
                continue
            let_through.append((parameter, bad, value))
    assert not let_through


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: propagation.chi("tanh", 1.0, torch.tensor(1.5)), r"weight_var is a Tensor.*float\(\.\.\.\)"),
        (lambda: propagation.length_map("tanh", 1.0, [1, 2]), r"weight_var is \[1, 2\]; a finite number"),
        (lambda: propagation.length_map("tanh", "1", 1.5), "the variance q is '1'"),
        (lambda: propagation.trajectory("tanh", 1.0, 1.5, depth=2.5), "depth is 2.5; a whole number of at least 1"),
        (lambda: propagation.trajectory("relu", 1.0, 1e30, depth=20), "overflows at layer 12"),
        (lambda: propagation.correlation_fixed_points("tanh", 0.4, 1.0, None), "bias_var is None"),
        (lambda: propagation.gradient_log_variances("tanh", 1.0, 0.0, 0.0, [9]), "a logarithmic slope needs"),
        (lambda: propagation.forward_log_variance("tanh", 1.0, 1.0, 0.0, 100), "widths is 100; a sequence"),
        (lambda: propagation.fans(16), "weight_shape is 16; a sequence"),
    ],
)
def test_messages(call, words):
    with pytest.raises(PropagationError, match=words):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: propagation.expectation(None, 1.0), "activation is None"),
        (lambda: propagation.expectation("tanh", 1.0, kinks="x"), "kinks is 'x'"),
        (lambda: propagation.expectation("tanh", 1.0, kinks=[math.nan]), "a number of kinks is nan"),
        (lambda: propagation.expectation("tanh", -1.0), "variance q is -1"),
        (lambda: propagation.expectation("tanh", 1.0, mean=None), "the mean is None"),
        (lambda: propagation.pair_expectation("tanh", 1.0, 1.0, 0.5), "f is 'tanh'; a function of two arrays"),
        (lambda: propagation.pair_expectation(np.multiply, 1.0, 1.0, 3.0), "d = 1 - c is 3"),
    ],
)
def test_expectations(call, words):
    with pytest.raises(PropagationError, match=words):
        call()

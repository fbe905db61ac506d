"""Any elementwise function is an activation; what is none is refused and says why."""

import copy
import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from trimtab.propagation import (
    ACTIVATION_NAMES,
    PropagationError,
    UnknownActivationError,
    activation,
    as_activation,
    mean_derivative_squared,
    second_moment,
)
from trimtab.propagation.functions import _FUNCTIONS, _MODULES


def unknown(function):
    """The same function, behind a name that is not recognised."""
    return lambda x: function(x)


TORCH = {
    "relu": torch.relu,
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "selu": functional.selu,
    "hard_tanh": functional.hardtanh,
    "hard_swish": functional.hardswish,
    "relu6": functional.relu6,
    "softsign": functional.softsign,
    "softshrink": functional.softshrink,
    "hardshrink": functional.hardshrink,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "mish": functional.mish,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "log_sigmoid": functional.logsigmoid,
    "tanhshrink": functional.tanhshrink,
}


@pytest.mark.parametrize("name", TORCH)
def test_a_function_is_what_the_named_activation_is(name):
    known, found = activation(name), as_activation(unknown(TORCH[name]))
    assert found.closed is None
    assert found.kinks == pytest.approx(known.kinks, abs=1e-12)
    for q in (1e-3, 1.0, 50.0):
        assert second_moment(found, q) == pytest.approx(second_moment(known, q), rel=1e-11)
        assert mean_derivative_squared(found, q) == pytest.approx(mean_derivative_squared(known, q), rel=1e-11)
    assert found.derivative_max == pytest.approx(known.derivative_max, rel=1e-5)
    assert found.low == pytest.approx(known.low, abs=1e-5)
    assert found.high == pytest.approx(known.high, abs=1e-5)


@pytest.mark.parametrize(
    ("module", "name", "parameters"),
    [
        (nn.ReLU(inplace=False), "relu", {}),
        (nn.LeakyReLU(0.2), "leaky_relu", {"negative_slope": 0.2}),
        (nn.ELU(0.5), "elu", {"alpha": 0.5}),
        (nn.GELU("tanh"), "gelu", {"approximate": "tanh"}),
        (nn.Hardtanh(-2.0, 1.0), "hard_tanh", {"min_val": -2.0, "max_val": 1.0}),
        (nn.PReLU(init=0.1), "prelu", {"negative_slope": 0.1}),
        (nn.Softplus(2.0), "softplus", {"beta": 2.0}),
    ],
)
def test_modules_are_recognised_with_their_parameters(module, name, parameters):
    found, known = as_activation(module), activation(name, **parameters)
    assert (found.name, found.kinks) == (known.name, known.kinks)
    assert second_moment(module, 0.7) == pytest.approx(second_moment(known, 0.7), rel=1e-7)


def test_every_known_module_and_function_agrees_with_its_name():
    u = torch.linspace(-5, 5, 101, dtype=torch.float64)
    for kind in _MODULES:
        np.testing.assert_allclose(as_activation(kind()).value(u.numpy()), kind()(u), rtol=1e-8, atol=1e-8)
    for function, name in _FUNCTIONS.items():
        np.testing.assert_allclose(activation(name).value(u.numpy()), function(u), rtol=1e-8, atol=1e-8)
    assert set(_FUNCTIONS.values()) <= set(ACTIVATION_NAMES)


def test_kinks_of_functions_that_nobody_knows():
    assert as_activation(lambda x: torch.clamp(x, -1 / 3, 2.7)).kinks == pytest.approx((-1 / 3, 2.7), abs=1e-14)
    assert as_activation(lambda x: torch.relu(x) ** 2).kinks == pytest.approx((0.0,), abs=1e-8)
    assert as_activation(nn.Threshold(0.3, -1.0)).kinks == pytest.approx((0.3,), abs=1e-14)
    assert as_activation(lambda x: torch.tanh(30 * x)).kinks == ()
    assert second_moment(lambda x: torch.relu(x) ** 2, 2.0) == pytest.approx(0.5 * 3 * 4, rel=1e-12)
    tilted = functools.partial(functional.leaky_relu, negative_slope=0.3)
    assert second_moment(tilted, 2.0) == pytest.approx(1.09, rel=1e-12)


def test_a_module_is_left_as_it_was():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = nn.Parameter(torch.tensor(1.7))
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * torch.sigmoid(self.slope * x)

    module, state = Gated(), torch.get_rng_state()
    before, seen = copy.deepcopy(module.state_dict()), []
    module.register_forward_hook(lambda *_: seen.append(1))
    phi = as_activation(module)
    assert module.calls == 0
    assert seen == []
    assert module.slope.dtype == torch.float32
    assert module.slope.grad is None
    assert torch.equal(before["slope"], module.slope.detach())
    assert torch.equal(state, torch.get_rng_state())
    assert phi.name == "Gated"
    with torch.no_grad():  # derivatives do not depend on the caller's grad mode
        assert phi.derivative(np.array([0.0]))[0] == pytest.approx(0.5)


def test_functions_that_work_in_place_and_early_softplus():
    assert second_moment(lambda x: x.relu_(), 2.0) == pytest.approx(1.0, rel=1e-12)
    early = nn.Softplus(1.0, threshold=2.0)
    assert as_activation(early).kinks == pytest.approx((2.0,), abs=1e-12)
    assert second_moment(early, 1.0) < second_moment("softplus", 1.0)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (nn.Softmax(-1), "mixes the elements"),
        (nn.Softmax(0), "mixes the elements"),
        (nn.GLU(), r"\(5, 6\) into \(5, 3\)"),
        (nn.LayerNorm(6), "no softmax, GLU or normalization"),
        (nn.BatchNorm1d(6), "no softmax, GLU or normalization"),
        (nn.Linear(6, 6), "does not take"),
        (nn.PReLU(6), "does not take"),
        (nn.Dropout(), "random"),
        (nn.RReLU(), "random"),
        (lambda x: x - x.mean(), "mixes the elements"),
        (lambda x: x.cumsum(-1), "mixes the elements"),
        (lambda x: x.mean(), r"into \(\)"),
        (lambda x: None, "NoneType"),
        (lambda x: (x > 0).double(), "cannot differentiate"),
        (torch.log, "not finite"),
        (lambda x: torch.tanh(x.float()).double(), "float64"),
        (lambda x: x * 1j, "complex numbers"),
        (nn.PReLU(device="meta"), "without values"),
        (nn.LazyLinear(3), "without values"),
        (nn.ReLU, "into ReLU"),
        (3.0, "float"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_activation_is_refused(wrong, why):
    with pytest.raises(PropagationError, match=why):
        second_moment(wrong, 1.0)


@pytest.mark.parametrize(
    ("name", "parameters", "why"),
    [
        (["relu"], {}, "no activation is called"),
        (None, {}, "no activation is called None"),
        ("leaky_relu", {"negative_slope": float("nan")}, "negative_slope = nan"),
        ("leaky_relu", {"negative_slope": "x"}, "cannot be made"),
        ("relu", {"slope": 1.0}, "cannot be made"),
    ],
)
def test_an_activation_that_cannot_be_made_is_refused(name, parameters, why):
    with pytest.raises(UnknownActivationError, match=why):
        activation(name, **parameters)


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownActivationError, match="swish"):
        second_moment("swish", 1.0)

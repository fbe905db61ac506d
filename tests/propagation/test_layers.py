"""Fans and linear gains are what autograd measures."""

import math

import pytest
import torch
from torch.nn import functional

from trimtab.propagation import (
    PropagationError,
    fans,
    linear_backward,
    linear_backward_gain,
    linear_forward,
    linear_forward_gain,
    norm_backward_gain,
    padded_fans,
)

CONVOLUTIONS = [
    ((48, 32, 3, 3), 1, 1),
    ((48, 32, 3, 3), 2, 1),
    ((48, 8, 3, 3), 1, 4),
    ((64, 1, 5, 3), (1, 2), 64),
    ((32, 64, 1, 1), 2, 1),
]


def measured_gains(forward, x, weight):
    x.requires_grad_(True)
    y = forward(x)
    g = torch.randn_like(y)
    y.backward(g)
    forward_gain, backward_gain = (y**2).mean() / (x**2).mean(), (x.grad**2).mean() / (g**2).mean()
    second = float((weight**2).mean())
    return float(forward_gain.detach()) / second, float(backward_gain) / second


@pytest.mark.parametrize(("shape", "stride", "groups"), CONVOLUTIONS)
def test_fans_of_a_convolution_with_circular_padding(shape, stride, groups):
    torch.manual_seed(0)
    weight, x = torch.randn(shape), torch.randn(6, shape[1] * groups, 16, 16)
    height, width = shape[2] // 2, shape[3] // 2

    def forward(x):
        padded = functional.pad(x, (width, width, height, height), mode="circular")
        return functional.conv2d(padded, weight, stride=stride, groups=groups)

    fan_in, fan_out = fans(shape, stride, groups)
    seen_in, seen_out = measured_gains(forward, x, weight)
    assert seen_in == pytest.approx(fan_in, rel=0.05)
    assert seen_out == pytest.approx(fan_out, rel=0.05)


@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (2, 4)])
def test_fans_of_a_transposed_convolution(stride, groups):
    torch.manual_seed(0)
    shape = (32, 64 // groups, 4, 4)
    weight, x = torch.randn(shape), torch.randn(2, 32, 40, 40)
    fan_in, fan_out = fans(shape, stride, groups, transposed=True)
    inner = lambda x: functional.conv_transpose2d(x, weight, stride=stride, groups=groups)[..., 4:-4, 4:-4]  # noqa: E731
    seen_in, _ = measured_gains(inner, x, weight)
    whole = lambda x: functional.conv_transpose2d(x, weight, stride=stride, groups=groups)  # noqa: E731
    _, seen_out = measured_gains(whole, x.detach().clone(), weight)
    assert seen_in == pytest.approx(fan_in, rel=0.05)
    assert seen_out == pytest.approx(fan_out, rel=0.05)


@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), [(1, 1, 1, 1), (2, 1, 1, 2), (1, 2, 2, 1)])
def test_padded_fans_leave_out_what_meets_the_padding(stride, padding, dilation, groups):
    torch.manual_seed(0)
    shape = (64, 64 // groups, 3, 3)
    weight, x = torch.randn(shape), torch.randn(12, 64, 7, 7)
    fan_in, fan_out = padded_fans(shape, (7, 7), stride, padding, dilation, groups)
    seen_in, seen_out = measured_gains(
        lambda x: functional.conv2d(x, weight, None, stride, padding, dilation, groups), x, weight
    )
    assert seen_in == pytest.approx(fan_in, rel=0.05)
    assert seen_out == pytest.approx(fan_out, rel=0.05)


def test_fans_of_a_linear_layer_and_exact_numbers():
    assert fans((10, 30)) == (30.0, 10.0)
    assert fans((8, 4, 3, 3), 2, 2) == (36.0, 9.0)
    assert fans((8, 4, 3), (2,), 2, transposed=True) == (6.0, 12.0)
    assert padded_fans((5, 2, 3, 3), (8, 8), 1, 1)[0] == pytest.approx(2 * 9 * (22 / 24) ** 2)


@pytest.mark.parametrize(
    ("shape", "stride", "groups"),
    [((3,), 1, 1), ((0, 3), 1, 1), ((4, 2, 3), (1, 1), 1), ((4, 2, 3), 0, 1), ((4, 2), 1, 3)],
)
def test_what_is_no_layer_is_refused(shape, stride, groups):
    with pytest.raises(PropagationError):
        fans(shape, stride, groups)


def test_a_kernel_that_does_not_fit_is_refused():
    with pytest.raises(PropagationError, match="does not fit"):
        padded_fans((4, 2, 5), (3,))


@pytest.mark.parametrize("scheme", ["kaiming", "orthogonal", "uniform of one sign"])
def test_maps_of_a_linear_layer_from_its_weights(scheme):
    torch.manual_seed(0)
    weight = torch.empty(500, 400)
    if scheme == "kaiming":
        torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    elif scheme == "orthogonal":
        torch.nn.init.orthogonal_(weight)
    else:
        torch.nn.init.uniform_(weight, 0.0, 1.0)
    x, b = torch.rand(2000, 400), torch.randn(500)
    seen = float(((x @ weight.T + b) ** 2).mean())
    expected = linear_forward(
        float((x**2).mean()),
        400,
        float((weight**2).mean()),
        float((b**2).mean()),
        input_mean=float(x.mean()),
        weight_mean=float(weight.mean()),
    )
    assert seen == pytest.approx(expected, rel=0.1)
    g = torch.randn(2000, 500)
    seen = float(((g @ weight) ** 2).mean() / (g**2).mean())
    assert seen == pytest.approx(linear_backward_gain(500, float((weight**2).mean())), rel=0.05)


def test_maps_are_their_formulas():
    assert linear_forward_gain(6, 0.5) == 3.0
    assert linear_forward(2.0, 6, 0.5, 0.25) == 6.25
    assert linear_backward(2.0, 6, 0.5, 0.5) == 3.0
    for wrong in ((-1.0, 1.0), (1.0, math.nan)):
        with pytest.raises(PropagationError):
            linear_forward_gain(*wrong)


@pytest.mark.parametrize("eps", [1e-5, 0.5])
@pytest.mark.parametrize("kind", ["layer", "rms", "batch"])
def test_norm_backward_gain(kind, eps):
    torch.manual_seed(0)
    rows, group = (4000, 8) if kind != "batch" else (8, 4000)
    x, gamma = 0.3 + 1.5 * torch.randn(rows, group, dtype=torch.float64), torch.randn(group, dtype=torch.float64)
    x.requires_grad_(True)
    if kind == "layer":
        y, variance = functional.layer_norm(x, (group,), gamma, None, eps), x.var(1, correction=0)
    elif kind == "rms":
        y, variance = functional.rms_norm(x, (group,), gamma, eps), (x**2).mean(1)
    else:
        y, variance = functional.batch_norm(x, None, None, gamma, None, True, 0.1, eps), x.var(0, correction=0)
    g = torch.randn_like(y)
    y.backward(g)
    expected = [
        norm_backward_gain(float((gamma**2).mean()), float(v), eps, 8, kind != "rms") for v in variance.detach()
    ]
    assert float((x.grad**2).mean() / (g**2).mean()) == pytest.approx(sum(expected) / len(expected), rel=0.06)


def test_norm_backward_gain_of_pairs_is_nearly_nothing_and_its_ceiling_is_eps():
    assert norm_backward_gain(1.0, 1.0, 0.0, 2) == 0.0
    assert norm_backward_gain(4.0, 0.0, 1e-5) == pytest.approx(4.0 / 1e-5)
    assert math.sqrt(norm_backward_gain(1.0, 0.0, 1e-5)) == pytest.approx(316.2, abs=0.1)


@pytest.mark.parametrize("wrong", [(-1.0, 1.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, math.nan), (1.0, 1.0, 0.0, 1)])
def test_what_is_no_norm_is_refused(wrong):
    with pytest.raises(PropagationError):
        norm_backward_gain(*wrong)

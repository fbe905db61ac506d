"""The flow of the gradient: measured against autograd in float64, predicted against wide nets."""

import itertools
import math

import numpy as np
import pytest
import torch
from diagnosis_cases import gradients, seeded, watched
from torch import nn

from trimtab import Setup
from trimtab.diagnosis.flow import EARLY, SCATTER, against_prediction, flows, gradient_at_start, mean_predicted_gain
from trimtab.diagnosis.view import View


def flow_of(net, x, loss=lambda z: z.square().mean()):
    """The flow of one batch through a net, and the net's layers."""
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    setup = Setup(net, optimizer, lambda: [x], lambda model, batch: loss(model(batch)), steps=1)
    view = View(watched(setup))
    (flow,) = flows(view)
    return flow, view


def chain(depth, width, act, draw):
    body = [part for _ in range(depth) for part in (nn.Linear(width, width), act())]
    net = nn.Sequential(*body, nn.Linear(width, width))
    for layer in net:
        if isinstance(layer, nn.Linear):
            draw(layer.weight)
            nn.init.zeros_(layer.bias)
    return net


def he(scale):
    return lambda w: nn.init.normal_(w, std=(scale / w.shape[1]) ** 0.5)


@pytest.mark.parametrize("act", [nn.ReLU, nn.Tanh, nn.GELU])
def test_measured_gains_are_those_of_autograd_in_float64(act):
    net, x = chain(4, 48, act, he(1.3)), torch.randn(64, 48)
    flow, _ = flow_of(net, x)
    _, true = gradients(net, x, lambda z: z.square().mean())
    sizes = [g.square().sum().item() for g in true[::2]]
    assert flow.gradients == pytest.approx(sizes, rel=1e-5)
    assert [gain.measured for gain in flow.gains] == pytest.approx(
        [a / b for a, b in itertools.pairwise(sizes)], rel=1e-5
    )
    assert flow.log_total == pytest.approx(math.log10(sizes[0] / sizes[-1]), rel=1e-4)
    assert flow.per_layer == pytest.approx((sizes[0] / sizes[-1]) ** (1 / 4), rel=1e-4)


def test_in_a_linear_net_prediction_and_measurement_agree_in_the_mean():
    """||W'g||^2 is on average ||g||^2 ||W||^2 / n_out: exactly so for orthogonal weights."""
    torch.manual_seed(0)
    widths = [40, 40, 40, 40]
    net = nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)))
    for i, layer in enumerate(net):
        nn.init.orthogonal_(layer.weight, gain=0.5 + i)
    flow, _ = flow_of(net, torch.randn(16, 40))
    assert [gain.measured for gain in flow.gains] == pytest.approx([1.5**2, 2.5**2], rel=1e-4)
    assert [gain.predicted for gain in flow.gains] == pytest.approx(
        [1.5**2, 2.5**2], rel=1e-2
    )  # the centre of its logarithm


def anything(z):
    """A loss whose gradient at the output has nothing to do with the weights, as the recursion supposes."""
    return (z * torch.randn(z.shape, generator=seeded(7))).mean()


CASES = [
    ("ReLU, He", nn.ReLU, he(2.0), 1.0),
    ("ReLU, torch's default", nn.ReLU, lambda w: nn.init.kaiming_uniform_(w, a=5**0.5), 1 / 6),
    ("ReLU, too large", nn.ReLU, he(12.0), 6.0),
    ("sigmoid, sigma_w 1", nn.Sigmoid, he(1.0), 0.0557),
    ("tanh, sigma_w 1.5", nn.Tanh, he(2.25), None),
    ("GELU, He", nn.GELU, he(2.0), None),
]


@pytest.mark.parametrize(("act", "draw", "known"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_predicted_gains_against_a_wide_net(act, draw, known):
    """Width 600, four layers: the scatter of a layer's gain is sqrt(5/600) = 9 %; three of it for the geometric mean of four."""
    torch.manual_seed(3)
    depth, width = 4, 600
    net = chain(depth, width, act, draw)
    flow, _ = flow_of(net, torch.randn(100, width), anything)
    assert all(gain.predicted is not None for gain in flow.gains)
    bound = 3 * math.sqrt(SCATTER / width / depth)
    assert abs(math.log(flow.per_layer / mean_predicted_gain(flow.gains))) < bound
    if known is not None:
        assert abs(math.log(mean_predicted_gain(flow.gains) / known)) < bound


def test_predicted_gains_start_from_the_mean_and_spread_of_what_comes_in():
    """A bias that switches most units off: E phi'^2 is their share, and not one half."""
    torch.manual_seed(0)
    net = chain(1, 600, nn.ReLU, he(2.0))
    nn.init.constant_(net[0].bias, -1.5)
    flow, _ = flow_of(net, torch.randn(200, 600), anything)
    (gain,) = flow.gains
    assert gain.predicted < 0.4
    assert abs(math.log(gain.measured / gain.predicted)) < 3 * math.sqrt(SCATTER / 600)


def test_the_tolerance_without_a_prediction_is_three_deviations_of_the_variance_law():
    _, view = flow_of(chain(6, 32, nn.ReLU, he(2.0)), torch.randn(32, 32))
    view.record.facts.pop("predictions")
    (flow,) = flows(View(view.record))
    assert flow.tolerance == pytest.approx(3 * math.sqrt(5 * 6 / 32) / math.log(10))
    assert math.isnan(flow.log_predicted)
    assert not flow.leaves
    assert all(gain.predicted is None for gain in flow.gains)


@pytest.mark.parametrize(("act", "power"), [(nn.ReLU, 2.0), (nn.Identity, 1.0)])
def test_what_the_gains_scatter_is_said_beside_the_prediction(act, power):
    """For one sample, 40 nets: three deviations hold, and are not far too wide. More samples scatter less."""
    torch.manual_seed(0)
    logs = []
    for _ in range(40):
        flow, _ = flow_of(chain(4, 48, act, he(power)), torch.randn(1, 48), anything)
        (evidence,) = against_prediction(flow, flow.gains)
        logs.append(math.log(evidence.measured / evidence.expected) / math.log(evidence.tolerance))
    assert max(abs(log) for log in logs) < 1.3
    assert 0.15 < np.std(logs) < 0.6  # a third, were it exact


@pytest.mark.slow
def test_he_nets_stay_within_the_tolerance():
    """Of 200 He nets of width 24 and depth 8 about one in 370 should leave the band."""
    torch.manual_seed(0)
    outside = 0
    for _ in range(200):
        flow, _ = flow_of(
            chain(8, 24, nn.ReLU, he(2.0)), torch.randn(32, 24), lambda z: (z * torch.randn(z.shape)).mean()
        )
        outside += abs(flow.log_total) > flow.tolerance
    assert outside <= 6


@pytest.mark.parametrize(
    "between",
    [
        (nn.BatchNorm2d(8), nn.ReLU()),
        (nn.ReLU(), nn.Tanh()),
        (nn.AvgPool2d(2), nn.ReLU()),
        (nn.ReLU(), nn.MaxPool2d(2)),
        (nn.Dropout(0.4), nn.ReLU()),
    ],
    ids=lambda parts: "-".join(type(part).__name__ for part in parts),
)
def test_predicted_across_norms_poolings_and_dropout(between):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(8, 8, 3), *between, nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    flow, _ = flow_of(net, torch.randn(8, 8, 16, 16), anything)
    for gain in flow.gains:
        assert gain.predicted is not None
        assert abs(math.log(gain.measured / gain.predicted)) < 3 * math.sqrt(SCATTER / 8)
    assert not flow.leaves


def test_a_flow_that_a_hook_cuts_leaves_the_prediction():
    net = chain(3, 48, nn.ReLU, he(2.0))
    net[2].register_full_backward_pre_hook(lambda module, grads: tuple(g * 1e-4 for g in grads))
    flow, _ = flow_of(net, torch.randn(64, 48))
    assert flow.leaves
    assert flow.log_total < -6 < flow.log_predicted


def test_the_predicted_gain_of_a_transposed_convolution():
    """Stride 2 spreads the kernel over the outputs: each sums a quarter of what the weight's shape says."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.ConvTranspose2d(64, 96, 4, 2), nn.ReLU(), nn.ConvTranspose2d(96, 32, 4, 2, groups=2))
    flow, _ = flow_of(net, torch.randn(4, 64, 8, 8), anything)
    (gain,) = flow.gains
    assert abs(math.log(gain.measured / gain.predicted)) < 3 * math.sqrt(SCATTER / 96)


def test_no_gain_across_a_sum():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(24, 24) for _ in range(3))

        def forward(self, x):
            z = self.a(x)
            return self.c(z + self.b(torch.relu(z)))

    flow, _ = flow_of(Net(), torch.randn(16, 24))
    assert [(gain.source.name, gain.layer.name) for gain in flow.gains] == [("a", "b")]
    assert len(flow.layers) == 3


def test_no_flow_through_a_single_layer():
    net = nn.Sequential(nn.Linear(6, 6))
    setup = Setup(
        net, torch.optim.SGD(net.parameters(), 0.0), lambda: [torch.randn(4, 6)], lambda m, b: m(b).sum(), steps=1
    )
    assert flows(View(watched(setup))) == []


def zero_started(steps):
    """A net whose last layer starts at zero: nothing comes back at the first step."""
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    nn.init.zeros_(net[2].weight)
    x = torch.randn(16, 8, generator=seeded())
    setup = Setup(
        net, torch.optim.SGD(net.parameters(), 0.1), lambda: [x], lambda m, b: (m(b) - 1).square().mean(), steps=steps
    )
    return View(watched(setup))


def test_the_first_gradient_that_is_not_zero_counts():
    first, last = zero_started(3).layers
    assert first.gradient.second_moment[0] == 0
    assert gradient_at_start(first) == pytest.approx(float(first.gradient.norm[1]) ** 2)
    assert gradient_at_start(last) == pytest.approx(float(last.gradient.norm[0]) ** 2)


def test_a_gradient_that_stays_zero_is_zero():
    first, _ = zero_started(1).layers
    assert gradient_at_start(first) == 0.0
    (flow,) = flows(zero_started(1))
    assert flow.log_total == -math.inf


def test_gradients_that_are_no_numbers_are_not_used():
    net = chain(2, 8, nn.ReLU, he(2.0))
    setup = Setup(
        net,
        torch.optim.SGD(net.parameters(), 0.0),
        lambda: [torch.randn(4, 8)],
        lambda m, b: m(b).sum() * float("nan"),
        steps=1,
    )
    view = View(watched(setup))
    assert all(math.isnan(gradient_at_start(layer)) for layer in view.layers)
    assert flows(view) == []


def test_later_gradients_do_not_count():
    assert EARLY == 10
    first, _ = zero_started(3).layers
    first.gradient.steps[:] += EARLY
    assert math.isnan(gradient_at_start(first))

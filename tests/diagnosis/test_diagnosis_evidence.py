"""The numbers in the findings are the true ones: each beside its own computation in float64."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from diagnosis_cases import evidence, gradients
from problems import (
    adam_at_a_rate_of_one,
    bias_below_zero_functional,
    build,
    cross_entropy,
    digits,
    eight_layers,
    layers_in_a_list,
    mlp,
    norm_clipped_at_a_hundredth,
    pixels_of_255,
    raw_table,
    softmax_function,
    tanh_drawn_large,
    targets_in_thousands,
    torch_default_under_relu,
)
from torch import nn
from torch.nn import functional as F

import trimtab


def first_batch(setup):
    return next(iter(setup.batches()))


@pytest.mark.parametrize("kind", ["vanishing", "exploding"])
def test_gradients_per_layer(kind):
    setup = build(eight_layers, kind)
    x, y = first_batch(setup)
    net = copy.deepcopy(setup.model)
    _, true = gradients(net, x, lambda z: F.cross_entropy(z, y))
    sizes = [true[i].square().sum().item() for i in range(0, 17, 2)]
    finding = trimtab.diagnose(setup)[f"{kind}-gradient"]
    assert evidence(finding, "at 0 over that at 16").measured == pytest.approx(sizes[0] / sizes[-1], rel=1e-3)
    gains = np.log([a / b for a, b in itertools.pairwise(sizes)])
    scatter = 3 * math.sqrt(5 / 64)
    beyond = gains[gains < -scatter] if kind == "vanishing" else gains[gains > scatter]
    assert evidence(finding, "per layer").measured == pytest.approx(math.exp(beyond.mean()), rel=1e-3)


def test_torch_default_under_relu_loses_five_sixths_a_layer():
    """theory.md, law 1: sigma_w^2 = 1/3, so that a ReLU layer keeps a sixth."""
    finding = trimtab.diagnose(build(torch_default_under_relu, True))["vanishing-gradient"]
    assert evidence(finding, "weights predict").measured == pytest.approx(1 / 6, rel=0.1)
    assert evidence(finding, "per layer").measured == pytest.approx(1 / 6, rel=0.35)
    assert evidence(finding, "fan_in times").measured == pytest.approx(1 / 3, rel=0.05)
    assert evidence(finding, "fan_in times").expected == 2.0


def test_dead_units_are_counted():
    setup = build(bias_below_zero_functional, True)
    x, _ = first_batch(setup)
    net = copy.deepcopy(setup.model).double()
    off = (F.relu(net.b(F.relu(net.a(x.double())))) == 0).all(0).double().mean().item()
    finding = trimtab.diagnose(setup)["dead-units"]
    assert off == 1.0
    assert evidence(finding, "at the first look").measured == off
    before = net.b(F.relu(net.a(x.double())))
    assert evidence(finding, "mean of what").measured == pytest.approx(before.mean().item(), rel=1e-4)


def test_saturated_values_are_counted():
    setup = build(tanh_drawn_large, True)
    x, _ = first_batch(setup)
    before = copy.deepcopy(setup.model).double()[0](x.double())
    finding = trimtab.diagnose(setup)["saturated-units"]
    slopes = 1 - torch.tanh(before).square()
    assert evidence(finding, "saturated values").measured == pytest.approx(
        (slopes < 0.05).double().mean().item(), abs=3e-3
    )
    assert evidence(finding, "spread").measured == pytest.approx(before.square().mean().sqrt().item(), rel=1e-4)


@pytest.mark.parametrize("problem", [pixels_of_255, raw_table])
def test_sizes_of_the_features(problem):
    setup = build(problem, True)
    x = first_batch(setup)[0].double()
    sizes = x.square().mean(0).sqrt().numpy()
    used = sizes[sizes > 0]
    finding = trimtab.diagnose(setup)["unscaled-inputs"]
    assert evidence(finding, "over median").measured == pytest.approx(used.max() / np.median(used), rel=1e-5)
    assert evidence(finding, "root mean square of the features").measured == pytest.approx(
        math.sqrt((used**2).mean()), rel=1e-5
    )
    assert f"index {sizes.argmax()}" in evidence(finding, "largest feature").name


def test_sizes_of_the_targets():
    setup = build(targets_in_thousands, True)
    y = first_batch(setup)[1].double()
    finding = trimtab.diagnose(setup)["unscaled-targets"]
    assert evidence(finding, "root mean square").measured == pytest.approx(y.square().mean().sqrt().item(), rel=1e-6)


def by_hand(setup, steps):
    """Updates over weights of every layer and step, in float64, by the setup's own optimizer."""
    twin, jumps, losses = copy.deepcopy(setup), [], []
    layers = [module for module in twin.model if isinstance(module, nn.Linear)]
    for _, batch in zip(range(steps), twin.stream(), strict=False):
        before = [layer.weight.detach().double().clone() for layer in layers]
        losses.append(twin.train_step(batch).item())
        for layer, old in zip(layers, before, strict=True):
            jumps.append(((layer.weight.detach().double() - old).norm() / old.norm()).item())
    return jumps, losses


def test_updates_and_losses_of_a_rate_that_is_too_high():
    setup = build(adam_at_a_rate_of_one, True)
    jumps, losses = by_hand(setup, setup.steps)
    finding = trimtab.diagnose(setup)["learning-rate-too-high"]
    assert evidence(finding, "largest loss").measured == pytest.approx(max(losses) / losses[0], rel=1e-5)
    assert evidence(finding, "learning rate").measured == 1.0
    assert evidence(finding, "update over its weight").measured == pytest.approx(max(jumps), rel=1e-3)


def test_the_norm_before_and_after_clipping():
    setup = build(norm_clipped_at_a_hundredth, True)
    norms, clip = [], nn.utils.clip_grad_norm_
    inner = setup.step

    def step(setup, batch):
        def noted(parameters, bound):
            norms.append(clip(parameters, bound).item())

        nn.utils.clip_grad_norm_ = noted
        try:
            return inner(setup, batch)
        finally:
            nn.utils.clip_grad_norm_ = clip

    setup.step = step
    finding = trimtab.diagnose(setup)["clipping-dominates"]
    assert len(norms) == setup.steps
    assert evidence(finding, "before clipping").measured == pytest.approx(np.median(norms), rel=1e-3)
    assert evidence(finding, "optimizer used").measured == pytest.approx(0.01, rel=1e-3)


def test_what_is_in_no_optimizer_is_counted():
    setup = build(layers_in_a_list, True)
    sizes = [p.numel() for part in setup.model.parts for p in part.parameters()]
    whole = sum(sizes) + sum(p.numel() for p in setup.model.parameters())
    finding = trimtab.diagnose(setup)["missing-from-optimizer"]
    assert evidence(finding, "without an optimizer").measured == len(sizes)
    assert evidence(finding, "share of all weights").measured == pytest.approx(sum(sizes) / whole)


def test_the_floor_of_a_double_softmax():
    sure = F.one_hot(torch.tensor([3]), 10).double()
    floor = F.cross_entropy(sure, torch.tensor([3])).item()
    finding = trimtab.diagnose(build(softmax_function, True))["double-softmax"]
    assert evidence(finding, "smallest loss").measured == pytest.approx(floor)


def test_the_facts_of_the_run():
    x, y = digits()
    torch.manual_seed(0)
    net = mlp(2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    setup = trimtab.Setup(net, optimizer, lambda: [(x[:64], y[:64])], cross_entropy, steps=20)
    first = cross_entropy(net, (x[:64], y[:64])).item()
    facts = trimtab.diagnose(setup).run
    assert (facts.steps, facts.recorded, facts.finished, facts.record) == (20, 20, True, None)
    assert facts.first_loss == pytest.approx(first, rel=1e-6)
    assert facts.models == (f"Sequential, {sum(p.numel() for p in net.parameters()):,} parameters",)
    assert facts.optimizers == ("SGD, lr 0.1, momentum 0.9",)
    assert facts.unseen == ()


@pytest.mark.parametrize(("bad", "severity"), [(range(20, 60), "error"), ([30], "warning"), ([], None)])
def test_a_scaler_that_skips_batches_without_a_number(bad, severity):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu")
    with trimtab.watch(model, optimizer) as watch:
        for step in range(60):
            x, y = torch.randn(8, 4), torch.randint(0, 2, (8,))
            if step in bad:
                x[0, 0] = math.nan
            optimizer.zero_grad()
            scaler.scale(torch.nn.functional.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
    diagnosis = watch.diagnose()
    assert watch.record.facts["lost_passes"] == len(bad)
    found = {finding.code: finding.severity for finding in diagnosis.findings}
    assert found.get("nonfinite-loss") == severity

"""What batch normalization does to curvature, on digits, with three seeds each; where the claim fails, the failure is the test.

Run with -s to see the figures, which docs/landscape.md quotes.
"""

import pytest
import torch
from curvature_digits import cross_entropy, deep_setup, digits
from torch import nn

from trimtab import Setup
from trimtab.curvature import hessian, problem, sharpness, smoothness
from trimtab.curvature.lanczos import eigenvalues

SEEDS = (0, 1, 2)


def largest(found):
    return abs(float(eigenvalues(hessian(found), 1, 1e-2).values[0]))


def course(norm, seed):
    """Sharpness, scale-free sharpness and change of the gradient at step length 0.1, at steps 0, 50 and 150: depth 8, batches of 128."""
    x, y = digits()
    setup = deep_setup(norm, 8, seed, rate=0.02, momentum=0.9)
    run, at, found = setup.train(150), 0, []
    for step in (0, 50, 150):
        while at < step:
            next(run)
            at += 1
        here = problem(setup, batches=[(x[:512], y[:512])])
        top = largest(here)
        along = smoothness(here, along="gradient", lengths=(0.02, 0.04, 0.06, 0.08, 0.1))
        found.append((top, top * float(here.vector().square().sum()), float(along.values[-1])))
    return found


@pytest.mark.slow
def test_batch_norm_smooths_a_deep_relu_net_early_and_not_for_good():
    """Errata E1: early 5 to 12 times flatter; gone once the loss is small."""
    for seed in SEEDS:
        plain, normed = course("none", seed), course("batch norm", seed)
        for step, a, b in zip((0, 50, 150), plain, normed, strict=True):
            print(
                f"seed {seed} step {step}: lambda_max {a[0]:.3g} -> {b[0]:.3g} ({a[0] / b[0]:.1f}x), times |w|^2 "
                f"{a[1]:.3g} -> {b[1]:.3g}, beta at 0.1 {a[2]:.3g} -> {b[2]:.3g}"
            )
        for step in (0, 1):
            assert normed[step][0] < plain[step][0] / 2
        assert normed[1][1] < plain[1][1] / 2, "scale-free too"
        assert normed[1][2] < plain[1][2] / 2, "and along the gradient"
        assert normed[2][0] > plain[2][0] / 2, "at the end there is no such factor"


@pytest.mark.slow
def test_batch_norm_bears_a_larger_rate():
    """Errata E2: 4 to 16 times, and about as many as 2/lambda_max at the start says; the smallest useful rate is larger too."""
    for seed in SEEDS:
        good, foretold = {}, {}
        for norm in ("none", "batch norm"):
            foretold[norm] = 2 / sharpness(deep_setup(norm, 6, seed, 1.0), batches=4).value
            good[norm] = []
            for k in range(-6, 6):
                losses = [float(loss.detach()) for loss in deep_setup(norm, 6, seed, 2.0**k).train(150)]
                if sum(losses[-5:]) / 5 < 0.3:
                    good[norm].append(2.0**k)
        measured = max(good["batch norm"]) / max(good["none"])
        predicted = foretold["batch norm"] / foretold["none"]
        print(
            f"seed {seed}: largest rates {good['none'][-1]} -> {good['batch norm'][-1]}, foretold ratio {predicted:.1f}"
        )
        assert 4 <= measured <= 16
        assert 0.5 < measured / predicted < 2
        assert min(good["batch norm"]) >= min(good["none"])


def components():
    """Digits 0 to 4, by their first six principal components, each of deviation 1."""
    x, y = digits()
    x, y = x[y < 5].double(), y[y < 5]
    found = (x - x.mean(0)) @ torch.linalg.svd(x - x.mean(0), full_matrices=False)[2][:6].T
    return (found - found.mean(0)) / found.std(0), y


def shallow(norm, seed):
    torch.manual_seed(seed)
    layers, fan_in = [], 6
    for _ in range(3):
        linear = nn.Linear(fan_in, 12)
        nn.init.xavier_normal_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers += [linear, *([nn.BatchNorm1d(12)] if norm else []), nn.Tanh()]
        fan_in = 12
    model = nn.Sequential(*layers, nn.Linear(12, 5)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = components()
    return Setup(model, optimizer, lambda: [data], cross_entropy)


@pytest.mark.slow
def test_batch_norm_sharpens_a_shallow_tanh_net_and_conditions_it_worse():
    """Errata E9 (b): the claim that conditioning improves fails in every seed; and the zero modes are counted."""
    for seed in SEEDS:
        found = {}
        for norm in (False, True):
            setup = shallow(norm, seed)
            for step in (0, 100):
                if step:
                    for _ in setup.train(100):
                        pass
                values = torch.linalg.eigvalsh(hessian(setup).dense())
                size = values.abs().sort().values
                live = size[size > 1e-10 * size[-1]]
                found[norm, step] = float(values[-1]), float(live[-1] / live.median()), len(size) - len(live)
        for step in (0, 100):
            a, b = found[False, step], found[True, step]
            print(f"seed {seed} step {step}: lambda_max {a[0]:.3g} -> {b[0]:.3g}, max/median {a[1]:.4g} -> {b[1]:.4g}")
            assert b[0] > a[0]
            assert b[1] > a[1]
            # Softmax is blind to one shift of the last layer (12 weights and a bias); a bias before a normalization to nothing.
            assert (a[2], b[2]) == (13, 13 + 36)

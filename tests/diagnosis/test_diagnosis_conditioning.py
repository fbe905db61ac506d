"""The directions of the inputs: what gradient descent leaves along each is what theory says, and the setup stays as it was."""

import copy
import math

import numpy as np
import pytest
import torch
from diagnosis_cases import Made, evidence, findings, only
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from trimtab import Setup
from trimtab.diagnosis import conditioning
from trimtab.diagnosis.conditioning import Modes, modes
from trimtab.diagnosis.rules import ill_conditioned
from trimtab.norms.standardizer.spectrum import spectrum


def linear(optimizer=SGD, lr=0.1, steps=40, n=96, d=5, batches=1, rate=None):
    torch.manual_seed(0)
    x = torch.randn(n, d) @ torch.randn(d, d)
    y = torch.randn(n, 1)
    model = nn.Sequential(nn.Linear(d, 1)).double()
    x, y = x.double(), y.double()
    lr = rate / float(np.linalg.eigvalsh((x.T @ x / n).numpy())[-1]) / 2 if rate else lr
    return (
        x,
        y,
        Setup(
            model,
            optimizer(model.parameters(), lr=lr),
            lambda: list(zip(x.chunk(batches), y.chunk(batches), strict=True)),
            lambda m, b: F.mse_loss(m(b[0]), b[1]),
            steps,
        ),
    )


def test_what_is_left_is_what_the_spectrum_foretells():
    """Along each direction gradient descent leaves (1 - eta lambda)^2k of the squared error that a linear map could take off."""
    x, y, setup = linear(steps=60, rate=0.5)
    with torch.no_grad():
        for p in setup.model.parameters():
            p.zero_()
    list(setup.train())
    found = Modes(**modes(setup))
    theory = spectrum(x.numpy(), y.numpy())
    np.testing.assert_allclose(found.eigenvalues, theory.eigenvalues, rtol=1e-9)
    assert found.condition == pytest.approx(theory.condition, rel=1e-9)
    lr = setup.optimizers[0].param_groups[0]["lr"]
    residual = (y - setup.model(x)).detach().square().sum().item()
    a = np.column_stack([x.numpy(), np.ones(len(x))])
    u, _, _ = np.linalg.svd(a, full_matrices=False)
    reachable = np.square(u.T @ y.numpy()).sum()
    kept = (1 - 2 * lr * theory.eigenvalues) ** (2 * setup.steps)
    np.testing.assert_allclose(np.array(found.left) * residual, theory.shares * reachable * kept, rtol=1e-6, atol=1e-12)


def test_standardized_directions_for_optimizers_that_take_the_scale_off():
    x, _, plain = linear()
    _, _, adaptive = linear(Adam, 1e-3)
    scaled = (x - x.mean(0)) / x.std(0, correction=0)
    correlation = np.linalg.eigvalsh(np.cov(scaled.numpy().T, bias=True))
    assert modes(plain)["eigenvalues"] != modes(adaptive)["eigenvalues"]
    assert sorted([*correlation, 1.0]) == pytest.approx(sorted(modes(adaptive)["eigenvalues"]), rel=1e-9)
    # the column of ones has curvature 1, between the largest and the smallest of a correlation matrix
    assert modes(plain)["standardized"] == pytest.approx(correlation[-1] / correlation[0], rel=1e-9)


def test_batches_of_a_pass_count_as_one_sample_and_none_twice():
    _, _, whole = linear(batches=1)
    _, _, cut = linear(batches=3)
    assert modes(cut)["samples"] == 96
    np.testing.assert_allclose(modes(cut)["left"], modes(whole)["left"], rtol=1e-9)


def test_a_residual_of_noise_has_no_share():
    n, d = 400, 20
    flat = Modes("a", n, tuple(np.geomspace(1, 1e-6, d)), (1 / n,) * d, 1e6, 1e6)
    assert flat.share(0.0) == pytest.approx(0, abs=1e-12)
    assert Modes("a", n, (1.0, 1e-5), (0.0, 1.0), 1e5, 1e5).share(0.0, 1e-3) == pytest.approx(1)


def test_it_leaves_the_setup_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(96, 5), torch.randn(96, 1)),
        32,
        shuffle=True,
        generator=torch.Generator(),
    )
    setup = Setup(model, SGD(model.parameters(), lr=0.1), lambda: data, lambda m, b: F.mse_loss(m(b[0]), b[1]), 3)
    list(setup.train())
    model.eval()
    before = copy.deepcopy(model.state_dict()), torch.get_rng_state(), data.generator.get_state()
    grads = [p.grad for p in model.parameters()]
    assert modes(setup)["layer"] == "1"
    assert all(torch.equal(a, b) for a, b in zip(before[0].values(), model.state_dict().values(), strict=True))
    assert torch.equal(before[1], torch.get_rng_state())
    assert torch.equal(before[2], data.generator.get_state())
    assert not model.training
    assert all(p.grad is g for p, g in zip(model.parameters(), grads, strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def convolution():
    model = nn.Sequential(nn.Conv1d(1, 2, 1), nn.Flatten(), nn.Linear(10, 1))
    return model, torch.randn(96, 1, 5)


@pytest.mark.parametrize(
    "make",
    [
        convolution,
        lambda: (nn.Sequential(nn.Linear(5, 1)), torch.randn(20, 5)),  # fewer than 4 samples for each input
        lambda: (nn.Sequential(nn.Linear(conditioning.WIDEST + 1, 1)), torch.randn(2000, conditioning.WIDEST + 1)),
        lambda: (nn.Sequential(nn.Linear(5, 1)), torch.ones(96, 5)),  # nothing varies
        lambda: (nn.Sequential(nn.Linear(5, 1)), torch.full((96, 5), math.nan)),
    ],
)
def test_what_it_does_not_judge(make):
    model, x = make()
    y = torch.zeros(len(x), 1)
    setup = Setup(model, SGD(model.parameters(), lr=0.1), lambda: [(x, y)], lambda m, b: F.mse_loss(m(b[0]), b[1]), 1)
    assert modes(setup) is None


def test_a_loss_that_cannot_be_had_again_tells_nothing():
    model = nn.Sequential(nn.Linear(5, 1))

    def loss(m, batch):
        raise RuntimeError("no more")

    setup = Setup(model, SGD(model.parameters(), lr=0.1), lambda: [torch.randn(96, 5)], loss, 1)
    assert modes(setup) is None
    assert not model[0]._forward_pre_hooks


# The rule -------------------------------------------------------------------------------------------------------------


def made(left=(0.0, 0.0, 0.9), eigenvalues=(1.0, 0.1, 1e-5), standardized=1e4, last=1.0, steps=200):
    found = Made(loss=np.geomspace(2.0, last, steps), steps=steps)
    record = found.record
    record.facts["modes"] = {
        "layer": "a", "samples": 500, "eigenvalues": list(eigenvalues), "left": list(left), "condition": 1e5,
        "standardized": standardized,
    }  # fmt: skip
    return record


def test_ill_conditioned_tells_what_is_left_and_where():
    finding, begins = only(ill_conditioned, made())
    assert (finding.severity, finding.where, begins) == ("error", ("data", "a"), 0)
    assert evidence(finding, "share of the residual").measured == pytest.approx(0.9, abs=0.01)
    assert "correlated" in finding.summary
    assert "linalg.svd" in finding.repairs[0].code


def test_ill_conditioned_by_scale_alone_is_mended_by_scaling():
    finding, _ = only(ill_conditioned, made(standardized=ill_conditioned.SCALE / 2))
    assert "different sizes" in finding.summary
    assert "std" in finding.repairs[0].code


def test_ill_conditioned_is_a_warning_where_it_costs_little():
    assert only(ill_conditioned, made(left=(0, 0, 0.5), last=0.3)).finding.severity == "warning"


@pytest.mark.parametrize(
    "quiet",
    [
        {"left": (0, 0, 0.2)},  # most of what is left is noise
        {"left": (0.4, 0.2, 0.35)},  # as much along the steep ones
        {"eigenvalues": (1.0, 0.1, 0.01)},  # 200 steps are enough for a condition number of 100
        {"last": 0.02},  # it costs nothing
    ],
)
def test_ill_conditioned_is_silent(quiet):
    assert findings(ill_conditioned, made(**quiet)) == []
    assert findings(ill_conditioned, made()) != []


def test_ill_conditioned_counts_a_momentum_as_steps():
    record = made(eigenvalues=(1.0, 0.1, 1e-3))
    assert findings(ill_conditioned, record)
    record.optimizers[0]["groups"][0]["settings"]["momentum"] = 0.9
    assert findings(ill_conditioned, record) == []

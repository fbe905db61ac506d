"""Smoothness along the step, Theorem 4.1, scale invariance and covariate shift, against closed forms and PyTorch's own steps."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trimtab import Setup
from trimtab.curvature import (
    CurvatureError,
    batchnorm_identity,
    covariate_shift,
    problem,
    real_step,
    scale_invariance,
    smoothness,
)

REFERENCE = json.loads((Path(__file__).parents[1] / "reference" / "scale_invariance.json").read_text(encoding="utf-8"))
DIAGONAL = torch.tensor([3.0, 0.5, -1.0, 2.0], dtype=torch.float64)
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "heavy ball": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


class Vector(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.w = nn.Parameter(torch.as_tensor(values, dtype=torch.float64))


def quadratic(rate=0.1, start=(1.0, -2.0, 0.5, 0.3)):
    model = Vector(start)
    batch = torch.ones(1, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return Setup(model, optimizer, lambda: [batch], lambda m, x: 0.5 * (DIAGONAL * m.w**2).sum() * x.mean())


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def net(norm=nn.BatchNorm1d, optimizer=OPTIMIZERS["SGD"], bias=True, **options):
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Linear(6, 8, bias=bias), norm(8, **options), nn.Tanh(),
        nn.Linear(8, 7, bias=bias), norm(7, **options), nn.ReLU(inplace=True), nn.Linear(7, 3),
    ).double()  # fmt: skip
    batch = (torch.randn(24, 6).double(), torch.randint(0, 3, (24,)))
    return Setup(model, optimizer(model.parameters()), lambda: [batch], cross_entropy)


# ------------------------------------------------------------------------------------------------ the triple


@pytest.mark.parametrize("along", ["step", "gradient"])
def test_the_triple_of_a_parabola(along):
    setup = quadratic()
    w = setup.model.w.detach()
    g = DIAGONAL * w
    result = smoothness(setup, along=along)
    multiples = np.array([0.25, 0.5, 1.0, 2.0, 4.0])
    assert result.lengths == pytest.approx(multiples if along == "step" else 0.1 * multiples)
    losses = [float(0.5 * (DIAGONAL * (w - 0.1 * a * g) ** 2).sum()) for a in multiples]
    changes = [float((0.1 * a * DIAGONAL * g).norm()) for a in multiples]
    assert result.losses == pytest.approx(losses, rel=1e-12)
    assert result.loss_range == pytest.approx((min(losses), max(losses)))
    assert result.gradient_range == pytest.approx((changes[0], changes[-1]))
    assert result.distances == pytest.approx(0.1 * multiples * float(g.norm()))
    assert result.values == pytest.approx(np.full(5, float((DIAGONAL * g).norm() / g.norm())), rel=1e-10)
    assert result.value == pytest.approx(float((DIAGONAL * g).norm() / g.norm()), rel=1e-10)
    assert result.gradient_norm == pytest.approx(float(g.norm()))
    assert (result.gradients, result.products, result.mode) == (6, 0, "train")
    assert result.error < 1e-13


def test_along_an_eigenvector_beta_is_the_eigenvalue():
    assert smoothness(quadratic(start=(0.0, 0.0, 0.0, 2.0))).value == pytest.approx(2.0, rel=1e-12)


def test_it_is_measured_in_the_mode_of_training_on_the_same_batch():
    setup = net()
    result = smoothness(setup, along="gradient", lengths=(0.1, 0.2, 0.3, 0.4, 0.5))
    model = copy.deepcopy(setup.model)
    batch = next(iter(setup.batches()))
    gradients = []
    for length in (0.0, 0.5):
        with torch.no_grad():
            for p, start in zip(model.parameters(), setup.model.parameters(), strict=True):
                p.copy_(start if not gradients else start - length * dict(gradients[0])[id(p)])
        model.zero_grad()
        loss = cross_entropy(model.train(), batch)
        loss.backward()
        gradients.append([(id(p), p.grad.clone()) for p in model.parameters()])
    before, after = (torch.cat([g.reshape(-1) for _, g in one]) for one in gradients)
    assert result.losses[-1] == pytest.approx(loss.item(), rel=1e-12)
    assert result.changes[-1] == pytest.approx(float((after - before).norm()), rel=1e-10)
    assert result.cosines[-1] == pytest.approx(float(nn.functional.cosine_similarity(before, after, dim=0)), rel=1e-10)
    assert smoothness(setup, mode="eval").loss != pytest.approx(result.loss, rel=1e-3)


def test_a_direction_of_ones_own_needs_no_optimizer():
    setup = quadratic()
    found = problem(setup)
    direction = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    result = smoothness(found, step=direction)
    assert result.along == "given"
    assert result.value == pytest.approx(2.0)
    assert str(result).startswith("along the given, 5 lengths, train mode: loss")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda s: smoothness(problem(s)), "only a trimtab.Setup has an optimizer"),
        (lambda s: smoothness(problem(s), along="gradient"), 'or along="gradient" with lengths'),
        (lambda s: smoothness(s, along="down"), "along must be one of 'step', 'gradient'"),
        (lambda s: smoothness(s, lengths=(1, 2, 3, 4)), "at least five finite numbers above 0"),
        (lambda s: smoothness(s, lengths=(1, 2, 3, 4, -5)), "at least five finite numbers above 0"),
        (lambda s: smoothness(s, lengths=[1e-300] * 5), "lost in rounding"),
        (lambda s: smoothness(s, step=torch.zeros(4)), "the step is zero everywhere"),
        (lambda s: smoothness(s, lengths="far"), "at least five finite numbers above 0, but they are 'far'"),
        (lambda s: smoothness(s, lengths=3), "at least five finite numbers above 0, but they are 3"),
        (lambda s: smoothness(s, step=torch.full((4,), torch.nan)), "the step holds NaN or infinity"),
        (lambda s: smoothness(s, step="down"), r"step must be a flat vector of shape \(4,\), but it is a str"),
        (lambda s: smoothness(s, step=torch.zeros(5)), r"a real vector of shape \(4,\)"),
    ],
)
def test_what_is_refused(call, why):
    with pytest.raises(CurvatureError, match=why):
        call(quadratic())


# ------------------------------------------------------------------------------------------------ the step


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 3])
def test_the_step_is_what_the_optimizer_does(name, steps):
    setup = net(optimizer=OPTIMIZERS[name])
    for _ in setup.train(steps):
        pass
    found = problem(setup)
    state = copy.deepcopy(setup.optimizer.state_dict())
    before = found.vector()
    step = real_step(setup, found, found.gradient()[1])
    assert torch.equal(before, problem(setup).vector()), "the model has not moved"
    assert str(state) == str(setup.optimizer.state_dict()), "nor has the optimizer"
    for _ in setup.train(1):
        pass
    moved = problem(setup).vector() - before
    assert torch.allclose(step, moved, rtol=1e-9, atol=1e-15)


def test_what_no_optimizer_has_stays():
    setup = net()
    setup.optimizer = torch.optim.SGD(setup.model[0].parameters(), lr=0.1)
    found = problem(setup)
    step = real_step(setup, found, found.gradient()[1])
    assert step[: 6 * 8].any()
    assert not step[6 * 8 + 8 :].any()


def test_hooks_of_all_optimizers_hear_nothing():
    setup, heard = net(), []
    handle = register_optimizer_step_pre_hook(lambda *a: heard.append(1))
    try:
        smoothness(setup)
        assert heard == []
        setup.optimizer.step()
        assert heard == [1]
    finally:
        handle.remove()


def test_an_optimizer_that_wants_a_closure_is_named():
    setup = net(optimizer=lambda p: torch.optim.LBFGS(p))
    with pytest.raises(CurvatureError, match="the step of LBFGS cannot be computed from a gradient alone"):
        smoothness(setup)


def test_a_model_that_has_moved_on_is_noticed():
    setup = net()
    found = problem(setup)
    for _ in setup.train(1):
        pass
    with pytest.raises(CurvatureError, match="the model has moved since"):
        real_step(setup, found, found.gradient()[1])


# ------------------------------------------------------------------------------------------------ Theorem 4.1


class Branches(nn.Module):
    """Inputs and outputs of normalizations that are used twice or changed in place."""

    def __init__(self, eps):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.first = nn.BatchNorm2d(6, eps=eps)
        self.second = nn.BatchNorm2d(6, eps=eps, affine=False)
        self.out = nn.Linear(6, 3)
        nn.init.uniform_(self.first.weight, 0.2, 2.0)

    def forward(self, x):
        y = self.conv(x)
        z = self.first(y).relu_()
        z = self.second(z) + y
        return self.out(z.mean((2, 3)))


@pytest.mark.parametrize("eps", [1e-12, 0.1])
def test_both_sides_of_the_theorem(eps):
    torch.manual_seed(3)
    model = Branches(eps).double()
    batch = (torch.randn(6, 1, 4, 4).double(), torch.randint(0, 3, (6,)))
    results = batchnorm_identity(model, cross_entropy, [batch])
    assert [r.layer for r in results] == ["first", "second"]
    for r in results:
        assert r.values.shape == (6,)
        assert r.values.min() > 0
        assert r.error < 1e-12
        assert r.values == pytest.approx(r.predicted, rel=1e-9)
        assert (r.removed >= 0).all()
        assert (r.removed < 1).all()
    with torch.no_grad():
        y = model.conv(batch[0])
        deviation = (y.var((0, 2, 3), correction=0) + eps).sqrt()
    assert results[0].gain == pytest.approx((model.first.weight.detach() / deviation).numpy())


def test_without_eps_the_formula_is_off_where_eps_counts():
    """The paper's formula has eps = 0: with eps = 0.1 it misses, so the test above can fail."""
    torch.manual_seed(3)
    model = Branches(0.1).double()
    batch = (torch.randn(6, 1, 4, 4).double(), torch.randint(0, 3, (6,)))
    y = model.conv(batch[0]).detach().requires_grad_()
    z = model.first(y)
    torch.manual_seed(4)
    dz = torch.randn_like(z) + 3 * z.detach()
    z.backward(dz)
    flat = [t.detach().transpose(0, 1).flatten(1) for t in (y, dz, y.grad)]
    s2 = flat[0].var(1, correction=0) + 0.1
    normal = (flat[0] - flat[0].mean(1, keepdim=True)) / s2.sqrt()[:, None]
    m = normal.shape[1]

    def right(factor):
        kept = flat[1].square().sum(1) - flat[1].sum(1) ** 2 / m - factor * (flat[1] * normal).sum(1) ** 2 / m
        return model.first.weight.detach() ** 2 / s2 * kept

    left = flat[2].square().sum(1)
    assert torch.allclose(right(1 + 0.1 / s2), left, rtol=1e-10)
    assert not torch.allclose(right(1.0), left, rtol=0.1)


def test_no_batch_normalization_no_theorem():
    with pytest.raises(CurvatureError, match="no batch normalization that uses its batch"):
        batchnorm_identity(net(nn.LayerNorm))
    with pytest.raises(CurvatureError, match="no batch normalization that uses its batch"):
        batchnorm_identity(net(), mode="eval")


# ------------------------------------------------------------------------------------------------ scale


def test_batch_norm_makes_each_row_scale_invariant():
    setup = net(eps=1e-12)
    first, second, last = scale_invariance(setup, factor=3.0)
    for r in (first, second):
        assert r.invariant
        assert r.loss_change == pytest.approx(REFERENCE["scale"]["loss_diff"], abs=1e-10)
        assert (1 - r.gradient_change) / r.factor == pytest.approx(REFERENCE["scale"]["grad_ratio"], rel=1e-9)
        assert r.radial < 1e-10
        assert r.radial_rows < 1e-9
    assert not last.invariant
    assert last.loss_change > 0.05
    assert (first.layer, last.names) == ("0", ("6.weight", "6.bias"))


def test_layer_norm_makes_the_layer_scale_invariant_and_not_its_rows():
    first, second, last = scale_invariance(net(nn.LayerNorm, eps=1e-12))
    assert first.invariant
    assert second.invariant
    assert not last.invariant
    assert first.radial < 1e-9
    assert first.radial_rows > 1e-2


def test_eps_is_what_is_left():
    """The deviation falls with eps, as eps over the variance."""
    changes = [scale_invariance(net(eps=eps), layers=["0"])[0].gradient_change for eps in (1e-3, 1e-5)]
    assert changes[0] / changes[1] == pytest.approx(100, rel=0.1)


def test_without_normalization_nothing_is_invariant():
    assert not any(r.invariant for r in scale_invariance(net(lambda n: nn.Identity())))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"factor": 1}, "other than 1"),
        ({"factor": -2.0}, "above 0"),
        ({"layers": ["1"]}, "which holds no chosen weight"),
    ],
)
def test_scale_refusals(options, why):
    with pytest.raises(CurvatureError, match=why):
        scale_invariance(net(), **options)


# ------------------------------------------------------------------------------------------------ covariate shift


class Chain(nn.Module):
    """w3 w2 w1 x, named against the order of use."""

    def __init__(self, *values):
        super().__init__()
        for i in range(len(values), 0, -1):
            layer = nn.Linear(1, 1, bias=False).double()
            nn.init.constant_(layer.weight, values[i - 1])
            setattr(self, f"layer{i}", layer)
        self.count = len(values)

    def forward(self, x):
        for i in range(1, self.count + 1):
            x = getattr(self, f"layer{i}")(x)
        return x


def test_the_shift_of_a_chain_of_numbers():
    w, x, rate = [0.8, -1.5, 0.6], 2.0, 0.05
    model = Chain(*w)
    batch = torch.full((1, 1), x, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    setup = Setup(model, optimizer, lambda: [batch], lambda m, b: 0.5 * (m(b) - 1.0).square().mean())

    def gradients(w):
        error = w[0] * w[1] * w[2] * x - 1.0
        return [error * x * w[1] * w[2], error * x * w[0] * w[2], error * x * w[0] * w[1]]

    g = gradients(w)
    results = covariate_shift(setup)
    assert [r.layer for r in results] == ["layer1", "layer2", "layer3"]
    moved = [v - rate * d for v, d in zip(w, g, strict=True)]
    for i, r in enumerate(results):
        after = gradients(moved[:i] + w[i:])[i]
        assert r.before == pytest.approx(abs(g[i]), rel=1e-12)
        assert r.value == pytest.approx(abs(after - g[i]), rel=1e-9, abs=1e-15)
        assert r.cosine == pytest.approx(np.sign(after * g[i]))
        assert r.relative == pytest.approx(abs(after / g[i] - 1), rel=1e-9, abs=1e-15)
    assert covariate_shift(setup, layers=["layer3"])[0] == results[2], "all layers move, whichever are asked for"


def test_no_step_no_shift():
    results = covariate_shift(net(), step=torch.zeros(problem(net()).size))
    assert [r.value for r in results] == [0.0, 0.0, 0.0]
    with pytest.raises(CurvatureError, match="which holds no chosen weight"):
        covariate_shift(net(), layers=["1"])
    with pytest.raises(CurvatureError, match=r"setup must be a trimtab\.Setup"):
        covariate_shift(net().model)


# ------------------------------------------------------------------------------------------------ side effects


@pytest.mark.parametrize("measure", [smoothness, covariate_shift, scale_invariance, batchnorm_identity])
@pytest.mark.parametrize("breaks", [False, True])
def test_nothing_of_the_users_moves(measure, breaks):
    setup, calls = net(optimizer=OPTIMIZERS["Adam"]), []
    for _ in setup.train(2):
        pass
    setup.model[4].eval()

    def loss(model, batch):
        calls.append(1)
        if breaks and len(calls) == 3:
            raise ZeroDivisionError
        return cross_entropy(model, batch)

    def everything():
        tensors = [*setup.model.state_dict().values(), *(p.grad for p in setup.model.parameters())]
        tensors += [t for s in setup.optimizer.state_dict()["state"].values() for t in s.values()]
        modes = [m.training for m in setup.model.modules()]
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in setup.model.modules()]
        return [t.clone() for t in tensors], modes, hooks, torch.get_rng_state()

    watched = Setup(setup.model, setup.optimizer, setup.batches, loss)
    before = everything()
    if breaks:
        with pytest.raises(ZeroDivisionError):
            measure(watched)
    else:
        measure(watched)
    after = everything()
    assert all(torch.equal(a, b) for a, b in zip(before[0], after[0], strict=True))
    assert before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3])

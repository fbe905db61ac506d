"""What an optimizer bears: PyTorch's own optimizers on parabolas just below and just above; preconditioners from their own steps."""

import copy

import pytest
import torch
from torch import nn

from trimtab import Setup
from trimtab.curvature import CurvatureError, hessian, preconditioned, problem, sharpness, stability_limit

SETTINGS = {
    "gradient descent": lambda p: torch.optim.SGD(p, lr=0.1),
    "heavy ball": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, dampening=0.4),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 1 - 1e-15), eps=1e-300),
    "Adam 0.5": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 1 - 1e-15), eps=1e-300),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.9, 1 - 1e-15), eps=1e-300, weight_decay=2.0),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, alpha=1.0, eps=1e-300, momentum=0.6),
}
CONSTANTS = {
    "gradient descent": 2,
    "heavy ball": 3.8,
    "dampened": 3 / 0.6,
    "Nesterov": 3.8 / 2.8,
    "Adam": 38,
    "Adam 0.5": 6,
    "AdamW": 38 * 0.9,
    "RMSprop": 3.2,
}


def excursion(make, curvature, steps=3000):
    """By how much a parabola's coordinate has grown after many steps; it is so small that second moments stay at 1."""
    w = nn.Parameter(torch.full((1,), 1e-6, dtype=torch.float64))
    optimizer = make([w])
    group = optimizer.param_groups[0]
    if "betas" in group:
        optimizer.state[w] = {
            "step": torch.tensor(1e18),
            "exp_avg": torch.zeros_like(w),
            "exp_avg_sq": torch.ones_like(w),
        }
    elif "alpha" in group:
        ones = torch.ones_like(w)
        optimizer.state[w] = {"step": torch.tensor(0.0), "square_avg": ones, "momentum_buffer": torch.zeros_like(w)}
    for _ in range(steps):
        w.grad = curvature * w.detach()
        optimizer.step()
        if not 1e-9 < float(w.detach().abs()) < 1e-3:
            break
    return float(w.detach().abs()) / 1e-6


@pytest.mark.parametrize("name", SETTINGS)
def test_parabolas_just_below_and_just_above_the_limit(name):
    limit = stability_limit(SETTINGS[name]([nn.Parameter(torch.ones(1))]))
    assert limit.constant == pytest.approx(CONSTANTS[name])
    assert limit.value == pytest.approx(CONSTANTS[name] / 0.1)
    assert limit.rate == 0.1
    assert excursion(SETTINGS[name], 0.98 * limit.value) < 0.1
    assert excursion(SETTINGS[name], 1.02 * limit.value) > 10


def parameters():
    return [nn.Parameter(torch.ones(2)) for _ in range(2)]


def test_groups_of_different_rates_have_the_limit_of_the_fastest():
    a, b = parameters()
    limit = stability_limit(torch.optim.SGD([{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.5}]))
    assert (limit.rate, limit.value) == (0.5, pytest.approx(4.0))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda a, b: torch.optim.SGD([{"params": [a], "momentum": 0.9}, {"params": [b]}], lr=0.1), "bear different"),
        (
            lambda a, b: [torch.optim.SGD([a], lr=0.1), torch.optim.Adam([b])],
            "bear different curvature .Adam: 38, gradient",
        ),
        (lambda a, b: torch.optim.SGD([a], lr=0.0), "learning rate is 0"),
        (lambda a, b: torch.optim.SGD([a], lr=0.1, maximize=True), "maximizes"),
        (lambda a, b: torch.optim.SGD([a], lr=float("nan")), "learning rate is NaN or infinite, so it has no limit"),
        (lambda a, b: torch.optim.SGD([a], lr=0.1, momentum=0.9, dampening=1.0), "dampening is 1"),
        (lambda _a, _b: None, "optimizer must be a torch optimizer, or a list of them, but it is None"),
        (lambda _a, _b: "SGD", "optimizer must be a torch optimizer, or a list of them, but it is a str"),
        (lambda _a, _b: [], "optimizer must be a torch optimizer, or a list of them, but it is empty"),
        (lambda a, b: torch.optim.Adagrad([a]), "how much curvature Adagrad bears is not known"),
    ],
)
def test_what_has_no_single_limit(make, why):
    with pytest.raises(CurvatureError, match=why):
        stability_limit(make(*parameters()))


# ------------------------------------------------------------------------------------------------ preconditioners


def net(make):
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    batch = (torch.randn(20, 5).double(), torch.randint(0, 3, (20,)))
    return Setup(model, make(model), lambda: [batch], lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]))


PRECONDITIONED = {
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, eps=1e-3),
    "Adam with L2": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, weight_decay=0.3),
    "amsgrad": lambda m: torch.optim.Adam(m.parameters(), lr=0.05, betas=(0.8, 0.6), amsgrad=True),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.3),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01, alpha=0.7, centered=True, momentum=0.5),
}


@pytest.mark.parametrize("name", PRECONDITIONED)
@pytest.mark.parametrize("steps", [0, 5])
def test_the_divisor_is_that_of_the_next_step(name, steps):
    """P = -eta m / (w_next - w), m the optimizer's own average after the step: taken from torch, not from the formula."""
    setup = net(PRECONDITIONED[name])
    for _ in setup.train(steps):
        pass
    found = problem(setup)
    before = found.vector()
    operator = preconditioned(setup, found, 0.05 if name == "amsgrad" else 0.01)
    old = {n: copy.deepcopy(setup.optimizer.state.get(p, {})) for n, p in setup.model.named_parameters()}
    gradient = dict(zip(found.names, found.pieces(found.gradient()[1]), strict=True))
    for _ in setup.train(1):
        pass
    group = setup.optimizer.param_groups[0]
    moved = dict(zip(found.names, found.pieces(problem(setup).vector() - before), strict=True))
    start = dict(zip(found.names, found.pieces(before), strict=True))
    for (n, p), scale in zip(setup.model.named_parameters(), operator._scales, strict=True):
        state = setup.optimizer.state[p]
        step = moved[n] + (group["lr"] * group["weight_decay"] * start[n] if name == "AdamW" else 0.0)
        if name == "RMSprop":  # its buffer is of steps, not of gradients
            step = step + group["lr"] * group["momentum"] * old[n].get("momentum_buffer", torch.zeros_like(step))
            numerator = gradient[n]
        else:
            numerator = state["exp_avg"]
        clear = step.abs() > 1e-9
        assert clear.any()
        assert torch.allclose(1 / scale[clear] ** 2, -group["lr"] * numerator[clear] / step[clear], rtol=1e-6)


@pytest.mark.parametrize("name", ["Adam with L2", "AdamW"])
def test_the_operator_is_the_hessian_between_its_scales(name):
    setup = net(PRECONDITIONED[name])
    for _ in setup.train(3):
        pass
    found = problem(setup)
    operator = preconditioned(setup, found, 0.01)
    s = found.vector(operator._scales)
    decay = 0.3 if name == "Adam with L2" else 0.0
    expected = s[:, None] * (hessian(found).dense() + decay * torch.eye(found.size).double()) * s
    assert torch.allclose(operator.dense(), expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
    block = operator.block("2")
    assert torch.allclose(block.dense(), expected[-24:, -24:], rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
    assert operator.symmetry() < 1e-14
    eigen = float(torch.linalg.eigvalsh(expected)[-1])
    result = sharpness(setup, tol=1e-6)
    assert result.value == pytest.approx(eigen, rel=1e-6)
    assert abs(result.value - eigen) <= result.error + 1e-12 * eigen
    assert result.limit.preconditioned
    assert result.converged


# ------------------------------------------------------------------------------------------------ sharpness


class Vector(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 0.3], dtype=torch.float64))
        self.v = nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))


DIAGONAL = torch.tensor([3.0, 0.5, -9.0, 2.0], dtype=torch.float64)


def quadratic(make):
    model = Vector()
    batch = torch.ones(1, 1, dtype=torch.float64)
    loss = lambda m, x: 0.5 * ((DIAGONAL * m.w**2).sum() + 4.0 * (m.v**2).sum()) * x.mean()  # noqa: E731
    return Setup(model, make(model), lambda: [batch], loss)


@pytest.mark.parametrize(
    ("make", "value", "limit"),
    [
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1), 4.0, 20.0),
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), 4.0, 38.0),
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.5), 4.5, 20.0),
        (lambda m: torch.optim.SGD([{"params": [m.w], "lr": 0.1}, {"params": [m.v], "lr": 0.05}]), 3.0, 20.0),
        (lambda m: torch.optim.SGD([m.w], lr=0.1), 3.0, 20.0),
        (lambda m: [torch.optim.SGD([m.w], lr=0.1), torch.optim.SGD([m.v], lr=0.1)], 4.0, 20.0),
    ],
)
def test_sharpness_of_a_parabola(make, value, limit):
    """The largest and not the largest by magnitude: -9 is a saddle, which no rate makes stable or unstable."""
    result = sharpness(quadratic(make))
    assert result.value == pytest.approx(value, rel=1e-8)
    assert result.limit.value == pytest.approx(limit)
    assert result.ratio == pytest.approx(value / limit)
    assert result.symmetric
    assert 0 < result.products <= 8
    assert f"{result.ratio:.3g} of the limit" in str(result)
    assert ("weight decay" in str(result)) == (value == 4.5)


def test_sharpness_of_adams_first_step():
    """v = (1 - b2) g^2 and t = 1: P = (1 - b1) (|g| + eps)."""
    result = sharpness(quadratic(lambda m: torch.optim.Adam(m.parameters(), lr=0.1)))
    w = torch.tensor([1.0, -2.0, 0.5, 0.3], dtype=torch.float64)
    ratios = [*(DIAGONAL / (0.1 * ((DIAGONAL * w).abs() + 1e-8))).tolist(), 4 / (0.1 * (4 + 1e-8))]
    assert result.value == pytest.approx(max(ratios), rel=1e-8)
    assert result.limit.value == pytest.approx(380.0)


def test_adam_on_biases_whose_gradient_is_nothing_but_rounding():
    """A bias before a batch normalization: Adam divides rounding by rounding there, and float32 must agree with float64 all the same."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 3))
    batch = (torch.randn(40, 6), torch.randint(0, 3, (40,)))
    loss = lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1])  # noqa: E731
    setup = Setup(model, torch.optim.Adam(model.parameters(), lr=1e-2), lambda: [batch], loss)
    for _ in setup.train(20):
        pass
    single, double = (sharpness(setup, tol=1e-4, dtype=d) for d in (torch.float32, torch.float64))
    assert single.value == pytest.approx(double.value, rel=1e-3)
    assert single.symmetric


def test_only_a_setup_has_a_sharpness():
    with pytest.raises(CurvatureError, match=r"setup must be a trimtab\.Setup, whose optimizer sets the limit"):
        sharpness(Vector())

"""`trimtab.check`: what one batch tells, and everything as it was afterwards."""

import random

import numpy as np
import pytest
import torch
from problems import (
    all_zeros,
    bias_below_zero_functional,
    branches_that_start_at_zero,
    build,
    classify,
    cnn,
    cross_entropy,
    digits,
    eight_layers,
    he,
    infinite_target,
    layers_in_a_list,
    low_rank_adapters,
    mlp,
    nan_in_a_feature,
    new_head_on_a_trained_body,
    only_the_head_in_the_optimizer,
    passes,
    plain_adam,
    pre_norm_transformer,
    random_encoder_frozen,
    sigmoid_before_bce_with_logits,
    softmax_function,
    tanh_drawn_small,
    targets_of_moderate_size,
    zero_gains_in_residual_blocks,
)
from torch import nn

import trimtab
from trimtab.errors import SetupError, StepError, UsageError


@pytest.mark.parametrize(
    ("problem", "code", "where"),
    [
        (softmax_function, "double-softmax", ("loss",)),
        (sigmoid_before_bce_with_logits, "double-softmax", ("3",)),
        (layers_in_a_list, "missing-from-optimizer", ("parts[0]", "parts[1]", "parts[2]")),
        (only_the_head_in_the_optimizer, "missing-from-optimizer", ("0", "2", "4")),
        (random_encoder_frozen, "frozen-parameters", ("encoder.0", "encoder.2")),
    ],
)
def test_wiring(problem, code, where):
    found = trimtab.check(build(problem, True))
    assert found.roots[0].code == code
    assert found.roots[0].severity == "error"
    assert found.roots[0].where == where


@pytest.mark.parametrize("problem", [infinite_target, nan_in_a_feature])
def test_data(problem):
    setup = build(problem, True)
    batches = [b for b in setup.batches() if not (torch.isfinite(b[0]).all() and torch.isfinite(b[1]).all())]
    setup.batches = lambda: batches
    found = trimtab.check(setup)
    assert found.roots[0].code == "nonfinite-data"
    assert found.roots[0].severity == "error"


def test_a_vanishing_initialization():
    for setup in (build(eight_layers, "vanishing"), build(tanh_drawn_small, True)):
        root = trimtab.check(setup).roots[0]
        assert (root.code, root.severity) == ("vanishing-gradient", "error")


def test_an_exploding_initialization_is_said_at_least_as_a_note():
    """Without a step there is no consequence to weigh it by."""
    assert "exploding-gradient" in trimtab.check(build(eight_layers, "exploding"))


def test_an_exploding_initialization_is_an_error():
    """Three times He's scale over eight layers: the first step would be 300 times the weights."""
    assert trimtab.check(build(eight_layers, "exploding")).roots[0].severity == "error"


@pytest.mark.parametrize(
    ("problem", "code"), [(all_zeros, "symmetric-init"), (bias_below_zero_functional, "dead-units")]
)
def test_initializations_that_one_look_shows(problem, code):
    assert trimtab.check(build(problem, True)).roots[0].code == code


HEALTHY = [
    softmax_function,
    sigmoid_before_bce_with_logits,
    random_encoder_frozen,
    infinite_target,
    tanh_drawn_small,
    all_zeros,
    layers_in_a_list,
]
ODD = [
    targets_of_moderate_size,
    pre_norm_transformer,
    zero_gains_in_residual_blocks,
    new_head_on_a_trained_body,
    plain_adam,
    low_rank_adapters,
    branches_that_start_at_zero,
]


@pytest.mark.parametrize("problem", HEALTHY)
def test_healthy_setups_are_left_in_peace(problem):
    assert trimtab.check(build(problem, False)).healthy


@pytest.mark.parametrize("make", ODD)
def test_odd_and_healthy_setups_are_left_in_peace(make):
    assert trimtab.check(build(make)).healthy


def test_ignore():
    setup = build(softmax_function, True)
    assert "double-softmax" not in trimtab.check(setup, ignore=["double-softmax"])
    with pytest.raises(UsageError, match="no code 'double_softmax'"):
        trimtab.check(setup, ignore=["double_softmax"])


# Everything as it was -----------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Draws from every generator, counts its calls, keeps statistics and puts a new tensor in a buffer's place."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.3))
        self.head = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 10))
        self.register_buffer("seen", torch.zeros(()))
        self.calls, self.mode = 0, "fresh"

    def forward(self, x):
        self.calls += 1
        self.mode = "used"
        self.seen = self.seen + 1
        noise = torch.randn(()) + random.random() + np.random.rand()
        return self.head(self.net(x)) + 0 * noise


def started(optimizer=torch.optim.Adam, loss=cross_entropy):
    """A setup that has trained for three steps: state in the optimizer, gradients in place, one of them None, one part in eval mode."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    net = Counting()
    x, y = digits()
    setup = trimtab.Setup(net, optimizer(net.parameters(), 1e-3), passes(x, y), cross_entropy, steps=3)
    for _ in setup.train():
        pass
    net.net[0].bias.grad = None
    net.net[1].eval()
    setup.loss = loss
    return setup


def state(setup):
    """Everything that a check must leave as it was."""
    net = setup.model
    return {
        "parameters": {n: p.detach().clone() for n, p in net.named_parameters()},
        "identities": {n: id(p) for n, p in net.named_parameters()},
        "gradients": {n: None if p.grad is None else p.grad.clone() for n, p in net.named_parameters()},
        "places": {n: None if p.grad is None else id(p.grad) for n, p in net.named_parameters()},
        "buffers": {n: b.clone() for n, b in net.named_buffers()},
        "modes": {n: m.training for n, m in net.named_modules()},
        "counters": (net.calls, net.mode),
        "needs": {n: p.requires_grad for n, p in net.named_parameters()},
        "optimizer": setup.optimizer.state_dict(),
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].copy(),
        "place in numpy": np.random.get_state()[2:],
        "random": random.getstate(),
        "keys": tuple(net.state_dict()),
    }


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def deep(value):
    """A copy that later changes in place do not reach."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {k: deep(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(deep, value))
    return value


def assert_unchanged(before, after):
    for key in before:
        assert same(before[key], after[key]), key


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)])
def test_everything_is_bit_identical_afterwards(optimizer):
    setup = started(optimizer)
    before = deep(state(setup))
    trimtab.check(setup)
    assert_unchanged(before, state(setup))


def angry(model, batch):
    model(batch[0])
    torch.rand(3)
    raise ZeroDivisionError("mine")


def vectors(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize(("loss", "error"), [(angry, ZeroDivisionError), (vectors, StepError)])
def test_also_after_an_error_in_the_loss(loss, error):
    setup = started(loss=loss)
    before = deep(state(setup))
    with pytest.raises(error):
        trimtab.check(setup)
    assert_unchanged(before, state(setup))


def test_a_checked_setup_trains_as_if_it_had_not_been_checked():
    losses = []
    for checked in (False, True):
        torch.manual_seed(0)
        net = he(cnn(2))
        setup = classify(net, torch.optim.Adam(net.parameters(), 1e-3), 10, image=True)
        if checked:
            trimtab.check(setup)
        losses.append([loss.item() for loss in setup.train()])
    assert losses[0] == losses[1]


def test_nothing_is_left_on_the_model():
    setup = started()
    trimtab.check(setup)
    for module in setup.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert not any(p._backward_hooks for p in setup.model.parameters())
    assert torch.autograd.backward.__module__ == "torch.autograd"


def test_a_loss_with_parameters_of_its_own():
    torch.manual_seed(0)
    net, scale = mlp(1), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.Adam([*net.parameters(), scale], 1e-3)
    setup = classify(net, optimizer, loss=lambda m, b: nn.functional.cross_entropy(m(b[0]) * scale, b[1]))
    assert trimtab.check(setup).healthy
    assert scale.grad is None
    assert scale.item() == 1.0


def test_the_custom_step_is_not_called():
    setup = started()
    setup.step = angry
    trimtab.check(setup)


class Remembering(nn.Module):
    """Keeps its last output with its graph, a log, a table and a generator of its own, none of them registered."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.Linear(64 + 16, 16), nn.Linear(16, 10)
        self.hidden = [nn.Linear(10, 10)]
        self.state = None
        self.log, self.table, self.names = ["before"], {"calls": [0]}, {"a"}
        self.memory = torch.zeros(4)
        self.noise = torch.Generator().manual_seed(1)

    def forward(self, x):
        before = x.new_zeros(len(x), 16) if self.state is None else self.state
        self.state = torch.tanh(self.cell(torch.cat([x, before], 1)))
        self.log.append("called")
        self.table["calls"].append(1)
        self.table["new"] = self.names.add("b")
        self.memory += torch.rand(4, generator=self.noise)
        self.added = True
        return self.hidden[0](self.head(self.state))


def test_attributes_that_were_none_or_containers_are_put_back():
    torch.manual_seed(0)
    net = Remembering()
    setup = classify(net, torch.optim.SGD(net.parameters(), 0.1), 1)
    log, memory, noise = net.log, net.memory, net.noise.get_state()
    trimtab.check(setup)
    assert net.state is None
    assert (net.log, net.table, net.names) == (["before"], {"calls": [0]}, {"a"})
    assert net.log is log
    assert net.memory is memory
    assert not net.memory.any()
    assert torch.equal(net.noise.get_state(), noise)
    assert not hasattr(net, "added")
    assert all(p.grad is None for p in (*net.parameters(), *net.hidden[0].parameters()))
    for _ in setup.train():  # a graph left behind would be gone through a second time
        pass


def test_a_sparse_buffer_is_put_back():
    net = mlp(1)
    net.register_buffer("mask", torch.eye(3).to_sparse())

    def double_the_mask(module, args, output):
        net.mask.mul_(2)

    net.register_forward_hook(double_the_mask)
    trimtab.check(classify(net, torch.optim.SGD(net.parameters(), 0.1)))
    assert torch.equal(net.mask.to_dense(), torch.eye(3))


def test_a_criterion_that_the_loss_takes_from_around_it():
    """Its parameters are in no optimizer and its gradients were there before."""
    torch.manual_seed(0)
    net, criterion = mlp(1), nn.BatchNorm1d(10)
    criterion.weight.grad = torch.ones(10)
    setup = classify(
        net,
        torch.optim.SGD(net.parameters(), 0.1),
        loss=lambda m, b: nn.functional.cross_entropy(criterion(m(b[0])), b[1]),
    )
    trimtab.check(setup)
    assert criterion.num_batches_tracked == 0
    assert torch.equal(criterion.weight.grad, torch.ones(10))
    assert criterion.bias.grad is None


def test_a_lazy_model_stays_lazy_and_is_looked_at_all_the_same():
    losses = []
    for checked in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(10), nn.Softmax(1))
        setup = classify(net, torch.optim.Adam(net.parameters(), 1e-2), 3)
        if checked:
            found = trimtab.check(setup)
            assert found.roots[0].code == "double-softmax"
            assert type(net[0]) is nn.LazyLinear
            assert net[0].has_uninitialized_params()
            assert net[1].has_uninitialized_params()
        losses.append([loss.item() for loss in setup.train()])
    assert losses[0] == losses[1]


def test_a_lazy_model_that_cannot_be_copied_is_refused():
    net = nn.Sequential(nn.LazyLinear(10))
    net.held = torch.ones(3, requires_grad=True) * 2
    setup = classify(net, torch.optim.SGD(net.parameters(), 0.1))
    with pytest.raises(SetupError, match="lazy modules that no batch has initialized, and it cannot be copied"):
        trimtab.check(setup)
    assert net[0].has_uninitialized_params()


def loaders():
    """DataLoaders with generators of their own: the loader's, the sampler's, a dataset's."""

    class Noisy(torch.utils.data.Dataset):
        def __init__(self, x, y):
            self.x, self.y, self.calls = x, y, 0
            self.random, self.old = np.random.default_rng(0), random.Random(0)

        def __len__(self):
            return len(self.x)

        def __getitem__(self, i):
            self.calls += 1
            return self.x[i] + 1e-3 * float(self.random.normal() + self.old.random()), self.y[i]

    x, y = digits()
    plain = torch.utils.data.TensorDataset(x, y)
    own = torch.Generator().manual_seed(3)
    sampler = torch.utils.data.WeightedRandomSampler(torch.ones(200), 64, generator=torch.Generator().manual_seed(4))
    noisy = torch.utils.data.DataLoader(Noisy(x, y), 32)
    both = torch.utils.data.DataLoader(plain, 32, shuffle=True, generator=own)
    return {
        "loader": lambda: both,
        "sampler": lambda: torch.utils.data.DataLoader(plain, 32, sampler=sampler),
        "dataset": lambda: noisy,
        "through a generator": lambda: ((a, b) for a, b in both),
        "no generator of its own": lambda: torch.utils.data.DataLoader(plain, 32, shuffle=True),
    }


@pytest.mark.parametrize("kind", loaders())
def test_the_batches_of_the_run_are_those_it_would_have_had_without_a_check(kind):
    seen = []
    for checked in (False, True):
        torch.manual_seed(0)
        net = he(mlp(1))
        setup = classify(net, torch.optim.SGD(net.parameters(), 0.1), 3)
        setup.batches = loaders()[kind]
        if checked:
            trimtab.check(setup)
        batches = []
        for _ in setup.train(on_batch=batches.append):
            pass
        seen.append(torch.stack([b[0] for b in batches]))
    assert torch.equal(*seen)


def test_a_loader_keeps_no_workers_of_a_check():
    """A loader with persistent workers holds on to its first iterator, which has drawn its seed already."""
    x, y = digits()
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), 64, num_workers=1, persistent_workers=True
    )
    setup = setup_with(batches=lambda: loader)
    trimtab.check(setup)
    assert vars(loader)["_iterator"] is None


# Wrong input --------------------------------------------------------------------------------------------------------------


def setup_with(**more):
    torch.manual_seed(0)
    net = mlp(1)
    x, y = digits()
    arguments = {"batches": passes(x, y), "loss": cross_entropy} | more
    return trimtab.Setup(net, torch.optim.SGD(net.parameters(), 0.1), **arguments)


@pytest.mark.parametrize("wrong", [None, 3, "file.db", nn.Linear(2, 2)])
def test_it_takes_a_setup(wrong):
    with pytest.raises(UsageError, match=f"check takes a Setup, but it was given a {type(wrong).__name__}"):
        trimtab.check(wrong)


def test_batches_that_cannot_be_used():
    with pytest.raises(SetupError, match="at least one batch a pass"):
        trimtab.check(setup_with(batches=list))
    with pytest.raises(SetupError, match="must give an iterable of batches, but it gave a int"):
        trimtab.check(setup_with(batches=lambda: 3))


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda m, b: m(b[0]), r"one of shape \(64, 10\); reduce it with .mean\(\)"),
        (lambda m, b: 2.0, "must give a scalar tensor, but it gave a float"),
        (lambda m, b: None, "must give a scalar tensor, but it gave None"),
    ],
)
def test_losses_that_cannot_be_used(loss, words):
    with pytest.raises(StepError, match=words):
        trimtab.check(setup_with(loss=loss))

"""Directions: filters as long as the net's, a plane that was planted, the way down."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from trimtab.curvature import (
    CurvatureError,
    Directions,
    between,
    given_directions,
    gradient_direction,
    problem,
    random_directions,
    trajectory_directions,
)


class Mixed(nn.Module):
    """Filters of every kind: linear, convolution, transposed with and without groups, and tensors of one axis."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.up = nn.ConvTranspose2d(6, 4, 2)
        self.grouped = nn.ConvTranspose2d(4, 6, 2, groups=2)
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(self.grouped(self.up(torch.relu(self.norm(self.conv(x))))).mean((2, 3)))


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@pytest.fixture(scope="module")
def mixed():
    torch.manual_seed(1)
    model = Mixed().double()
    return problem(model, cross_entropy, [(torch.randn(8, 1, 5, 5).double(), torch.randint(0, 3, (8,)))])


def named(found, vector):
    return dict(zip(found.names, found.pieces(vector), strict=True))


def filters(name, t):
    """The parts that make one output each, as rows; written out by hand."""
    if name == "up.weight":
        return t.transpose(0, 1).flatten(1)
    if name == "grouped.weight":  # inputs 0, 1 make outputs 0..2, inputs 2, 3 outputs 3..5
        return torch.cat([t[:2].transpose(0, 1).flatten(1), t[2:].transpose(0, 1).flatten(1)])
    return t.flatten(1)


def test_every_filter_has_the_length_of_the_nets_own(mixed):
    own = named(mixed, mixed.vector())
    for vector in random_directions(mixed, 2).vectors:
        for name, piece in named(mixed, vector).items():
            if own[name].ndim <= 1:
                assert not piece.any(), name
            else:
                expected = filters(name, own[name]).norm(dim=1)
                assert torch.allclose(filters(name, piece).norm(dim=1), expected, rtol=1e-12), name


def test_raw_and_tensor_scaled_directions_do_not(mixed):
    own = named(mixed, mixed.vector())["out.weight"]
    raw, whole = (
        named(mixed, random_directions(mixed, 1, scale=s).vectors[0])["out.weight"] for s in ("none", "tensor")
    )
    assert torch.allclose(whole.norm(), own.norm(), rtol=1e-12)
    assert not torch.allclose(whole.norm(dim=1), own.norm(dim=1), rtol=1e-2)
    assert torch.allclose(whole / whole.norm(), raw / raw.norm(), rtol=1e-12)


def test_vectors_move_where_they_are_asked_to(mixed):
    found = named(mixed, random_directions(mixed, 1, vectors=True).vectors[0])
    own = named(mixed, mixed.vector())
    assert found["norm.weight"].norm() == pytest.approx(6**0.5)
    assert not found["norm.bias"].any(), "it is zero in the net, and has no length to take"
    assert found["out.bias"].norm() == pytest.approx(float(own["out.bias"].norm()))
    without = named(mixed, random_directions(mixed, 1).vectors[0])
    assert torch.equal(without["out.weight"], found["out.weight"])


def test_a_direction_in_which_nothing_moves_is_refused():
    one_axis = nn.BatchNorm1d(3).double()
    found = problem(one_axis, lambda m, x: m(x).square().mean(), [torch.randn(5, 3).double()])
    with pytest.raises(CurvatureError, match=r"zero everywhere: .* give vectors=True"):
        random_directions(found)
    assert random_directions(found, 1, vectors=True).vectors[0].any()


def test_seeds(mixed):
    a, b, c = (random_directions(mixed, 1, seed=s).vectors[0] for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert abs(float(nn.functional.cosine_similarity(a, c, dim=0))) < 0.3


def test_the_gradient_points_down(mixed):
    (down,) = gradient_direction(mixed).vectors
    value, gradient = mixed.gradient()
    assert torch.allclose(down, -gradient / gradient.norm(), rtol=1e-12)
    assert mixed.value(mixed.vector() + 1e-4 * down) < value


def planted(mixed, count=12, noise=0.0):
    """Checkpoints in a plane through the snapshot; its axes, and their coordinates."""
    generator = torch.Generator().manual_seed(3)
    axes, _ = torch.linalg.qr(torch.randn(mixed.size, 2, generator=generator, dtype=torch.float64))
    t = torch.linspace(1, 0.1, count, dtype=torch.float64)
    places = torch.stack([3 * t, (5 * t).sin()], 1)
    rows = mixed.vector() + places @ axes.T
    return axes, places, rows + noise * torch.randn(rows.shape, generator=generator, dtype=torch.float64)


def test_a_planted_plane_is_found(mixed):
    axes, places, rows = planted(mixed)
    found = trajectory_directions(mixed, list(rows))
    basis = torch.stack(found.vectors, 1)
    assert torch.allclose(basis.T @ basis, torch.eye(2, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(basis @ basis.T @ axes, axes, atol=1e-10), "the same plane"
    assert torch.allclose(basis @ torch.from_numpy(found.path).T, axes @ places.T, atol=1e-10)
    assert found.captured == pytest.approx(1.0)


def test_components_are_those_of_a_singular_value_decomposition(mixed):
    _, _, rows = planted(mixed, noise=0.05)
    found = trajectory_directions(mixed, list(rows))
    _, s, vt = torch.linalg.svd(rows - mixed.vector(), full_matrices=False)
    for vector, row in zip(found.vectors, vt, strict=False):
        assert abs(float(vector @ row)) == pytest.approx(1.0, abs=1e-10)
    assert found.captured == pytest.approx(float((s[:2] ** 2).sum() / (s**2).sum()))


def test_checkpoints_are_modules_state_dicts_and_vectors(mixed):
    _, _, rows = planted(mixed, 4)
    modules = []
    for row in rows:
        module = copy.deepcopy(mixed.shadow.model)
        module.load_state_dict(named(mixed, row), strict=False)
        modules.append(module)
    wrapped = {f"module.{name}": value for name, value in modules[1].state_dict().items()}
    found = trajectory_directions(mixed, [modules[0], wrapped, *rows[2:]])
    assert np.allclose(found.path, trajectory_directions(mixed, list(rows)).path)


def test_between_two_checkpoints(mixed):
    _, _, rows = planted(mixed, 2)
    found = between(mixed, rows[1])
    assert torch.allclose(found.vectors[0], rows[1] - mixed.vector(), rtol=1e-12)
    assert found.path.tolist() == [[1.0]]


def test_two_lines_make_a_plane(mixed):
    plane = gradient_direction(mixed) + random_directions(mixed, 1)
    assert plane.names == ("steepest descent", "random 0.0")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda p: random_directions(p, 3), "one direction or two, but there are 3"),
        (lambda p: random_directions(p, scale="layer"), "scale must be one of 'filter', 'tensor', 'none'"),
        (lambda p: random_directions(p, seed="0"), "seed must be a whole number from 0"),
        (lambda p: given_directions(p, torch.zeros(p.size)), "direction 0 is zero everywhere"),
        (lambda p: given_directions(p, torch.full((p.size,), torch.nan)), "direction 0 holds NaN"),
        (lambda p: given_directions(p, torch.ones(3)), "a tensor of shape \\(3,\\)"),
        (lambda p: given_directions(p, [1]), "direction 0 must be a flat vector, but it is a int"),
        (lambda p: trajectory_directions(p, [p.vector() + 1]), "span fewer than 2 directions"),
        (lambda p: trajectory_directions(p, [p.vector()] * 3), "span fewer than 2 directions"),
        (lambda p: trajectory_directions(p, []), "span fewer than 2 directions"),
        (lambda p: trajectory_directions(p, p.vector()), "must be a list of them, but it is a tensor"),
        (lambda p: trajectory_directions(p, [p.vector() * torch.nan] * 3), "a checkpoint holds NaN"),
        (
            lambda p: between(p, {name: own * torch.inf for name, own in zip(p.names, p.origin, strict=True)}),
            "a checkpoint's .* holds NaN",
        ),
        (lambda p: between(p, p.vector()), "equals the model"),
        (lambda p: between(p, {"conv.weight": torch.ones(2)}), "must hold conv.weight of shape"),
        (lambda p: between(p, {}), "must hold conv.weight of shape .* is None"),
        (lambda p: random_directions(p.shadow.model), "problem must be a curvature.problem, but it is a Mixed"),
        (lambda _: gradient_direction(None), "problem must be a curvature.problem, but it is None"),
        (lambda _: between("p", {}), "problem must be a curvature.problem, but it is a str"),
        (lambda p: given_directions(p, None), "vectors must be a flat vector or a list of them, but it is None"),
        (lambda p: between(p, 3), "a module, a state_dict or a vector, but it is a int"),
        (lambda p: Directions((), ()), "there are 0"),
    ],
)
def test_what_is_refused(mixed, call, why):
    with pytest.raises(CurvatureError, match=why):
        call(mixed)


def test_a_gradient_of_nothing_is_no_direction():
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    flat = problem(model, lambda m, x: m(x).square().mean(), [torch.ones(3, 2).double()])
    with pytest.raises(CurvatureError, match="the gradient has length 0"):
        gradient_direction(flat)

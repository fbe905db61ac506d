"""Slices: parabolas are parabolas, the centre is the model, NaN stays, interruptions lose nothing, nothing of the user's moves."""

import copy
import os
import random
import signal

import numpy as np
import pytest
import torch
from torch import nn

from trimtab import Setup
from trimtab.curvature import (
    CurvatureError,
    between,
    given_directions,
    gradient_direction,
    problem,
    random_directions,
    surface,
)


class Vector(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.w = nn.Parameter(torch.as_tensor(values, dtype=torch.float64))

    def forward(self, x):
        return x @ self.w


DIAGONAL = torch.tensor([3.0, 0.5, -1.0, 2.0], dtype=torch.float64)


def quadratic(start=(1.0, -2.0, 0.5, 0.0)):
    """L = w' diag(DIAGONAL) w / 2 at some point."""
    batch = torch.ones(1, 1, dtype=torch.float64)
    return problem(Vector(start), lambda m, x: 0.5 * (DIAGONAL * m.w**2).sum() * x.mean(), [batch])


def bn_setup(dtype=torch.float32):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)).to(dtype)
    batches = [(torch.randn(n, 6, dtype=dtype), torch.randint(0, 3, (n,))) for n in (16, 7)]
    model(batches[0][0])  # running statistics that are not those of the start
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Setup(model, optimizer, lambda: batches, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]))


# ------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize("points", [5, (5, 4)])
def test_slices_of_a_parabola_are_parabolas(points):
    found = quadratic()
    w = found.vector()
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(1 if isinstance(points, int) else 2, 4, generator=generator, dtype=torch.float64)
    result = surface(found, directions=list(directions), span=(-1.5, 2.0), points=points)
    for index in np.ndindex(result.values.shape):
        place = torch.tensor([axis[i] for axis, i in zip(result.axes, index, strict=True)])
        point = w + place @ directions
        assert result.values[index] == pytest.approx(float(0.5 * (DIAGONAL * point**2).sum()), rel=1e-13)
    assert result.axes[0][[0, -1]].tolist() == [-1.5, 2.0]


def test_eigenvectors_give_half_the_eigenvalue():
    result = surface(quadratic((0.0, 0.0, 0.0, 0.0)), directions=torch.eye(4, dtype=torch.float64)[0], points=3)
    assert result.values.tolist() == [1.5, 0.0, 1.5]


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("directions", ["random", "gradient", ("random", "random"), ("gradient", "random")])
def test_the_centre_is_the_model(mode, directions):
    setup = bn_setup(torch.float64)
    setup.model[3].p = 0.0
    result = surface(setup, directions=directions, points=5, mode=mode, batches=2)
    centre = result.values[(2,) * result.values.ndim]
    model = copy.deepcopy(setup.model).train(mode == "train")
    with torch.no_grad():
        losses = [(len(b[1]), float(setup.loss(model, b))) for b in setup.batches()]
    expected = sum(n * loss for n, loss in losses) / sum(n for n, _ in losses)
    assert centre == result.loss == pytest.approx(expected, rel=1e-13)
    assert result.error == 0.0
    assert result.mode == mode
    assert np.ptp(result.values) > 1e-3, "and it is no plain"


def test_modes_are_different_functions():
    setup = bn_setup()
    losses = {mode: surface(setup, points=3, mode=mode, seed=0).loss for mode in ("train", "eval")}
    assert abs(losses["train"] - losses["eval"]) > 1e-2


def test_between_two_models_both_ends_are_theirs():
    setup = bn_setup(torch.float64)
    other = copy.deepcopy(setup.model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(0.1 * torch.randn_like(p))
    here = problem(setup, mode="eval")
    there = problem(other, setup.loss, [next(iter(setup.batches()))], mode="eval")
    result = surface(here, directions=between(here, other), span=(0, 1), points=3)
    assert result.values[0] == here.value()
    # Buffers are the snapshot's, and those of the copy are equal.
    assert result.values[-1] == pytest.approx(there.value(), rel=1e-12)


def test_nan_and_infinity_are_kept():
    def log_barrier(model, x):
        return -torch.log(model.w).sum() + 0 * x.sum()

    result = surface(
        problem(Vector([1.0]), log_barrier, [torch.ones(1)]),
        directions=torch.ones(1, dtype=torch.float64),
        span=2.0,
        points=5,
    )
    assert result.axes[0].tolist() == [-2, -1, 0, 1, 2]
    assert np.isnan(result.values[0])
    assert result.values[1] == np.inf
    assert result.values[2:] == pytest.approx(-np.log([1, 2, 3]))
    assert result.finite == pytest.approx(0.6)
    assert "40.0% of the points not finite" in str(result)


def test_infinities_of_two_batches_that_cancel_are_nan_and_no_error():
    signs = [torch.full((1,), s, dtype=torch.float64) for s in (1.0, -1.0)]
    found = problem(Vector([1.0]), lambda m, s: (s / m.w.square()).sum() + m.w.sum(), signs)
    result = surface(found, directions=torch.ones(1, dtype=torch.float64), points=3)
    assert np.isnan(result.values[0])
    assert result.values[1:].tolist() == [1.0, 2.0]


def test_a_grid_of_even_points_is_checked_at_its_origin_all_the_same():
    result = surface(quadratic(), directions="gradient", points=4, span=3.0)
    assert 0.0 not in result.axes[0]
    assert result.loss == quadratic().value()


def test_the_origin_is_on_the_grid_without_a_rounding_error_beside_it():
    for points in (3, 7, 11, 21, 51):
        assert surface(quadratic(), directions="gradient", points=points, span=0.7).axes[0][points // 2] == 0.0


# ------------------------------------------------------------------------------------------------ store


def test_a_finished_store_is_read_and_nothing_computed(tmp_path):
    setup = bn_setup()
    store = tmp_path / "deep" / "surface.txt"
    first = surface(setup, points=5, seed=0, store=store)
    told = []
    second = surface(setup, points=5, seed=0, store=store, progress=lambda *p: told.append(p))
    assert np.array_equal(first.values, second.values)
    assert (first.evaluations, second.evaluations) == (27, 2)
    assert told == []
    assert np.array_equal(first.values, surface(setup, points=5, seed=0).values)


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("error", [StoppedError, KeyboardInterrupt])
def test_an_interruption_loses_nothing(tmp_path, error):
    """In the loss of the tenth point: problem takes two losses to see whether they repeat, two are of the centre."""
    setup, left = bn_setup(), []
    store = tmp_path / "surface.txt"

    def stopping(model, batch):
        if left and left.pop() == "stop":
            raise error
        return setup.loss(model, batch)

    found = problem(Setup(setup.model, setup.optimizer, setup.batches, stopping), seed=0)
    left += ["stop", *["go"] * 11]
    with pytest.raises(error):
        surface(found, points=5, store=store)
    assert len(store.read_text().splitlines()) == 1 + 9
    told = []
    result = surface(setup, points=5, seed=0, store=store, progress=lambda *p: told.append(p))
    assert result.evaluations == 2 + 25 - 9
    assert told == [(n, 25) for n in range(10, 26)]
    assert np.array_equal(result.values, surface(setup, points=5, seed=0).values)


def test_a_line_that_was_cut_off_is_computed_again(tmp_path):
    setup = bn_setup()
    store = tmp_path / "surface.txt"
    whole = surface(setup, points=5, seed=0, store=store).values
    text = store.read_text()
    for cut in (1, 5, len(text) - len(text.partition("\n")[0]) + 3):  # in a value, and within the first line
        store.write_text(text[:-cut])
        assert np.array_equal(surface(setup, points=5, seed=0, store=store).values, whole)
        assert store.read_text() == text


def test_nan_is_a_value_of_the_store(tmp_path):
    found = problem(Vector([1.0]), lambda m, x: -torch.log(m.w).sum() + 0 * x.sum(), [torch.ones(1)])
    line = {"directions": torch.ones(1, dtype=torch.float64), "span": 2.0, "points": 5, "store": tmp_path / "s.txt"}
    first, second = (surface(found, **line) for _ in range(2))
    assert second.evaluations == 2
    assert np.array_equal(first.values, second.values, equal_nan=True)


def nudged(setup):
    with torch.no_grad():
        setup.model[0].weight[0, 0] += 1e-3
    return setup


@pytest.mark.parametrize(
    ("change", "options", "what"),
    [
        (nudged, {}, "parameters"),
        (lambda s: s, {"mode": "eval"}, "mode"),
        (lambda s: s, {"batches": 2}, "batches"),
        (lambda s: s, {"directions": ("random", "gradient")}, "directions"),
        (lambda s: s, {"span": 2.0}, "grid"),
        (lambda s: s, {"seed": 1}, "mode"),
        (lambda s: Setup(s.model, s.optimizer, s.batches, lambda m, b: 2 * s.loss(m, b)), {}, "loss"),
    ],
)
def test_the_store_of_another_surface_is_refused_and_left_alone(tmp_path, change, options, what):
    store = tmp_path / "surface.txt"
    setup = bn_setup()
    surface(setup, points=3, seed=0, store=store)
    before = store.read_bytes()
    with pytest.raises(CurvatureError, match=rf"is of another surface: .*{what}"):
        surface(change(setup), **({"points": 3, "seed": 0, "store": store} | options))
    assert store.read_bytes() == before


@pytest.mark.parametrize("content", ["a letter to a friend", "a letter\nto a friend\n", '{"kind": "else"}\n', "[]\n"])
def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path, content):
    store = tmp_path / "letter.txt"
    store.write_text(content)
    with pytest.raises(CurvatureError, match="is no file of a surface"):
        surface(quadratic(), directions="gradient", points=3, store=store)
    assert store.read_text() == content


# ------------------------------------------------------------------------------------------------ side effects


def everything(setup):
    """All that must be as it was, with tensors as bytes."""
    state = {name: t.clone() for name, t in setup.model.state_dict(keep_vars=False).items()}
    gradients = {n: None if p.grad is None else p.grad.clone() for n, p in setup.model.named_parameters()}
    modes = {n: (m.training, getattr(m, "track_running_stats", None)) for n, m in setup.model.named_modules()}
    optimizer = copy.deepcopy(setup.optimizer.state_dict())
    return state, gradients, modes, optimizer, torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()


def assert_same(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, np.ndarray):
        assert np.array_equal(a, b)
    else:
        assert a == b


def interrupt(done, total):
    if done == 3:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("ends", ["well", "by an exception inside the loss", "by Ctrl-C"])
def test_nothing_of_the_users_moves(ends, tmp_path):
    setup = bn_setup()
    setup.train_step(next(iter(setup.batches())))  # gradients, and a state of Adam
    setup.model[1].eval()  # a mode of its own
    calls = []

    def loss(model, batch):
        calls.append(1)
        if ends.startswith("by an exception") and len(calls) > 8:
            raise StoppedError
        return setup.loss(model, batch)

    watched = Setup(setup.model, setup.optimizer, setup.batches, loss)
    before = everything(watched)
    objects = [*map(id, watched.model.parameters()), *(id(p.grad) for p in watched.model.parameters())]
    error = {"well": None, "by Ctrl-C": KeyboardInterrupt}.get(ends, StoppedError)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if error is None:
            surface(watched, points=3, seed=0, store=tmp_path / "s.txt")
        else:
            with pytest.raises(error):
                surface(watched, points=3, seed=0, progress=interrupt if ends == "by Ctrl-C" else None)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert_same(before, everything(watched))
    assert objects == [*map(id, watched.model.parameters()), *(id(p.grad) for p in watched.model.parameters())]


def test_no_seed_is_left_for_a_device_that_is_not_in_use_yet():
    """torch.manual_seed queues one, with a stack trace, for each device that is initialized later."""
    before = len(torch.cuda._queued_calls)
    surface(bn_setup(), points=3, seed=0)
    assert len(torch.cuda._queued_calls) == before


def test_progress_draws_the_users_own_random_numbers():
    setup, drawn = bn_setup(), []
    torch.manual_seed(7)
    surface(setup, points=3, seed=0, progress=lambda *_: drawn.append(torch.rand(()).item()))
    torch.manual_seed(7)
    assert drawn == [torch.rand(()).item() for _ in range(9)]


def test_what_the_loss_takes_from_around_it_is_put_back_after_each_point():
    setup, teacher = bn_setup(), nn.BatchNorm1d(6)

    def loss(model, batch):
        teacher(batch[0])
        return setup.loss(model, batch) + 0.1 * teacher.num_batches_tracked

    with_teacher, without = (
        surface(Setup(setup.model, setup.optimizer, setup.batches, f), points=3, seed=0) for f in (loss, setup.loss)
    )
    assert with_teacher.values == pytest.approx(without.values + 0.1, rel=1e-6)
    assert teacher.num_batches_tracked == 0


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"directions": "hessian"}, "one is 'hessian'"),
        ({"directions": []}, "it is empty"),
        ({"directions": ("gradient",) * 3}, "one direction or two, but there are 3"),
        ({"directions": (None, "gradient")}, "one is None"),
        ({"span": 0}, "span must be a number above 0"),
        ({"span": (1, 1)}, "span must be a number above 0"),
        ({"span": float("inf")}, "span must be a number above 0"),
        ({"span": "wide"}, "span must be a number above 0"),
        ({"directions": None}, "directions must be Directions, .* but one is None"),
        ({"points": 1}, "points must be a whole number of at least 2"),
        ({"points": 2.5}, "points must be a whole number of at least 2"),
        ({"points": (3, 3, 3)}, "must be of 1 directions"),
    ],
)
def test_what_is_refused(options, why):
    with pytest.raises(CurvatureError, match=why):
        surface(quadratic(), **({"directions": "gradient"} | options))


def test_directions_of_another_problem_are_refused():
    with pytest.raises(CurvatureError, match=r"a real vector of shape \(4,\) is needed"):
        surface(quadratic(), directions=random_directions(problem(bn_setup(), seed=0), 1))


def test_directions_that_were_made_before_are_taken_as_they_are():
    found = quadratic()
    made = gradient_direction(found) + given_directions(found, torch.ones(4), ["all ones"])
    result = surface(found, directions=made, points=3)
    assert result.directions.names == ("steepest descent", "all ones")
    assert str(result).startswith("surface of 3 x 3 points along steepest descent and all ones, train mode: loss ")

"""The loss on a line or a plane through the parameters: L(theta + a d1 + b d2).

The snapshot of `problem` is what is moved, so that no weight and no buffer of the user's model is touched. In training mode batch
normalizations use the statistics of the batch at each point, as training does. A loss that is NaN or infinite stays so in the result.
"""

import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from trimtab._setup import Setup
from trimtab.curvature._checks import CurvatureError, kind
from trimtab.curvature.directions import Directions, given_directions, gradient_direction, random_directions
from trimtab.curvature.hessian import as_problem
from trimtab.curvature.problem import Loss, Problem
from trimtab.curvature.surface_store import Store, identity

Progress = Callable[[int, int], None]
Span = float | tuple[float, float]
PAIR = (tuple, list)
TOGETHER = 0.05
"""Seconds after which a few losses are handed over: progress is told so often, or after each point where one takes longer."""

POINTS = {1: 51, 2: 21}
"""Points along each axis of a line and of a plane, where nothing else is said."""


@dataclass(frozen=True)
class Surface:
    """Losses on a grid of one axis or two.

    Attributes:
        axes: Coordinates along each direction; the snapshot is at 0.
        values: The losses, shape (len(axes[0]),) or (len(axes[0]), len(axes[1])); NaN and infinite where they are.
        loss: At the snapshot.
        error: How far the value at the origin of the plane is from `loss`; anything but 0 is refused.
        directions: Along what.
        mode: "train" or "eval".
        evaluations: Losses of all batches that were computed for this result; points from a store are not among them.
        seconds: It took.
        products: 0: no product with a Hessian.
    """

    axes: tuple[np.ndarray, ...]
    values: np.ndarray
    loss: float
    error: float
    directions: Directions
    mode: str
    evaluations: int
    seconds: float
    products: int = 0

    @property
    def finite(self) -> float:
        """Share of the points whose loss is finite."""
        return float(np.isfinite(self.values).mean())

    def __str__(self) -> str:
        good = self.values[np.isfinite(self.values)]
        low, high = (good.min(), good.max()) if len(good) else (np.nan, np.nan)
        size = " x ".join(str(len(axis)) for axis in self.axes)
        odd = "" if self.finite == 1.0 else f", {1 - self.finite:.1%} of the points not finite"
        return (
            f"surface of {size} points along {' and '.join(self.directions.names)}, {self.mode} mode: "
            f"loss {self.loss:.6g} at the centre, {low:.6g} to {high:.6g}{odd}"
        )


def surface(
    setup_or_model: Setup | nn.Module | Problem,
    loss: Loss | None = None,
    batches: Any = None,
    *,
    directions: Directions | str | Tensor | Sequence[str | Tensor] = ("random", "random"),
    span: Span | tuple[Span, Span] = 1.0,
    points: int | tuple[int, int] | None = None,
    store: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Surface:
    """The loss on a line or a plane through the parameters.

    Args:
        setup_or_model: A setup; a model together with `loss` and `batches`; or a problem.
        loss: `loss(model, batch)` gives a scalar tensor.
        batches: As for `problem`.
        directions: What `random_directions`, `gradient_direction`, `given_directions`, `trajectory_directions` or `between`
            gave; or "random", "gradient" or a flat vector; or two of those.
        span: How far to go: a number for both ways, or lowest and highest coordinate; two of them for the two axes.
        points: Along each axis; an odd number has the model itself among them. None for 51, or 21 by 21.
        store: A file for the points that are done. After an interruption the same call computes only the others.
        progress: Told after each point how many are done, and of how many.
        **options: Of `problem`: mode ("train" unless given), parameters, seed, dtype, weights, reduction.

    Returns:
        The losses.

    Raises:
        CurvatureError: An argument is not what it must be; the store is of another surface; or the loss at the origin of the
            plane is not that of the model.
    """
    started = time.perf_counter()
    problem = as_problem(setup_or_model, loss, batches, **options)
    along = _directions(problem, directions)
    axes = _axes(span, points, len(along.vectors))
    centre = problem.value()
    at_origin = problem.value(problem.vector() + 0.0 * sum(along.vectors))
    if not np.array_equal(at_origin, centre, equal_nan=True):
        raise CurvatureError(
            f"loss at the centre of the slice is {at_origin!r} and that of the model {centre!r}; the loss is not the same twice"
        )
    shape = tuple(len(axis) for axis in axes)
    values = np.full(shape, np.nan)
    evaluations = 2
    with _kept(problem, store, along.vectors, axes, centre) as kept:
        done = dict(kept.done) if kept is not None else {}
        for place, value in done.items():
            values.flat[place] = value
        waiting = _points(problem, along.vectors, axes, done)
        finished = len(done)
        while found := _losses(problem, waiting, kept):
            evaluations += len(found)
            for place, value in found:
                values.flat[place] = value
                finished += 1
                if progress is not None:
                    progress(finished, values.size)
    seconds = time.perf_counter() - started
    return Surface(axes, values, centre, 0.0, along, problem.mode, evaluations, seconds)


def _directions(problem: Problem, given: Any) -> Directions:
    """What was asked for, as directions of this problem."""
    if isinstance(given, Directions):
        own = given_directions(problem, given.vectors, given.names)
        return Directions(own.vectors, given.names, given.path, given.captured)
    parts = list(given) if isinstance(given, PAIR) else [given]
    found: Directions | None = None
    for place, part in enumerate(parts):
        if isinstance(part, str) and part == "random":
            one = random_directions(problem, 1, seed=place)
        elif isinstance(part, str) and part == "gradient":
            one = gradient_direction(problem)
        elif isinstance(part, Tensor) and part.ndim == 1:
            one = given_directions(problem, part, [f"direction {place + 1}"])
        else:
            what = repr(part) if isinstance(part, str) else kind(part)
            raise CurvatureError(
                f'directions must be Directions, or "random", "gradient" or flat vectors, one or two, but one is {what}'
            )
        found = one if found is None else found + one
    if found is None:
        raise CurvatureError("directions must name one direction or two, but it is empty")
    return found


def _axes(span: Any, points: Any, count: int) -> tuple[np.ndarray, ...]:
    """The coordinates along each direction."""
    spans = span if isinstance(span, PAIR) and span and isinstance(span[0], PAIR) else (span,) * count
    counts = points if isinstance(points, PAIR) else (POINTS[count] if points is None else points,) * count
    if len(spans) != count or len(counts) != count:
        raise CurvatureError(f"span and points must be of {count} directions, but they are {span!r} and {points!r}")
    return tuple(_axis(*pair) for pair in zip(spans, counts, strict=True))


def _axis(span: Any, points: Any) -> np.ndarray:
    try:
        low, high = (float(s) for s in (span if isinstance(span, PAIR) else (-span, span)))
    except (TypeError, ValueError):
        low = high = np.nan
    if not (np.isfinite([low, high]).all() and low < high):
        raise CurvatureError(f"span must be a number above 0, or a lowest and a higher coordinate, but it is {span!r}")
    if isinstance(points, bool) or not isinstance(points, int) or points < 2:
        raise CurvatureError(f"points must be a whole number of at least 2, but it is {points!r}")
    axis = np.linspace(low, high, points)
    axis[np.abs(axis) < 1e-12 * (high - low)] = 0.0  # the model itself, not a rounding error beside it
    return axis


def _losses(problem: Problem, waiting: Iterator[tuple[int, Tensor]], kept: Store | None) -> list[tuple[int, float]]:
    """The losses of the next points, each stored as soon as it is known; a few at a time, and one where that takes long."""
    found: list[tuple[int, float]] = []
    started = time.perf_counter()
    with problem.shadow.held():
        for place, point in waiting:
            found.append((place, problem.value(point)))
            if kept is not None:
                kept.add(*found[-1])
            if time.perf_counter() - started > TOGETHER:
                break
    return found


def _points(
    problem: Problem, vectors: Sequence[Tensor], axes: Sequence[np.ndarray], done: Container[int]
) -> Iterator[tuple[int, Tensor]]:
    """The number and the parameters of each point that is not done, row by row."""
    columns = axes[1] if len(axes) == 2 else np.zeros(1)
    for row, first in enumerate(axes[0]):
        start = problem.vector().add_(vectors[0], alpha=float(first))
        for column, second in enumerate(columns):
            place = row * len(columns) + column
            if place not in done:
                yield place, start if len(axes) == 1 else start.add(vectors[1], alpha=float(second))


@contextmanager
def _kept(
    problem: Problem, store: str | Path | None, vectors: Sequence[Tensor], axes: Sequence[np.ndarray], loss: float
) -> Iterator[Store | None]:
    """The file of the points, open; None where there is to be none."""
    if store is None:
        yield None
        return
    if not problem.alone:
        raise CurvatureError(
            "store is for one rank: with several, each would go on with the points of its own file; leave it out"
        )
    with Store(store, identity(problem, vectors, axes, loss)) as kept:
        yield kept
